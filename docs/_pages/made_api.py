"""Reference pages of the Python API: exported names, names imported in the guides, architectures.

mkdocstrings reads docstrings and signatures; this file selects the names.
"""

import ast
import importlib
import re
from collections.abc import Callable
from pathlib import Path

import vit_jax.models
from vit_jax.models.registry import MODELS

DOCS = Path(__file__).parents[1]

# Page: its title, its packages or modules, and one line about them.
_TOPICS = {
    "vit_jax": (
        "vit_jax",
        ("vit_jax",),
        "Names for most programs, at the top level of the package.",
    ),
    "models": ("Models", ("vit_jax.models",), "Networks, their parts and costs."),
    "data": ("Data", ("vit_jax.data",), "From files to batches."),
    "training": (
        "Configuration and training",
        (
            "vit_jax.config",
            "vit_jax.training",
            "vit_jax.evaluation",
            "vit_jax.tasks",
            "vit_jax.runs",
        ),
        "Configurations, tasks, training, evaluation and run folders.",
    ),
    "weights": (
        "Weights and inference",
        ("vit_jax.inference", "vit_jax.weights", "vit_jax.compress"),
        "Using trained and published models, and making them smaller.",
    ),
    "export": ("Export", ("vit_jax.export",), "Programs and graphs for other software."),
    "analysis": ("Analysis", ("vit_jax.analysis",), "Attention, features, errors and robustness."),
}
# Names of these modules that are neither exported nor imported in a guide.
_ALSO = {
    "vit_jax.config": ("default_config", "load_config"),
    "vit_jax.models.summary.cost": ("Cost", "cost", "shape_walk"),
}


def _imported_in_guides() -> dict[str, set[str]]:
    """Return the names that Python blocks of the guides import, by module."""
    found: dict[str, set[str]] = {}
    for page in sorted(DOCS.rglob("*.md")):
        for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vit_jax"):
                    names = {alias.name for alias in node.names}
                    found.setdefault(node.module, set()).update(names)
    return found


def _members() -> dict[str, list[str]]:
    """Return the names of the reference by module."""
    found = _imported_in_guides()
    for name, names in _ALSO.items():
        found.setdefault(name, set()).update(names)
    for architecture in {preset.architecture for preset in MODELS.values()}:
        module, name = architecture.__module__.removesuffix(".module"), architecture.__name__
        if module.startswith("vit_jax.models.") and name not in vit_jax.models.__all__:
            found.setdefault(module, set()).add(name)
    for package in {package for _, packages, _ in _TOPICS.values() for package in packages}:
        exported = getattr(importlib.import_module(package), "__all__", ())
        found.setdefault(package, set()).update(exported)
    members = {}
    for module, names in sorted(found.items()):
        own = sorted(name for name in names if not _is_module(f"{module}.{name}"))
        if own:
            members[module] = own
    return members


def _is_module(name: str) -> bool:
    """Return whether a dotted name is a module that no exported name hides."""
    package, _, last = name.rpartition(".")
    path = DOCS.parent.joinpath(*name.split("."))
    exported = getattr(importlib.import_module(package), "__all__", ())
    return last not in exported and (path.is_dir() or path.with_suffix(".py").is_file())


def _page(topic: str) -> Callable[[], str]:
    def make() -> str:
        title, packages, line = _TOPICS[topic]
        parts = [f"# {title}\n\n{line}\n"]
        for module, names in _members().items():
            if topic == "vit_jax":
                here = module == "vit_jax"
            else:
                here = any(module == one or module.startswith(f"{one}.") for one in packages)
            if here:
                parts.append(f"## `{module}`\n")
                parts += [f"::: {module}.{name}\n" for name in names]
        return "\n".join(parts)

    return make


PAGES: dict[str, Callable[[], str]] = {topic: _page(topic) for topic in _TOPICS}
