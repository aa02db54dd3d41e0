"""Rows of a table and fields by the shapes in a file, which all libraries share.

A library's `Names` has its names of the layers: `{i}` is the number of a stage, `{j}` of a block.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.weights import formats
from vit_jax.weights.ecosystems import convolutions
from vit_jax.weights.ecosystems.convolutions import CONV_AXES
from vit_jax.weights.mapping import CONV, SAME, Layout, Row, Tensors, layer_norm, linear

Names = Mapping[str, str]

FIELDS = {"norm_eps": 1e-6}
BICUBIC = {**formats.IMAGENET, "crop": 0.875, "interpolation": "bicubic"}


def rows(
    names: Names, *, affine: tuple[str, str] = ("weight", "bias"), response: Layout = SAME
) -> tuple[Row, ...]:
    """Return the table of a library.

    affine: its names of scale and bias of a response norm. response: the layout of both.
    """
    block = "stages_{i}/blocks_{j}"
    of_response = [
        Row(f"{block}/mlp/grn/{ours}", f"{names['grn']}.{theirs}", response)
        for ours, theirs in zip(("scale", "bias"), affine, strict=True)
        if "grn" in names
    ]
    of_scale = [Row(f"{block}/ls/gamma", names["scale"], SAME)] if "scale" in names else []
    head = linear("head", names["head"]) if "head" in names else ()
    return (
        *linear(f"{block}/conv", names["conv"], CONV),
        *layer_norm(f"{block}/norm", names["norm"]),
        *linear(f"{block}/mlp/fc1", names["fc1"]),
        *of_response,
        *linear(f"{block}/mlp/fc2", names["fc2"]),
        *of_scale,
        *layer_norm("stages_{i}/downsample/norm", names["downsample"] + ".0"),
        *linear("stages_{i}/downsample/conv", names["downsample"] + ".1", CONV),
        *linear("patch_embed", names["patch"], CONV),
        *layer_norm("pre_norm", names["pre_norm"]),
        *layer_norm("norm", names["last_norm"]),
        *head,
    )


def has_response_norm(tensors: Tensors) -> bool:
    """Return whether the MLPs have global response normalisation, under any library's names."""
    return any(".grn." in name for name in tensors)


def read_fields(
    tensors: Tensors, names: Names, image_size: Any, norm_eps: float = 1e-6
) -> dict[str, Any]:
    """Return the model's fields, from the shapes of tensors under one library's names."""

    def named(part: str, stage: int = 0) -> str:
        return names[part].replace("{i}", str(stage)).replace("{j}", "0")

    conv = names["conv"] + ".weight"
    stages = range(convolutions.count_stages(tensors, conv.replace("{j}", "0")))
    if not stages:
        raise UserError(f"the file has no {named('conv')}.weight: it is incomplete")
    _, in_channels, patch, _ = formats.axes_of(tensors, f"{named('patch')}.weight", CONV_AXES)
    hidden, width = formats.axes_of(tensors, f"{named('fc1')}.weight", "out, in")
    if hidden % width:
        raise UserError(f"its MLPs are {hidden} wide with {width} channels, which is no multiple")
    return {
        "num_classes": formats.outputs_of(tensors, f"{named('head')}.weight")
        if "head" in names
        else 0,
        "image_size": image_size,
        "in_channels": in_channels,
        "depths": tuple(
            formats.count_blocks(
                tensors,
                conv.replace(".", r"\.").replace("{i}", str(stage)).replace("{j}", r"(\d+)"),
            )
            for stage in stages
        ),
        "widths": tuple(
            formats.axes_of(tensors, f"{named('conv', stage)}.weight", CONV_AXES)[0]
            for stage in stages
        ),
        "patch_size": patch,
        "kernel_size": formats.axes_of(tensors, f"{named('conv')}.weight", CONV_AXES)[2],
        "mlp_ratio": hidden // width,
        "layer_scale": 1e-6 if "scale" in names and named("scale") in tensors else None,
        "response_norm": has_response_norm(tensors),
        "norm_eps": norm_eps,
    }


def make_format(
    name: str,
    names: Names,
    table: tuple[Row, ...],
    describe: Callable[..., formats.ModelSpec],
    **more: Any,
) -> formats.CheckpointFormat:
    """Return the format of a library, which its first block and the norm before it tell."""
    first = names["conv"].replace("{i}", "0").replace("{j}", "0") + ".weight"
    signature = (first.replace(".", r"\."), names["pre_norm"].replace(".", r"\.") + r"\.weight")
    return formats.CheckpointFormat(
        name=name,
        signature=signature,
        rows=table,
        describe=describe,
        architecture="ConvNeXt",
        **more,
    )
