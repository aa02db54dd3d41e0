"""Imports point down: docs/contributing/architecture.md has the same floors for people."""

import ast

import pytest

from tests.folders import ROOT

FLOORS = {"runs": 1, "weights": 2, "tasks": 3, "evaluation": 3, "training": 4, "inference": 4}
FLOORS |= {
    "export": 5,
    "compress": 5,
    "analysis": 6,
    "serving": 7,
    "studies": 7,
    "commands": 8,
    "cli": 8,
    "__main__": 8,
}  # others are on floor 0
PACKAGES = ("models", "data", "weights", "training", "inference", "export", "compress", "analysis")
PACKAGES += ("commands",)
# The top of the package names what is in it, and imports that when it is first used.
FILES = [path for path in sorted((ROOT / "vit_jax").rglob("*.py")) if path.parent.name != "vit_jax"]
FILES += [path for path in sorted((ROOT / "vit_jax").glob("*.py")) if path.name != "__init__.py"]


def room(parts):
    """The room of a module. The tensor names of an architecture are of the room `weights`."""
    if len(parts) > 3 and parts[1] == "models" and parts[3] == "weights":
        return "weights"
    return parts[1] if len(parts) > 1 else ""


def imported_rooms(source):
    """The packages and single files of vit_jax that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vit_jax":
            parts = node.module.split(".")
            if len(parts) == 1:
                yield from (alias.name for alias in node.names)
            else:  # `from package import module` may name a room of its own
                yield from {room([*parts, alias.name]) for alias in node.names}
        elif isinstance(node, ast.Import):
            names = (alias.name.split(".") for alias in node.names)
            yield from (room(parts) for parts in names if parts[0] == "vit_jax" and room(parts))


def mistakes(own, rooms):
    for other in rooms:
        if other == own or other == "__version__":
            continue
        if FLOORS.get(other, 0) > FLOORS.get(own, 0):
            yield f"{own} imports {other}, which is above it"
        elif other in PACKAGES and FLOORS.get(other, 0) == FLOORS.get(own, 0) and own in PACKAGES:
            yield f"{own} imports its neighbour {other}"


def test_no_module_imports_from_above():
    found = []
    for path in FILES:
        own = room(path.relative_to(ROOT).with_suffix("").parts)
        for mistake in mistakes(own, imported_rooms(path.read_text(encoding="utf-8"))):
            found.append(f"{path.relative_to(ROOT)}: {mistake}")
    assert found == []


@pytest.mark.parametrize(
    ("own", "line", "sentence"),
    [
        ("models", "from vit_jax.data import decode", "neighbour"),
        ("data", "def f():\n    import vit_jax.models.vit.module", "neighbour"),
        ("inference", "from vit_jax.training.state import TrainState", "neighbour"),
        ("training", "from vit_jax import analysis", "above"),
        ("errors", "from vit_jax.runs import RunDir", "above"),
    ],
)
def test_an_import_from_above_is_seen(own, line, sentence):
    [mistake] = mistakes(own, imported_rooms(line))
    assert sentence in mistake


def test_the_floors_are_those_of_the_page():
    page = (ROOT / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")
    for name, floor in FLOORS.items():
        [line] = [line for line in page.splitlines() if line.startswith(f"| {floor} |")]
        assert f"`{name}" in line
