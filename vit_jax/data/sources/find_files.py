"""Lookup of the files that a table names; each file gets one path, however it is spelled.

    finder = FileFinder("pets")
    finder.find("./pix//a.png").path  # 'pix/a.png'
    finder.find("/data/pets/pix/a.png").path  # 'pix/a.png'
    finder.find("pix/a").path  # 'pix/a.png', if no other image has this name

- The path of a file is its real location below the folder of the table. Links are resolved if they
  lead to a visible location below that folder, or if a link directly in that folder leads there.
- A name may differ from the disk in its Unicode form, in case if the file system ignores case, or
  by backslashes.
"""

import collections
import functools
import os
from collections.abc import Iterator
from typing import NamedTuple

from vit_jax.data.paths import as_path, as_text, is_hidden, is_image_name, same_form, some_of

_MOST_FILES_BELOW = 500_000  # limit of files below a folder that is searched


class FileFacts(NamedTuple):
    """Size of a file in bytes, and its identity: device and inode.

    size is -1 for a missing file; inode is 0 if the system has none.
    """

    size: int
    device: int = 0
    inode: int = 0

    @property
    def identity(self) -> tuple[int, int] | None:
        """Return a value that is equal for two paths of one file; None if unknown."""
        return (self.device, self.inode) if self.inode else None


MISSING = FileFacts(-1)


class Found(NamedTuple):
    """File of a table: its path from the table's folder, its location and its facts."""

    path: str
    facts: FileFacts


def facts_of(status: os.stat_result) -> FileFacts:
    """Return the facts in a file's status."""
    return FileFacts(status.st_size, status.st_dev, status.st_ino)


class FileFinder:
    """Finder of files; every folder is listed once.

    root: the folder of the table; paths of files are relative to it.
    start: the folder that relative names start from; by default the root.
    """

    def __init__(self, root: str, start: str | None = None):
        self._root = os.path.realpath(root or ".")
        self.start = self._root if start is None else os.path.realpath(start)
        self._folders: dict[str, str | None] = {}
        self._listings: dict[str, _Names] = {}

    def find(self, name: str) -> Found:
        """Return the file of a name, with or without the extension of an image.

        Raises:
          ValueError: no file can have that name, or several images differ only in extension.
        """
        path = as_path(name)
        place = self._place(path)
        if place is None and "\\" in path:
            place = self._place(path.replace("\\", "/"))
        return self._found(path, place)

    def find_below(self, name: str, preferred: frozenset[str] = frozenset()) -> Found:
        """Return the only file below the root whose path ends in a name, with or without extension.

        Args:
          name: as the table writes it.
          preferred: names of folders that decide between several files.

        Raises:
          ValueError: no file can have that name, or there are several files.
        """
        path = os.path.normpath(as_path(name).replace("\\", "/"))
        endings = [path.split("/")]
        found = [
            file
            for file in self._files_below.get(_stem(path), ())
            for ending in endings
            if _ends_in(file.split("/"), ending)
        ]
        if len(found) > 1 and preferred:
            found = [file for file in found if preferred & set(file.split("/")[:-1])] or found
        if len(found) > 1:
            names = some_of(sorted(map(as_text, found)))
            raise ValueError(
                f"there are {names}; set their folder with --config.data.image_dir=FOLDER"
            )
        return self._found(path, os.path.join(self._root, found[0]) if found else None)

    # ------------------------------------------------------------------------ from a name to a file

    def _place(self, path: str) -> str | None:
        """Return the location of a file, its folder's links resolved; None if it is missing."""
        folder, name = os.path.split(os.path.join(self.start, path))
        real_folder = self._folder(folder)
        if real_folder is None or name in ("", ".", ".."):
            return None
        actual = self._actual(real_folder, name)
        if actual is None and not is_image_name(name):
            names = self._names(real_folder).with_stem(name)
            if len(names) > 1:
                raise ValueError(f"it may be {some_of(sorted(map(as_text, names)))}")
            actual = names[0] if names else None
        place = actual and os.path.join(real_folder, actual)
        return place if place and os.path.isfile(place) else None

    def _folder(self, path: str) -> str | None:
        if path not in self._folders:
            self._folders[path] = self._find_folder(path)
        return self._folders[path]

    def _find_folder(self, path: str) -> str | None:
        parent, name = os.path.split(path)
        if os.path.isdir(path) and (name in ("", ".", "..") or parent == path):
            return os.path.realpath(path)
        real_parent = self._folder(parent) if parent != path else None
        if real_parent is None or not name:
            return real_parent
        actual = self._actual(real_parent, name)
        place = actual and os.path.join(real_parent, actual)
        return os.path.realpath(place) if place and os.path.isdir(place) else None

    def _actual(self, folder: str, name: str) -> str | None:
        """Return the name on disk of an entry of a folder."""
        names = self._names(folder)
        if name in names.all:
            return name
        for alike in (names.of_form(name), names.of_case(name)):
            same = [other for other in alike if _is_same(folder, name, other, alike)]
            if same:
                return same[0]
        # A folder that may be entered but not listed can still have the file.
        return name if os.path.lexists(os.path.join(folder, name)) else None

    def _names(self, folder: str) -> "_Names":
        if folder not in self._listings:
            self._listings[folder] = _Names(folder)
        return self._listings[folder]

    @functools.cached_property
    def _files_below(self) -> dict[str, list[str]]:
        """Images below the root, by their names without folder and extension."""
        files = collections.defaultdict(list)
        for count, path in enumerate(_walk(self._root)):
            if count == _MOST_FILES_BELOW:
                return {}
            files[_stem(path)].append(path)
        return files

    # ------------------------------------------------------------------------ from a file to a path

    def _found(self, path: str, place: str | None) -> Found:
        if place is None:
            return Found(self._tidy(path), MISSING)
        try:
            facts = facts_of(os.stat(place))
        except OSError:
            facts = MISSING
        return Found(self._path(place, path), facts)

    def _path(self, place: str, path: str) -> str:
        """Return the unique path of a file from the root."""
        real = os.path.realpath(place) if os.path.islink(place) else place
        for candidate in (real, place):
            if inside := self._inside(candidate):
                return inside
        tidy = self._tidy(path)
        leaves = os.path.isabs(tidy) or tidy.split("/")[0] == ".."
        return os.path.relpath(place, self._root) if leaves else tidy

    def _inside(self, real: str) -> str | None:
        """Return the path of a visible real location from the root, through a link in it or not."""
        for target, name in ((self._root, ""), *self._links):
            if real.startswith(os.path.join(target, "")):
                inside = os.path.join(name, os.path.relpath(real, target))
                if not any(part.startswith(".") for part in inside.split("/")[:-1]):
                    return inside
        return None

    def _tidy(self, path: str) -> str:
        """Return the path of a name from the root, as it is written."""
        if self.start != self._root and not os.path.isabs(path):
            path = os.path.relpath(os.path.join(self.start, path), self._root)
        elif path.startswith(os.path.join(self._root, "")):
            path = os.path.relpath(path, self._root)
        return os.path.normpath(path)

    @functools.cached_property
    def _links(self) -> list[tuple[str, str]]:
        """Target folders of links directly in the root, with the names of the links."""
        links = []
        for name in sorted(self._names(self._root).all):
            path = os.path.join(self._root, name)
            if not name.startswith(".") and os.path.islink(path) and os.path.isdir(path):
                links.append((os.path.realpath(path), name))
        return links


class _Names:
    """Names in a folder; none if it cannot be listed."""

    def __init__(self, folder: str):
        try:
            self.all = frozenset(os.listdir(folder))
        except OSError:
            self.all = frozenset()

    def of_form(self, name: str) -> list[str]:
        """Return the names that are equal in another Unicode form."""
        return self._forms.get(same_form(name), [])

    def of_case(self, name: str) -> list[str]:
        """Return the names that differ only in case and Unicode form."""
        return self._cases.get(same_form(name).casefold(), [])

    def with_stem(self, name: str) -> list[str]:
        """Return the names of images that equal a name without their extension."""
        return self._stems.get(same_form(name), [])

    @functools.cached_property
    def _forms(self) -> dict[str, list[str]]:
        return _grouped((same_form(name), name) for name in self.all)

    @functools.cached_property
    def _cases(self) -> dict[str, list[str]]:
        return _grouped((same_form(name).casefold(), name) for name in self.all)

    @functools.cached_property
    def _stems(self) -> dict[str, list[str]]:
        images = (name for name in self.all if is_image_name(name) and not is_hidden(name))
        return _grouped((same_form(os.path.splitext(name)[0]), name) for name in images)


def _grouped(pairs: Iterator[tuple[str, str]]) -> dict[str, list[str]]:
    groups = collections.defaultdict(list)
    for key, name in pairs:
        groups[key].append(name)
    return groups


def _is_same(folder: str, name: str, other: str, alike: list[str]) -> bool:
    """Return whether a name that is not listed is the same file as a listed name."""
    try:
        written = os.stat(os.path.join(folder, name))
    except OSError:  # the file system has both as different names: one other form must be unique
        return len(alike) == 1 and same_form(name) == same_form(other)
    return os.path.samestat(written, os.stat(os.path.join(folder, other)))


def _stem(path: str) -> str:
    """Return the name of a file without folder and image extension."""
    name = same_form(os.path.basename(path))
    return os.path.splitext(name)[0] if is_image_name(name) else name


def _ends_in(parts: list[str], ending: list[str]) -> bool:
    """Return whether a path ends in another, whose last part may lack the extension."""
    *folders, name = parts[-len(ending) :]
    *wanted, last = ending
    if list(map(same_form, folders)) != list(map(same_form, wanted)):
        return False
    return same_form(last) in (same_form(name), same_form(os.path.splitext(name)[0]))


def _walk(root: str) -> Iterator[str]:
    """Yield the paths of the visible images below a folder."""
    for folder, folders, names in os.walk(root, followlinks=False):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        for name in names:
            if is_image_name(name) and not is_hidden(name):
                yield os.path.relpath(os.path.join(folder, name), root)
