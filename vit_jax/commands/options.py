"""What several commands take, and how it is read: runs, checkpoints, layers, sizes."""

import os
from typing import Annotated

import typer

from vit_jax.errors import UserError

Run = Annotated[str, typer.Argument(help="Run folder, such as runs/digits.")]
Split = Annotated[str, typer.Option(help="train, validation or test, as the run names them.")]
Dataset = Annotated[
    str, typer.Option(help="Other data, such as folder:PATH; default: the run's own.")
]
Checkpoint = Annotated[str, typer.Option(help="last, best, or a step.")]
Raw = Annotated[
    bool,
    typer.Option(
        "--raw", help="The learned parameters, where the run keeps an average of them too."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON line.")]


def parse_checkpoint(text: str) -> int | str:
    """A checkpoint as the person named it: last, best, or a step."""
    if text in ("last", "best"):
        return text
    if text.isdecimal():
        return int(text)
    raise UserError(f"--checkpoint={text} is invalid; use last, best or a step")


def parse_layer(text: str) -> int:
    """A layer as the person named it, by its number; -1 is the last."""
    if text == "last":
        return -1
    if text.removeprefix("-").isdecimal():
        return int(text)
    raise UserError(f"--layer={text} is invalid; use last or the number of a layer, from 0")


def parse_sides(option: str, text: str) -> tuple[int, int] | None:
    """Height and width of `224x320` or `224`; None of an empty text."""
    if not text:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise UserError(f"--{option}={text} is invalid; use HEIGHTxWIDTH in pixels, or SIDE")
    return int(sides[0]), int(sides[-1])


def check_file(option: str, path: str, image: bool = False) -> None:
    """Raises UserError, before long work, for a file that could not be written after it.

    image: whether its ending must be that of a kind of image that Matplotlib writes.
    """
    folder = os.path.dirname(path) or "."
    if os.path.isdir(path):
        why = "that is a folder; name a file in it"
    elif not os.path.isdir(folder):
        why = f"there is no such folder as {folder}; make it, or name another"
    elif not os.access(path if os.path.exists(path) else folder, os.W_OK):
        why = f"writing there is not allowed; fix the permissions of {folder}, or name another"
    elif image and (unknown := _unknown_ending(path)):
        why = unknown
    else:
        return
    raise UserError(f"--{option}={path} cannot be written: {why}")


def _unknown_ending(path: str) -> str:
    """What is wrong with the ending of an image's name; empty if nothing is."""
    from matplotlib.backend_bases import FigureCanvasBase  # slow to import

    known = FigureCanvasBase.get_supported_filetypes()
    ending = os.path.splitext(path)[1].removeprefix(".").lower()
    return "" if ending in known else f"its ending must be one of {', '.join(sorted(known))}"
