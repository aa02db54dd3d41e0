"""Shared command-line options and their parsers: runs, checkpoints, layers, sizes."""

import os
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vit_jax.errors import UserError

if TYPE_CHECKING:
    from vit_jax.inference.ensembles.ensemble import Ensemble

Run = Annotated[str, typer.Argument(help="Run folder, such as runs/digits.")]
Out = Annotated[str, typer.Argument(help="Folder to write; must be empty or missing.")]
Split = Annotated[str, typer.Option(help="Split: train, validation or test.")]
Dataset = Annotated[str, typer.Option(help="Dataset, such as folder:PATH; default: the run's own.")]
Checkpoint = Annotated[str, typer.Option(help="Checkpoint: last, best, or a step.")]
Raw = Annotated[
    bool,
    typer.Option("--raw", help="Use the raw parameters instead of their moving average."),
]
Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        help="Field of the model to change, such as tome_r=8 or keep_ratio=0.7; repeatable.",
        metavar="NAME=VALUE",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON line.")]

Together = Annotated[
    list[str] | None,
    typer.Option("--ensemble", help="Another run to average with, or a folder of runs."),
]
Average = Annotated[str, typer.Option(help="Mean of an ensemble: of probabilities or logits.")]
Weights = Annotated[str, typer.Option(help="Weights of the runs of an ensemble, such as 2,1,1.")]
Views = Annotated[
    str,
    typer.Option("--tta", help="Views of each image to average: flip, crops, scales, or several."),
]
Calibrated = Annotated[
    bool, typer.Option("--calibrated", help="Divide logits by the run's fitted temperature.")
]


def parse_weights(text: str) -> list[float]:
    """Parse weights such as `2,1,1`; none for an empty text."""
    try:
        return [float(part) for part in text.split(",")] if text else []
    except ValueError as error:
        raise UserError(f"--weights={text} is invalid; use numbers such as 2,1,1") from error


class Averaging(NamedTuple):
    """Options of an ensemble, as they were given. others: runs besides the first."""

    run: str
    others: list[str] | None
    average: str
    weights: str
    tta: str
    calibrated: bool

    def is_asked(self) -> bool:
        """Return whether the answer is to be that of more than one run as it is.

        Raises UserError for an unknown average, which would have no effect on a single run.
        """
        from vit_jax.inference.ensembles.ensemble import check_average, runs_in

        check_average(self.average)
        asked = self.others or self.tta or self.calibrated or self.weights
        return bool(asked) or len(runs_in(self.run)) > 1

    def load(self, checkpoint: str, raw: bool, fields: dict[str, Any]) -> "Ensemble":
        """Return the ensemble; arguments as the options, with parsed fields."""
        from vit_jax.inference.ensembles.ensemble import load_ensemble

        return load_ensemble(
            [self.run, *(self.others or ())],
            parse_checkpoint(checkpoint),
            raw=raw,
            weights=parse_weights(self.weights),
            average=self.average,
            tta=self.tta,
            calibrated=self.calibrated,
            **fields,
        )


def parse_checkpoint(text: str) -> int | str:
    """Parse a checkpoint: last, best, or a step."""
    if text in ("last", "best"):
        return text
    if text.isdecimal():
        return int(text)
    raise UserError(f"--checkpoint={text} is invalid; use last, best or a step")


def parse_fields(texts: list[str] | None) -> dict[str, Any]:
    """Parse fields of a model, `tome_r=8`."""
    from vit_jax.config import literal

    fields = {}
    for text in texts or ():
        field, equals, value = text.partition("=")
        if not field or not equals:
            raise UserError(f"--field={text} is invalid; use NAME=VALUE, such as tome_r=8")
        fields[field.replace("-", "_")] = literal(value)
    return fields


def parse_layer(text: str) -> int:
    """Parse a layer number; return -1 for last."""
    if text == "last":
        return -1
    if text.removeprefix("-").isdecimal():
        return int(text)
    raise UserError(f"--layer={text} is invalid; use last or the number of a layer, from 0")


def parse_sides(option: str, text: str) -> tuple[int, int] | None:
    """Parse height and width of `224x320` or `224`; return None for an empty text."""
    if not text:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise UserError(f"--{option}={text} is invalid; use HEIGHTxWIDTH in pixels, or SIDE")
    return int(sides[0]), int(sides[-1])


def check_file(option: str, path: str, image: bool = False) -> None:
    """Raise UserError for a file that cannot be written, before long work.

    image: whether its extension must be an image format that Matplotlib writes.
    """
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        why = "it is a folder; name a file in it"
    elif not os.path.isdir(folder):
        why = f"there is no folder {folder}; create it, or choose another"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        why = f"permission denied; fix the permissions of {folder}, or choose another"
    elif image and (unknown := _unknown_ending(path)):
        why = unknown
    else:
        return
    raise UserError(f"--{option}={path} cannot be written: {why}")


def _unknown_ending(path: str) -> str:
    """Return the error of an unknown image extension; empty for a known one."""
    from matplotlib.backend_bases import FigureCanvasBase  # slow to import

    known = FigureCanvasBase.get_supported_filetypes()
    ending = os.path.splitext(path)[1].removeprefix(".").lower()
    return (
        "" if ending in known else f"the file extension must be one of {', '.join(sorted(known))}"
    )
