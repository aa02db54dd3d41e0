"""Models by the names of their papers: `create_model("ViT-B/16", num_classes=10)`.

A name stands for an architecture class and the fields in which it differs from that class. Names
are registered where the classes are, at the end of each architecture's file, and those of the ViTs
in `vit_names`.
"""

import dataclasses
import difflib
import fnmatch
import re
from collections.abc import Iterable
from typing import Any

from flax import linen as nn

from vit_jax.errors import shown
from vit_jax.models.foreign_names import own_field, own_name, stated_size


@dataclasses.dataclass(frozen=True)
class Preset:
    """What a model name stands for.

    Attributes:
        architecture: the module class.
        fields: the fields that differ from the class's defaults.
        source: where the numbers come from.
    """

    architecture: type[nn.Module]
    fields: dict[str, Any]
    source: str


MODELS: dict[str, Preset] = {}


def create_model(name: str, **fields: Any) -> nn.Module:
    """Builds a model by its name; keyword arguments override the module's fields.

    >>> create_model("ViT-B/16", num_classes=10, image_size=384)

    None is "none" where a field is a text, which is what `--config.model.positions=none` means.

    Raises:
        ValueError: there is no such name, or no such field; the sentence names the nearest ones.
    """
    preset = get_preset(name)
    known = model_fields(name)
    for field in fields:
        if field not in known:
            own = own_field(field, known)
            hint = f"; did you mean {own!r}?" if own else _nearest(field, known)
            raise ValueError(
                f"{name} has no field {shown(field)}{hint}; its fields are {', '.join(known)}."
            )
    meant = {
        field: "none" if value is None and isinstance(known[field], str) else value
        for field, value in fields.items()
    }
    own = dict(preset.fields)
    if "mlp_ratio" in meant and "mlp_width" not in meant and "mlp_width" in own:
        own["mlp_width"] = None  # the name's; it would go first, and the ratio say nothing
    return preset.architecture(**{**own, **meant})


def list_models(pattern: str = "*") -> list[str]:
    """The names that match a shell pattern such as `"ViT-B/*"`, families first, then by size."""
    return [name for name in MODELS if fnmatch.fnmatchcase(name.lower(), pattern.lower())]


def model_fields(name: str) -> dict[str, Any]:
    """The fields of a model and the values they have if `create_model` is given none."""
    preset = get_preset(name)
    fields = {
        field.name: field.default
        for field in dataclasses.fields(preset.architecture)
        if field.name not in ("parent", "name")  # linen's own
    }
    return {**fields, **preset.fields}


def get_preset(name: str) -> Preset:
    """The record of a name. Raises ValueError with the nearest names if there is none."""
    if not isinstance(name, str) or name not in MODELS:
        raise ValueError(
            f"there is no model {shown(name)}{suggest_model(name)}; list_models() gives all names."
        )
    return MODELS[name]


def suggest_model(name: Any) -> str:
    """The end of a sentence on a name that is not there: `; did you mean 'ViT-B/16'?`.

    It is one name where another library's is known, with the size of the images that it states.
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
    """Adds a name. Raises ValueError if it is taken."""
    if name in MODELS:
        raise ValueError(f"the model name {name!r} is taken already.")
    MODELS[name] = Preset(architecture, fields, source)


def _nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'ViT-B/16'?`, or nothing where nothing is near."""

    def bare(name: str) -> str:  # vit_b_16, ViT-B-16 and ViT-B/16 are one to the person who types
        return re.sub(r"[^a-z0-9]", "", name.lower())

    by_bare = {bare(name): name for name in known}
    close = difflib.get_close_matches(bare(word), by_bare, n=3, cutoff=0.5)
    if not close:
        return ""
    return "; did you mean " + " or ".join(repr(by_bare[match]) for match in close) + "?"
