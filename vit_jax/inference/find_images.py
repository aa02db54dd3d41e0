"""Lookup of images by names on the command line: files, folders, and lists of them."""

import os
import sys
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from vit_jax.data.paths import as_text, is_hidden, is_image_name
from vit_jax.errors import DecodeError, UserError

STDIN = "-"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def find_images(names: Iterable[str | os.PathLike]) -> Iterator[str | DecodeError]:
    """Yield the path of every image in some names, one by one.

    A folder means the images in and below it: those of a folder in the order of names, then those
    of its sub-folders. Only names of one folder are in memory. A file is always an image.

    Yields:
        Paths, and an error for a folder without images or without read permission.
    """
    for name in names:
        if os.path.isdir(name):
            yield from _walk(os.fspath(name))
        else:
            yield os.fspath(name)


def find_clips(names: Iterable[str | os.PathLike]) -> Iterator[str]:
    """Yield the folder of every clip in some names, one by one: those with images directly in them.

    Folders are in the order of their names. A name without any, or of a file, is yielded itself.
    """
    for name in names:
        found = False
        for folder, folders, files in os.walk(name, followlinks=True):
            folders[:] = sorted(one for one in folders if not is_hidden(one))
            if any(is_image_name(file) and not is_hidden(file) for file in files):
                folders.clear()  # what is below the frames of a clip is no part of it
                found = True
                yield folder
        if not found:
            yield os.fspath(name)


def read_lists(names: Iterable[str]) -> Iterator[str]:
    """Yield the names, with `@FILE` and `-` replaced by the lines of that file or of stdin.

    Raises:
        UserError: a list cannot be read; raised before the first name.
    """
    lists = {}
    for name in (names := list(names)):
        if is_list(name) and name not in lists:
            lists[name] = _open_list(name)
    return _names(names, lists)


def is_list(name: str) -> bool:
    """Return whether a name means a list of names."""
    return name == STDIN or (name.startswith("@") and len(name) > 1 and not os.path.exists(name))


def _names(names: list[str], lists: dict[str, BinaryIO]) -> Iterator[str]:
    for name in names:
        if name in lists:
            with lists[name] as lines:
                yield from _lines(lines)
        else:
            yield name


def _open_list(name: str) -> BinaryIO:
    if name == STDIN:
        return sys.stdin.buffer
    try:
        return open(name[1:], "rb")
    except OSError as error:
        raise UserError(
            f"the list of images {as_text(name[1:])} cannot be read: {error.strerror}; use a text"
            " file with one path per line"
        ) from error


def _lines(lines: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(lines):
        line = line.removeprefix(_BYTE_ORDER_MARK) if number == 0 else line
        if line := line.rstrip(b"\r\n"):
            yield os.fsdecode(line)


def _walk(top: str) -> Iterator[str | DecodeError]:
    waiting, seen, found = [top], set(), False
    while waiting:
        folder = waiting.pop()
        try:
            status = os.stat(folder)
            if (status.st_dev, status.st_ino) in seen:  # through a link
                continue
            seen.add((status.st_dev, status.st_ino))
            files, folders = _entries(folder)
        except OSError as error:
            found = True  # the error is reported here
            yield DecodeError(as_text(folder), f"the folder cannot be read ({error.strerror})")
            continue
        for name in files:
            found = True
            yield os.path.join(folder, name)
        waiting += [os.path.join(folder, name) for name in reversed(folders)]
    if not found:
        yield DecodeError(
            as_text(top),
            "it is a folder without images (files that end in .jpg, .png, .webp, .tif or similar)",
        )


def _entries(folder: str) -> tuple[list[str], list[str]]:
    """Return the names of the images and of the folders in a folder, each sorted."""
    files, folders = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif is_image_name(entry.name):
                files.append(entry.name)
    return sorted(files), sorted(folders)
