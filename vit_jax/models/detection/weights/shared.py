"""What formats of models with a head on a backbone share."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.registry import create_model, model_fields
from vit_jax.weights import formats
from vit_jax.weights.mapping import Row, Tensors

_OWN = ("num_classes", "image_size", "in_channels", "dtype")  # of the model, not of its backbone


def under(rows: Iterable[Row], theirs: str) -> tuple[Row, ...]:
    """Return the rows of a backbone with its prefixes in our paths and in their names."""
    found = []
    for row in rows:
        first, _, rest = row.ours.partition("/")
        ours = f"{first}/backbone/{rest}" if first == "batch_stats" else f"backbone/{row.ours}"
        names = (row.theirs,) if isinstance(row.theirs, str) else row.theirs
        found.append(Row(ours, tuple(theirs + name for name in names), row.layout))
    return tuple(found)


def without_prefix(tensors: Tensors, prefix: str) -> dict[str, np.ndarray]:
    """Return the tensors of a backbone by their names behind its prefix."""
    return {
        name.removeprefix(prefix): array
        for name, array in tensors.items()
        if name.startswith(prefix)
    }


def backbone_of(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the fields of a model that say its backbone.

    fields: of the backbone. name: of the registered model, from whose fields it may differ.
    """
    usual = model_fields(name)
    differ = {k: v for k, v in fields.items() if k not in _OWN and usual[k] != v}
    return {"backbone_name": name, "backbone_fields": differ}


def fields_of_backbone(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of the backbone of a model."""
    own = {name: fields[name] for name in ("image_size", "in_channels")}
    name = fields["backbone_name"]
    model = create_model(name, num_classes=0, parent=None, **own, **fields["backbone_fields"])
    return {field: getattr(model, field) for field in model_fields(name)}


def classes_of(tensors: Tensors, name: str) -> int:
    """Return the number of classes of a head whose last output is "no object"."""
    outputs = formats.axes_of(tensors, name, "out, in")[0]
    if outputs < 2:
        raise UserError(f"{name} has {outputs} output, but a detector has two at least")
    return outputs - 1


def class_names_of(config: Mapping[str, Any], classes: int) -> tuple[str, ...] | None:
    """Return the names of the classes in a configuration; None if it has none.

    COCO's numbers of classes have gaps, which get names such as "N/A".
    """
    named = config.get("id2label")
    if not isinstance(named, Mapping) or not named:
        return None
    try:
        numbered = {int(number): str(name) for number, name in named.items()}
    except ValueError:
        numbered = {}
    if not numbered or not all(0 <= number < classes for number in numbered):
        raise UserError(
            f"config.json: id2label should name outputs from 0 to {classes - 1}; it has "
            f"{str(named)[:80]}"
        )
    if all(name == f"LABEL_{number}" for number, name in numbered.items()):
        return None
    return tuple(numbered.get(number, f"unused {number}") for number in range(classes))


def preprocessing_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Preprocessing` of a file: the whole image, stretched to the size."""
    processor = config.get("preprocessor") or {}
    found = {**formats.IMAGENET, "interpolation": "bilinear", "resize": "squash", "crop": 1.0}
    for ours, theirs in (("mean", "image_mean"), ("std", "image_std")):
        if (numbers := formats.configured_numbers(processor, theirs)) is not None:
            found[ours] = numbers
    return found


def processor_of(preprocessing: Preprocessing, kind: str) -> dict[str, Any]:
    """Return the content of `preprocessor_config.json`, of a kind such as "Detr"."""
    height, width = preprocessing.size
    return {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "do_rescale": True,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_pad": False,
    }


def labels_of(class_names: Iterable[str]) -> dict[str, Any]:
    """Return the names of classes as configurations have them."""
    names = tuple(class_names)
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
