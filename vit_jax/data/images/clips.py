"""Clips: several frames of one size, uint8 `(frames, height, width, channels)`.

- A clip is an array, a sequence of images, or a folder of images, which are in the order of the
  numbers in their names: `2.png` comes before `10.png`.
- A model takes a fixed number of frames. They are chosen evenly: the clip is cut into so many parts
  of equal length, and the frame in the middle of each is taken; of one part the middle of the clip.
"""

import os
import re
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.images.decoding import Decoding, ImageLike, decode_as
from vit_jax.data.paths import as_text, is_hidden, is_image_name
from vit_jax.errors import DecodeError, UserError

ClipLike = str | os.PathLike | np.ndarray | Sequence[ImageLike]


def places(there: int, wanted: int) -> list[int]:
    """Return the numbers of the frames that are taken out of a clip; 0 wanted: all.

    Raises:
      ValueError: the clip is too short; the text is a clause.
    """
    if not wanted:
        return list(range(there))
    if there < wanted:
        frames = "1 frame" if there == 1 else f"{there} frames"
        raise ValueError(
            f"it has {frames}, but the model takes {wanted}; use a longer clip, or a model with"
            f" num_frames={max(there, 1)}"
        )
    return [(2 * i + 1) * there // (2 * wanted) for i in range(wanted)]


def chosen_frames(
    clip: UInt8[np.ndarray, "frames h w c"], wanted: int
) -> UInt8[np.ndarray, "wanted h w c"]:
    """Return the frames of a clip that a model takes; 0: all.

    Raises:
      UserError: it is no clip, or too short.
    """
    if clip.ndim != 4:
        raise UserError(
            f"pixels of shape {clip.shape} are no clip, which is (frames, height, width, channels);"
            f" the model takes clips of {wanted} frames: stack them with np.stack"
        )
    try:
        return clip[places(len(clip), wanted)]
    except ValueError as error:
        raise UserError(f"a clip cannot be used: {error}") from error


def still(image: UInt8[np.ndarray, "*frames h w c"]) -> UInt8[np.ndarray, "h w c"]:
    """Return the middle frame of a clip, and an image itself: what stands for it in a figure."""
    return image[places(len(image), 1)[0]] if image.ndim == 4 else image


def frame_files(folder: str | os.PathLike) -> list[str]:
    """Return the names of the images directly in a folder, in the order of their numbers."""
    with os.scandir(folder) as entries:
        names = [
            entry.name
            for entry in entries
            if is_image_name(entry.name) and not is_hidden(entry.name) and not entry.is_dir()
        ]
    return sorted(names, key=_by_number)


def decode_clip(
    clip: ClipLike, name: str | None, how: Decoding
) -> UInt8[np.ndarray, "frames h w c"]:
    """Decode the frames of a clip that are wanted, `how.frames` of them.

    Args:
      clip: a folder, pixels `(frames, h, w, c)`, or a sequence of images.
      name: of the clip in messages; default: its path.
      how: applied to every frame, with the same crop.

    Raises:
      DecodeError: a frame cannot be read, there are too few, or their sizes differ.
    """
    if name is None:
        name = as_text(clip) if isinstance(clip, str | os.PathLike) else "given as a clip"
    frames = _frames(clip, name)
    try:
        chosen = [frames[place] for place in places(len(frames), how.frames)]
    except ValueError as error:
        raise DecodeError(name, str(error)) from error
    decoded = [decode_as(frame, _name(frame, name), how) for frame in chosen]
    shapes = sorted({frame.shape for frame in decoded})
    if len(shapes) > 1:
        one, other = (f"{shape[0]} x {shape[1]}" for shape in shapes[:2])
        raise DecodeError(
            name, f"it has frames of {one} and of {other} pixels; frames of a clip have one size"
        )
    return np.stack(decoded)


def _frames(clip: ClipLike, name: str) -> Sequence[ImageLike]:
    if isinstance(clip, np.ndarray):
        if clip.ndim != 4:
            raise DecodeError(
                name,
                f"it has the shape {clip.shape}; a clip is (frames, height, width, channels)",
            )
        return clip
    if isinstance(clip, str | os.PathLike):
        if not os.path.isdir(clip):
            there = "it is a file" if os.path.exists(clip) else "there is no such folder"
            raise DecodeError(name, f"{there}; a clip is a folder with an image for each frame")
        if files := frame_files(clip):
            return [os.path.join(clip, file) for file in files]
        raise DecodeError(name, "it is a folder without images, and a clip has one for each frame")
    if isinstance(clip, Sequence) and not isinstance(clip, bytes):
        return clip
    raise DecodeError(
        name, "it is an image, but the model takes clips: arrays (frames, height, width, channels)"
    )


def _name(frame: ImageLike, clip: str) -> str:
    return as_text(frame) if isinstance(frame, str | os.PathLike) else f"a frame of {clip}"


def _by_number(name: str) -> list[tuple[int, int, str]]:
    """Return the key of an order in which digits are numbers."""
    return [
        (0, int(part), part) if part.isdecimal() else (1, 0, part)
        for part in re.split(r"(\d+)", name)
        if part
    ]
