"""Captions in a table: the file of a folder that has them, and those of a line."""

import os
from collections.abc import Mapping
from typing import Any

from vit_jax.data.paths import as_text, is_image_name, some_of
from vit_jax.data.sources.manifest.columns import Columns, is_captions_name
from vit_jax.data.sources.manifest.rows import Record, Table, read_table
from vit_jax.errors import UserError

# The first is a name of ours, the second that of `imagefolder` of Hugging Face.
_NAMES = ("captions.csv", "captions.jsonl", "metadata.csv", "metadata.jsonl")


def captions_file(folder: str) -> str | None:
    """Return the file of captions in a folder of images; None without one.

    A file `metadata` is one if a column has a usual name of captions.

    Raises:
      UserError: there are two.
    """
    folder = os.path.expanduser(folder)
    found = [path for name in _NAMES if os.path.isfile(path := os.path.join(folder, name))]
    found = [path for path in found if "captions." in path or _has_captions(path)]
    if len(found) > 1:
        raise UserError(
            f"{as_text(folder)} has captions in {os.path.basename(found[0])} and in"
            f" {os.path.basename(found[1])}; keep one, or name it, as in"
            f" {found[0].rpartition('.')[2]}:{as_text(found[0])}"
        )
    return found[0] if found else None


def _has_captions(path: str) -> bool:
    try:
        table = read_table(path, path.rpartition(".")[2], (), is_image_name)
    except UserError:
        return False
    return any(map(is_captions_name, table.columns))


def check_captions(
    tables: Mapping[Any, Table], columns: Mapping[Any, Columns | None], needed: bool
) -> bool:
    """Return whether the tables of all splits have captions.

    Raises:
      UserError: only some have, or none although they are needed.
    """
    found = {split: chosen.caption for split, chosen in columns.items() if chosen}
    without = [split for split, caption in found.items() if caption is None]
    if without and (needed or len(without) < len(found)):
        table = tables[without[0]]
        but = "" if len(without) == len(found) else ", but another file beside it has"
        raise UserError(
            f"{as_text(table.file)} has no column of captions{but}; the columns are"
            f" {some_of(table.columns, 10)}; rename one to caption, or use"
            " --config.data.caption_column=NAME"
        )
    return bool(found) and not without


def captions_of(record: Record, name: str, column: str) -> tuple[str, ...]:
    """Return the captions in a line, which in JSON may be a list.

    Args:
      record: the line.
      name: its image, for messages.
      column: of the captions.

    Raises:
      ValueError: one is empty, or no text.
    """
    value: Any = record.values[column]
    captions = value if isinstance(value, list) else [value]
    for caption in captions:
        if not isinstance(caption, str):
            raise ValueError(f"the caption of {name!r} is {str(caption)[:60]!r}, which is no text")
        if not caption.strip():
            raise ValueError(f"the caption of {name!r} is empty; write one, or remove the line")
        if is_image_name(caption) and " " not in caption.strip():
            raise ValueError(
                f"the caption of {name!r} is the name of an image, {caption[:60]!r}; select the"
                " column of texts with --config.data.caption_column=NAME"
            )
    if not captions:
        raise ValueError(f"the list of captions of {name!r} is empty; write one, or remove it")
    return tuple(captions)
