"""The samples in a tar file: members whose names are equal up to the first dot.

    a/000.jpg  a/000.txt  a/000.cls  a/001.jpg ...

Nothing is unpacked, so the names of members are only names. Images are read later by their places;
texts and labels, which are small, are read with the headers, once for each file in a process.

Source of the format: the WebDataset library, `webdataset/tariterators.py`.
"""

import functools
import json
import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from vit_jax.data.paths import as_text, image_extensions, some_of
from vit_jax.errors import UserError

_BLOCK = 512
_MOST_BYTES = 2**20  # of a text
_TEXTS = ("txt", "caption", "json")  # members with captions, the first one counts
_KEYS = ("caption", "captions", "text", "texts")  # of a JSON record with captions
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZ": "bzip2", b"\xfd7": "xz", b"\x28\xb5": "zstd"}


class Sample(NamedTuple):
    """An image in a shard.

    name: of its member. offset, size: where its bytes are. captions: empty without any.
    label: content of `.cls`; None without one.
    """

    name: str
    offset: int
    size: int
    captions: tuple[str, ...]
    label: str | None


class Shard(NamedTuple):
    """A tar file: its samples with an image, names of those without, and sentences on it."""

    samples: tuple[Sample, ...]
    imageless: tuple[str, ...]
    notes: tuple[str, ...]


def read_shard(path: str) -> Shard:
    """Return the samples of a tar file, which is read once.

    Raises:
      UserError: it cannot be read, or is damaged, cut off or compressed.
    """
    try:
        status = os.stat(path)
    except OSError as error:
        raise UserError(f"{as_text(path)} cannot be read: {error.strerror}") from error
    return _read(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(4096)
def _read(path: str, size: int, changed: int) -> Shard:
    del changed  # a shard that was written again is read again
    where = as_text(path)
    samples: dict[str, dict[str, tarfile.TarInfo]] = {}
    contents: dict[tuple[str, str], str] = {}
    twice: list[str] = []
    try:
        with open(path, "rb") as file:
            _check_start(where, file.read(_BLOCK))
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for member in tar:
                    _check_end(where, member.name, member.offset_data + member.size, size)
                    tar.members = []  # it keeps every header otherwise
                    if not member.isfile() or (parts := _parts(member.name)) is None:
                        continue
                    key, ending = parts
                    sample = samples.setdefault(key, {})
                    if ending in sample:
                        twice.append(member.name)
                    sample[ending] = member
                    if ending in _TEXTS or ending == "cls":
                        contents[key, ending] = _text(where, file, member)
                end = tar.offset
            notes = _notes_on_end(where, file, end)
    except tarfile.TarError as error:
        raise UserError(
            f"{where} is damaged or cut off ({error}); copy or download it again"
        ) from error
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror or error}") from error
    if twice:
        raise UserError(
            f"{where} has {len(twice):,} members whose name an earlier one has too,"
            f" {some_of(twice)}; write it again with one key for each sample"
        )
    return _grouped(where, samples, contents, notes)


def _grouped(
    where: str,
    samples: dict[str, dict[str, tarfile.TarInfo]],
    contents: dict[tuple[str, str], str],
    notes: list[str],
) -> Shard:
    found, imageless, several = [], [], []
    for key, members in samples.items():
        images = [ending for ending in members if f".{ending}" in image_extensions()]
        if not images:
            imageless.append(key)
            continue
        if len(images) > 1:
            several.append(key)
        member = members[images[0]]
        label = contents.get((key, "cls"))
        captions = _captions(where, key, contents)
        place = (member.name, member.offset_data, member.size)
        found.append(Sample(*place, captions, label if label is None else label.strip()))
    if several:
        raise UserError(
            f"{where} has {len(several):,} samples with several images, {some_of(several)}; keep"
            " one in each, and give others a longer ending, such as seg.png"
        )
    return Shard(tuple(found), tuple(imageless), tuple(notes))


def _parts(name: str) -> tuple[str, str] | None:
    """Return the key of a member and its ending in lower case; None for one that is no data."""
    folder, _, base = name.rpartition("/")
    stem, dot, ending = base.partition(".")
    if not stem or not dot or stem.startswith("__"):
        return None
    return (f"{folder}/{stem}" if folder else stem), ending.lower()


def _captions(where: str, key: str, contents: dict[tuple[str, str], str]) -> tuple[str, ...]:
    """Return the captions of a sample, which may be empty."""
    for ending in _TEXTS:
        if (content := contents.get((key, ending))) is None:
            continue
        if ending != "json":
            return (content.strip(),)
        if captions := tuple(_captions_of_json(where, key, content)):
            return captions
    return ()


def _captions_of_json(where: str, key: str, content: str) -> Iterator[str]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {key}.json is not JSON: {error}") from error
    if isinstance(value, dict):
        value = next((value[name] for name in _KEYS if name in value), [])
    for text in value if isinstance(value, list) else [value]:
        if isinstance(text, str):
            yield text.strip()


def _text(where: str, file: BinaryIO, member: tarfile.TarInfo) -> str:
    """Return the text of a member; the place in the file is as before."""
    if member.size > _MOST_BYTES:
        raise UserError(
            f"{where}: {member.name} has {member.size:,} bytes, more than a text of a sample may"
            f" have, {_MOST_BYTES:,}"
        )
    place = file.tell()
    file.seek(member.offset_data)
    content = file.read(member.size)
    file.seek(place)
    return content.decode("utf-8", "replace")


# ------------------------------------------------------------------------------ damage


def _check_start(where: str, start: bytes) -> None:
    if not start:
        raise UserError(f"{where} is empty; copy or download it again")
    if kind := _COMPRESSED.get(start[:2]):
        raise UserError(
            f"{where} is compressed ({kind}); unpack it to a plain .tar, because images are read by"
            " their places in it"
        )


def _check_end(where: str, name: str, end: int, size: int) -> None:
    if end > size:
        raise UserError(
            f"{where} is cut off: {name!r} ends at byte {end:,}, but the file has {size:,}; copy or"
            " download it again"
        )


def _notes_on_end(where: str, file: BinaryIO, end: int) -> list[str]:
    """Return a note if the mark of the end is missing; raise UserError if other bytes are there.

    The library stops at a damaged header in silence.
    """
    file.seek(end)
    block = file.read(_BLOCK)
    if any(block) and len(block) < _BLOCK:
        raise UserError(
            f"{where} is cut off: at byte {end:,} a member begins of which {len(block):,} bytes are"
            " there; copy or download it again"
        )
    if any(block):
        raise UserError(
            f"{where} is damaged: at byte {end:,} there is neither a member nor the end; copy or"
            " download it again"
        )
    if len(block) == _BLOCK:
        return []
    return [f"{where} has no mark of its end, as if it were cut off behind a member"]
