"""Helpers shared by the weights formats of all convolutional networks."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import hugging_face
from vit_jax.weights.ecosystems import processors, timm_arguments, timm_writing
from vit_jax.weights.ecosystems.hugging_face_writing import labels_of
from vit_jax.weights.formats import MOST_BLOCKS, Hints, side_or_pair
from vit_jax.weights.mapping import SAME, Layout, Row, Tensors

CONV_AXES = "out, in, height, width"

# A 1 x 1 convolution's weight (out, in, 1, 1) of torch, to our dense kernel (in, out).
POINTWISE = Layout(
    lambda arrays, shape: arrays[0].reshape(shape[::-1]).T,
    lambda x: [x.transpose(1, 0)[:, :, None, None]],
)

IGNORED = {
    r"(.*\.)?num_batches_tracked": "the number of batches of a BatchNorm, which is not used here",
}


def batch_norm(ours: str, theirs: str) -> tuple[Row, ...]:
    """Return the rows of a BatchNorm with torch's names of parameters and running statistics."""
    return (
        Row(f"{ours}/scale", f"{theirs}.weight", SAME),
        Row(f"{ours}/bias", f"{theirs}.bias", SAME),
        Row(f"batch_stats/{ours}/mean", f"{theirs}.running_mean", SAME),
        Row(f"batch_stats/{ours}/var", f"{theirs}.running_var", SAME),
    )


def with_counters(
    tensors: dict[str, np.ndarray], fields: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Add the number of batches, 0, that torch stores with the statistics of each BatchNorm."""
    ends = {"running_mean": "num_batches_tracked"}
    norms = [name.rpartition(".") for name in tensors]
    counters = {
        f"{norm}.{ends[end]}": np.zeros((), np.int64) for norm, _, end in norms if end in ends
    }
    return {**tensors, **counters}


def count_stages(tensors: Tensors, name: str, first: int = 0) -> int:
    """Return the number of stages; `name` has `{i}` in place of a stage's number."""
    stages = 0
    while name.replace("{i}", str(first + stages)) in tensors:
        stages += 1
    if stages > MOST_BLOCKS:
        raise UserError(
            f"the file has {stages} stages, more than any network; at most {MOST_BLOCKS} are read"
        )
    return stages


def size_of_images(hints: Hints, configured: tuple[int, int] | None, usual: Any = 224) -> Any:
    """Return the image size of a model, which tensors do not determine."""
    size = hints.image_size or configured
    return side_or_pair(size) if size else usual


# -------------------------------------------------------------------------------------------- timm


def timm_size(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return (height, width) of images in timm's configuration."""
    return timm_arguments.input_size_of(timm_arguments.pretrained_of(config))


def timm_preprocessing(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Preprocessing` in timm's configuration, except the size."""
    return timm_arguments.preprocessing_of({}, timm_arguments.pretrained_of(config), (1, 1))


def timm_names(config: Mapping[str, Any], num_classes: int) -> tuple[str, ...] | None:
    """Return the class names in timm's configuration; None without names."""
    return timm_arguments.label_names(config, num_classes)


def timm_config(
    architecture: str,
    arguments: Mapping[str, Any],
    fields: Mapping[str, Any],
    preprocessing: Preprocessing,
    class_names,
    *,
    first: str,
    classifier: str,
) -> dict[str, Any]:
    """Return timm's `config.json` of a model, for `timm.create_model("local-dir:FOLDER")`.

    Args:
        first, classifier: timm's names of the first convolution and of the head.
    """
    return {
        "architecture": architecture,
        "num_classes": fields["num_classes"],
        "model_args": {"in_chans": fields["in_channels"], **arguments},
        "pretrained_cfg": timm_writing.pretrained_cfg(
            fields, preprocessing, class_names, first=first, classifier=classifier
        ),
    }


# ------------------------------------------------------------------------------------ transformers


def transformers_preprocessing(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Preprocessing` in the processor's configuration of a model."""
    return processors.read(config.get("preprocessor") or {}, (1, 1), config.get("model_type"))


def transformers_config(
    kind: str, classes: tuple[str, str], fields: Mapping[str, Any], class_names
) -> dict[str, Any]:
    """Return the entries common to every `config.json` of transformers.

    Args:
        kind: transformers' model_type. classes: its classes without a head and with one.
    """
    return {
        "model_type": kind,
        "architectures": [classes[bool(fields["num_classes"])]],
        "num_channels": fields["in_channels"],
        **labels_of(class_names),
    }


def transformers_names(config: Mapping[str, Any], num_classes: int) -> tuple[str, ...] | None:
    """Return the class names in transformers' configuration; None without names."""
    return hugging_face.class_names_of(config) if num_classes else None


def without_prefix(tensors: Tensors, kind: str) -> Tensors:
    """Remove the prefix of names that transformers' class with a head has."""
    return {name.removeprefix(f"{kind}."): array for name, array in tensors.items()}


def with_prefix(
    tensors: dict[str, np.ndarray], fields: Mapping[str, Any], kind: str
) -> dict[str, np.ndarray]:
    """Return the names of transformers' class with a head, which prefixes those of the model."""
    if not fields["num_classes"]:
        return tensors
    return {
        name if name.startswith("classifier.") else f"{kind}.{name}": array
        for name, array in tensors.items()
    }
