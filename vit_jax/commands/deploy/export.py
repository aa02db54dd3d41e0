"""Command `export`: a trained model as a program or graph, or as files of another library."""

from pathlib import Path
from typing import Annotated

import typer

from vit_jax.commands.options import AsJson, Checkpoint, Out, Raw, Run, parse_checkpoint
from vit_jax.text import tell, to_json


def export(
    run: Run,
    folder: Out,
    to: Annotated[
        str,
        typer.Option(
            help="Target: stablehlo, onnx or openvino; timm, huggingface, torchvision; with "
            "texts openclip, big_vision, openai or pe."
        ),
    ] = "stablehlo",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Round the weights of an ONNX graph to 8 bits.")
    ] = False,
    images: Annotated[
        list[str] | None,
        typer.Option(help="Images to compare a graph on; default: two photographs, in parts."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Export a trained model: as a program (StableHLO), a graph (ONNX), or to other libraries."""
    from vit_jax.export.targets import LIBRARIES, export_run

    found = export_run(
        run,
        folder,
        to,
        checkpoint=parse_checkpoint(checkpoint),
        raw=raw,
        int8=int8,
        images=images or (),
    )
    if as_json:
        return print(to_json({"folder": folder, **found}))
    names = sorted(path for path in Path(folder).expanduser().iterdir())
    sizes = ", ".join(f"{path.name} ({path.stat().st_size:,} bytes)" for path in names)
    tell(f"{folder} holds {found['model']}, step {found['step']}: {sizes}")
    if to in LIBRARIES:
        return
    for name, output in found["outputs"].items():
        shape = ", ".join(map(str, output["shape"]))
        tell(f"{name:>14}  ({shape}) {output['meaning']}")
    for kind, what in (("differences", "float32"), ("int8_differences", "8 bits")):
        if kind in found:
            largest = ", ".join(f"{name} {by:.1e}" for name, by in found[kind].items())
            tell(f"compared on {found['compared_on']} images, in {what}: differs by {largest}")
