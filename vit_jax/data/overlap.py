"""Overlap of a source with the images that a model was trained on.

If the initial weights or a teacher were trained on test images, the test accuracy is too high. A
run therefore stores a record of its training images: files by path and, up to `MOST_DIGESTS` files,
by a digest of their content, examples of TensorFlow Datasets by index.
"""

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data.paths import as_text
from vit_jax.data.sources.examples import FileExamples
from vit_jax.data.sources.source import Source
from vit_jax.data.sources.webdataset.listing import TarExamples

MOST_DIGESTS = 20_000  # files; reading parts of this many takes a second with a warm disk cache
_WHOLE, _PART = 65_536, 16_384  # bytes: smaller files are read whole, of larger ones three parts


def training_record(source: Source) -> dict[str, Any]:
    """Return a record of the images of a source, as JSON-compatible values."""
    record: dict[str, Any] = {"dataset": source.name, "split": source.split}
    if isinstance(source.examples, FileExamples | TarExamples):
        record |= {"root": _root(source), "files": list(source.files)}
        if _has_digests(source):
            record["digests"] = _digests(source)
    elif source.spans:
        record |= {"builder": _builder(source), "spans": list(map(list, source.spans))}
    return record


def seen_images(source: Source, records: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the indices of the examples of a source that are in some records."""
    seen: set[int] = set()
    for record in records:
        if "files" in record and isinstance(source.examples, FileExamples | TarExamples):
            seen.update(_seen_files(source, record))
        elif "spans" in record and record.get("builder") == _builder(source):
            seen.update(_seen_examples(source, record["spans"]))
    return sorted(seen)


def _seen_files(source: Source, record: Mapping[str, Any]) -> list[int]:
    theirs = {os.path.normpath(os.path.join(record["root"], file)) for file in record["files"]}
    root = _root(source)
    places = [os.path.normpath(os.path.join(root, file)) in theirs for file in source.files]
    digests = set(filter(None, record.get("digests", ())))
    if digests and _has_digests(source):
        mine = _digests(source)
        places = [at or digest in digests for at, digest in zip(places, mine, strict=True)]
    return [number for number, at in enumerate(places) if at]


def _seen_examples(source: Source, spans: Sequence[Sequence[Any]]) -> list[int]:
    trained: dict[str, np.ndarray] = {}
    for split, _, end in source.spans:
        trained[split] = np.zeros(max(end, len(trained.get(split, ()))), bool)
    for split, start, stop in spans:
        if split in trained:
            trained[split][start:stop] = True
    seen, first_number = [], 0
    for split, first, end in source.spans:
        seen += (np.flatnonzero(trained[split][first:end]) + first_number).tolist()
        first_number += end - first
    return seen


def _has_digests(source: Source) -> bool:
    """Return whether the files of a source are read for their digests; members of a tar are not."""
    return isinstance(source.examples, FileExamples) and len(source) <= MOST_DIGESTS


def _root(source: Source) -> str:
    return as_text(os.path.realpath(source.examples.root or "."))


def _builder(source: Source) -> str:
    """Name and version of a dataset of TensorFlow Datasets."""
    return source.fingerprint.partition(f":{source.split}:")[0]


def _digests(source: Source) -> list[str | None]:
    """Return size and checksum of every file; None for an unreadable file."""
    return [_digest(os.path.join(source.examples.root, path)) for path in source.examples.paths]


def _digest(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            checksum = 0
            if size <= _WHOLE:
                checksum = zlib.crc32(file.read())
            else:  # many files may have the same beginning and end, but not the same middle
                for start in (0, (size - _PART) // 2, size - _PART):
                    file.seek(start)
                    checksum = zlib.crc32(file.read(_PART), checksum)
    except OSError:
        return None
    return f"{size:x}-{checksum:08x}"
