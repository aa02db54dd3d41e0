"""Images that a model was trained on, and those of a source that are among them.

A test image that the starting weights or a teacher were trained on makes a test accuracy too good
to be true. A run therefore keeps a record of its training images: files by their place and, up to
`MOST_DIGESTS`, by a digest of their content, examples of TensorFlow Datasets by their numbers.
"""

import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data.paths import as_text
from vit_jax.data.sources.examples import FileExamples
from vit_jax.data.sources.source import Source

MOST_DIGESTS = 20_000  # files; reading parts of as many takes about a second from a warm disk
_WHOLE, _PART = 65_536, 16_384  # bytes: smaller files are read whole, of others three parts


def training_record(source: Source) -> dict[str, Any]:
    """A record of the images of a source, as values that JSON can hold."""
    record: dict[str, Any] = {"dataset": source.name, "split": source.split}
    if isinstance(source.examples, FileExamples):
        record |= {"root": _root(source), "files": list(source.files)}
        if len(source) <= MOST_DIGESTS:
            record["digests"] = _digests(source)
    elif source.spans:
        record |= {"builder": _builder(source), "spans": list(map(list, source.spans))}
    return record


def seen_images(source: Source, records: Sequence[Mapping[str, Any]]) -> list[int]:
    """The numbers of the examples of a source that are among the images of some records."""
    seen: set[int] = set()
    for record in records:
        if "files" in record and isinstance(source.examples, FileExamples):
            seen.update(_seen_files(source, record))
        elif "spans" in record and record.get("builder") == _builder(source):
            seen.update(_seen_examples(source, record["spans"]))
    return sorted(seen)


def _seen_files(source: Source, record: Mapping[str, Any]) -> list[int]:
    theirs = {os.path.normpath(os.path.join(record["root"], file)) for file in record["files"]}
    root = _root(source)
    places = [os.path.normpath(os.path.join(root, file)) in theirs for file in source.files]
    digests = set(filter(None, record.get("digests", ())))
    if digests and len(source) <= MOST_DIGESTS:
        mine = _digests(source)
        places = [at or digest in digests for at, digest in zip(places, mine, strict=True)]
    return [number for number, at in enumerate(places) if at]


def _seen_examples(source: Source, spans: Sequence[Sequence[Any]]) -> list[int]:
    seen, first_number = [], 0
    for split, first, end in source.spans:
        for other, start, stop in spans:
            if other == split:
                common = range(max(first, start), min(end, stop))
                seen += [first_number + index - first for index in common]
        first_number += end - first
    return seen


def _root(source: Source) -> str:
    return as_text(os.path.realpath(source.examples.root or "."))


def _builder(source: Source) -> str:
    """Name and version of a dataset of TensorFlow Datasets."""
    return source.fingerprint.partition(f":{source.split}:")[0]


def _digests(source: Source) -> list[str | None]:
    """Size and checksum of every file; None for one that cannot be read."""
    return [_digest(os.path.join(source.examples.root, path)) for path in source.examples.paths]


def _digest(path: str) -> str | None:
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            checksum = 0
            if size <= _WHOLE:
                checksum = zlib.crc32(file.read())
            else:  # the ends of a file may be the same in many, its middle not
                for start in (0, (size - _PART) // 2, size - _PART):
                    file.seek(start)
                    checksum = zlib.crc32(file.read(_PART), checksum)
    except OSError:
        return None
    return f"{size:x}-{checksum:08x}"
