"""Backbones in the files of models with a head on one: rows, tensors and fields of that part."""

from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.models.dense import OWN_FIELDS
from vit_jax.models.registry import create_model, model_fields
from vit_jax.weights.ecosystems.plain_vit import resolved_fields
from vit_jax.weights.mapping import Row, Tensors


def under(rows: Iterable[Row], theirs: str = "") -> tuple[Row, ...]:
    """Return the rows of a backbone with its prefixes in our paths and in their names."""
    found = []
    for row in rows:
        first, _, rest = row.ours.partition("/")
        ours = f"{first}/backbone/{rest}" if first == "batch_stats" else f"backbone/{row.ours}"
        names = (row.theirs,) if isinstance(row.theirs, str) else row.theirs
        found.append(Row(ours, tuple(theirs + name for name in names), row.layout))
    return tuple(found)


def without_head(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of a model but those of its classifiers."""
    return [row for row in rows if not row.ours.startswith(("head/", "head_dist/"))]


def without_prefix(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors whose names begin with a prefix, by the names behind it."""
    return {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name.startswith(prefix)
    }


def backbone_of(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of a model that its backbone decides: the images, and which one it is.

    fields: of the backbone. name: of the registered model, from whose fields it may differ.
    """
    usual = model_fields(name)
    return {
        "image_size": fields["image_size"],
        "in_channels": fields["in_channels"],
        "backbone_name": name,
        "backbone_fields": {
            field: value
            for field, value in fields.items()
            if field not in OWN_FIELDS and usual[field] != value
        },
    }


def fields_of_backbone(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of the backbone of a model, as its own formats want them."""
    own = {name: fields[name] for name in ("image_size", "in_channels")}
    name = fields["backbone_name"]
    model = create_model(name, num_classes=0, parent=None, **own, **fields["backbone_fields"])
    return {field: getattr(model, field) for field in model_fields(name)} | resolved_fields(model)
