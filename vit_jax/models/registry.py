"""Registry of models by the names of their papers: `create_model("ViT-B/16", num_classes=10)`.

A name stands for an architecture class and the fields in which it differs from that class. Names
are registered in `variants.py` of each architecture.
"""

import dataclasses
import difflib
import fnmatch
import inspect
import re
import sys
from collections.abc import Iterable
from typing import Any

from flax import linen as nn
from flax.core import FrozenDict

from vit_jax.errors import shown
from vit_jax.models.description import describe, model_roles
from vit_jax.models.foreign_names import own_field, own_name, stated_size
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.tokens.fields import OF_TOKENS
from vit_jax.registry import outside, same_place


@dataclasses.dataclass(frozen=True)
class Preset:
    """Registry entry of a model name.

    Attributes:
        architecture: the module class.
        fields: the fields that differ from the class's defaults.
        source: reference of the numbers.
        modules: modules to import before this name is known: those of the class and of the call of
            `register`.
    """

    architecture: type[nn.Module]
    fields: dict[str, Any]
    source: str
    modules: tuple[str, ...]


MODELS: dict[str, Preset] = {}


def create_model(name: str, **fields: Any) -> nn.Module:
    """Build a model by its name; keyword arguments override the module's fields.

    >>> create_model("ViT-B/16", num_classes=10, image_size=384)

    None means "none" for a string field, as in `--config.model.positions=none`. `parent` is linen's
    own: with `parent=None` the module belongs to none that is being set up.

    Raises:
        ValueError: there is no such name or field; the message has the nearest ones.
    """
    preset = get_preset(name)
    known = model_fields(name)
    for field in fields:
        if field not in known and field != "parent":
            own = own_field(field, known)
            hint = f"; did you mean {own!r}?" if own else _nearest(field, known)
            if field in OF_TOKENS:
                hint = ", because it needs all tokens of its grid; a ViT has it"
            raise ValueError(
                f"{name} has no field {shown(field)}{hint}; its fields are {', '.join(known)}."
            )
    meant = {
        field: "none" if value is None and isinstance(known.get(field), str) else value
        for field, value in fields.items()
    }
    own = dict(preset.fields)
    if "mlp_ratio" in meant and "mlp_width" not in meant and "mlp_width" in own:
        own["mlp_width"] = None  # the name's width would take precedence over the ratio
    return preset.architecture(**{**own, **meant})


def list_models(pattern: str = "*") -> list[str]:
    """Return the names that match a shell pattern such as `"ViT-B/*"`, by family, then by size."""
    return [name for name in MODELS if fnmatch.fnmatchcase(name.lower(), pattern.lower())]


def model_fields(name: str) -> dict[str, Any]:
    """Return the fields of a model with their default values in `create_model`."""
    preset = get_preset(name)
    fields = {
        field.name: field.default
        for field in dataclasses.fields(preset.architecture)
        if field.name not in ("parent", "name")  # linen's own
    }
    return {name: _plain(value) for name, value in {**fields, **preset.fields}.items()}


def get_preset(name: str) -> Preset:
    """Return the preset of a name. Raises ValueError with the nearest names if there is none."""
    if not isinstance(name, str) or name not in MODELS:
        raise ValueError(
            f"there is no model {shown(name)}{suggest_model(name)}; list_models() lists all names."
        )
    return MODELS[name]


def suggest_model(name: Any) -> str:
    """Return the hint for an unknown name: `; did you mean 'ViT-B/16'?`.

    For a known name of another library the hint is our name, with the stated image size.
    """
    if not isinstance(name, str):
        return ""
    own = own_name(name, MODELS)
    if own is None:
        return _nearest(name[:200], MODELS)
    size = stated_size(name)
    other = size is not None and size != model_fields(own)["image_size"]
    return f"; did you mean {own!r}{f' with image_size={size}' if other else ''}?"


def register(name: str, architecture: type[nn.Module], source: str, **fields: Any) -> None:
    """Add a name to those of `create_model` and `config.model.name`.

    >>> register("TinyNet-S", TinyNet, "my thesis, table 2", width=64)

    A class with the same module and name replaces the older class, as when a notebook's cell is run
    again.

    Args:
        name: a new name.
        architecture: a linen module class with the fields `num_classes`, `image_size` and
            `in_channels`, defaults for all fields, and `__call__(images, *, train=False)`.
        source: reference of the numbers.
        fields: values that differ from the defaults of the class.

    Raises:
        ValueError: the name is taken, or the class lacks a requirement.
        UserError: a class from outside this package declares roles, and a parameter has none.
    """
    caller = sys._getframe(1).f_globals.get("__name__", "__main__")
    _check_architecture(name, architecture, fields)
    known = MODELS.get(name)
    own = not outside((architecture.__module__,))
    if known is not None and (own or not same_place(known.architecture, architecture)):
        raise ValueError(f"the model name {name!r} is taken already.")
    if not own and hasattr(architecture, "roles"):
        _check_roles(architecture(**fields))
    modules = tuple(dict.fromkeys((architecture.__module__, caller)))
    MODELS[name] = Preset(architecture, fields, source, modules)


def outside_modules(name: str) -> tuple[str, ...]:
    """Return the modules outside this package that another process imports to know a name."""
    return outside(get_preset(name).modules)


def _check_roles(model: nn.Module) -> None:
    """Raise UserError if a parameter has no role in the table that its model declares."""
    if model_roles(model) is None:
        return
    describe(abstract_variables(model)["params"], model_roles(model))


_REQUIRED = ("num_classes", "image_size", "in_channels")


def _check_architecture(name: str, architecture: Any, fields: dict[str, Any]) -> None:
    """Raise ValueError with all missing requirements for a class that cannot be trained by name."""
    if not (isinstance(architecture, type) and issubclass(architecture, nn.Module)):
        given = getattr(
            architecture, "__name__", f"an object of type {type(architecture).__name__}"
        )
        raise ValueError(f"{name}: {given} is no class of linen modules (flax.linen.Module).")
    known = {
        f.name: f for f in dataclasses.fields(architecture) if f.name not in ("parent", "name")
    }
    missing = [f"the field {field!r}" for field in _REQUIRED if field not in known]
    missing += [
        f"a default of the field {field!r}"
        for field, about in known.items()
        if about.default is dataclasses.MISSING and field not in fields
    ]
    call = inspect.signature(architecture.__call__).parameters
    keywords = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in call.values())
    if not keywords and ("train" not in call or call["train"].default is inspect.Parameter.empty):
        missing.append("the argument 'train' of __call__, with the default False")
    if missing:
        raise ValueError(
            f"{name}: the class {architecture.__name__} lacks {', '.join(missing)}; an "
            f"architecture has the fields {', '.join(_REQUIRED)}, a default for every field, and "
            "__call__(images, *, train=False)."
        )
    for field in fields:
        if field not in known:
            raise ValueError(f"{name}: the class {architecture.__name__} has no field {field!r}.")


def _plain(value: Any) -> Any:
    """Return a field as JSON knows it: a frozen mapping as a dictionary."""
    return value.unfreeze() if isinstance(value, FrozenDict) else value


def _nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint such as `; did you mean 'ViT-B/16'?`, or "" without a near name."""

    def bare(name: str) -> str:  # vit_b_16, ViT-B-16 and ViT-B/16 are equal
        return re.sub(r"[^a-z0-9]", "", name.lower())

    by_bare = {bare(name): name for name in known}
    close = difflib.get_close_matches(bare(word), by_bare, n=3, cutoff=0.5)
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(by_bare[match]) for match in close) + "?"
