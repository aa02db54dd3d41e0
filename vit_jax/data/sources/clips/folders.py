"""Folders of frames: each clip is a folder with an image for every frame.

    actions/wave/clip1/000.png          frames:actions, undivided: a part is held out for testing
    actions/train/wave/clip1/000.png    divided: train/, val/ and test/, as for images
    clips/clip1/000.png                 without labels (data.labels=False)

Frames are in the order of the numbers in their names. Only those that a model takes are decoded.
Classes, splits, links and hidden files are as in `folder:PATH`, see `sources/folder.py`; a clip is
held out as a whole.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8

from vit_jax.data.features import CLIP
from vit_jax.data.images.clips import decode_clip
from vit_jax.data.images.decoding import Decoding
from vit_jax.data.paths import as_text, same_form
from vit_jax.data.sources.examples import PathExamples
from vit_jax.data.sources.find_files import FileFacts
from vit_jax.data.sources.folder import list_folder
from vit_jax.data.sources.splits import SPLIT_NAMES, Files, Listing
from vit_jax.errors import UserError

KIND = "frames"


def list_clips(
    dataset: str,
    root: str,
    class_names: Sequence[str] | None = None,
    labels: bool = True,
) -> Listing:
    """Return the listing of a folder of clips, whose paths are those of the folders of frames.

    Args:
      dataset, root, class_names, labels: as for `list_folder`.

    Raises:
      UserError: as for `list_folder`; when a split is opened, images beside the folders of clips.
    """
    of_images = list_folder(dataset, root, class_names, labels)
    listing = dataclasses.replace(of_images, facts={}, image=CLIP, open_examples=FrameFolders)
    splits = {
        split: functools.partial(_clips, listing, list_files, of_images.facts)
        for split, list_files in of_images.splits.items()
    }
    return dataclasses.replace(listing, splits=splits)


def _clips(listing: Listing, list_files, facts: dict[str, FileFacts]) -> Files:
    """Return the folders of frames of a split with their classes; extends the facts."""
    clips: Files = {}
    sizes: dict[str, int] = {}
    for path, classes in list_files().items():
        folder = os.path.dirname(path)
        if not folder or (listing.labelled and _is_class(folder, classes[0])):
            where = as_text(os.path.join(listing.root, folder)).rstrip("/")
            raise UserError(
                f"{listing.dataset}: {where} contains images directly; each clip is a folder of its"
                f" own with its frames, as in {where}/clip1/000.png"
            )
        clips[folder] = classes
        sizes[folder] = sizes.get(folder, 0) + facts[path].size
    for folder, size in sizes.items():
        status = os.stat(os.path.join(listing.root, folder))
        listing.facts[folder] = FileFacts(size, status.st_dev, status.st_ino)
    return clips


def _is_class(folder: str, name: str) -> bool:
    """Return whether a folder is that of a class, in a folder of a split or not."""
    split, *rest = map(same_form, map(as_text, folder.split("/")))
    return not rest if split == name or split not in SPLIT_NAMES else rest == [name]


class FrameFolders(PathExamples):
    """Folders of frames."""

    def decode(self, path: str, name: str, how: Decoding) -> UInt8[np.ndarray, "frames h w c"]:
        return decode_clip(path, name, how)
