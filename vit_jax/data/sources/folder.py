"""Folder dataset: one sub-folder per class, with or without folders of splits above them.

    pets/cat/1.jpg                 undivided: a part is held out for testing
    pets/train/cat/1.jpg           divided: train/, val/ (or valid/, validation/) and test/
    pets/val/cat/2.jpg
    photos/1.jpg                   no labels: images and no folders (or so in photos/train/)

- A class is a folder of the first level; its images may be in deeper folders. Classes are numbered
  in the code-point order of their names (1, 10, 2); all splits use the classes of `train/`, or of
  the only split.
- Links are followed, and each directory and each file is read once per class, so that loops end
  and one file is one example.
- Class names are normalised to one Unicode form (NFC).
- Images beside class folders belong to no class. They are skipped if labels are used, and read if
  not; the held-out images of the classes are the same in both cases.
- Hidden and system files and folders are not data. The notes list everything else that is skipped.
"""

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence

from vit_jax.data.labels import look_alikes
from vit_jax.data.paths import (
    as_text,
    image_extensions,
    is_hidden,
    is_image_name,
    same_form,
    some_of,
)
from vit_jax.data.sources.find_files import MISSING, FileFacts, facts_of
from vit_jax.data.sources.splits import SPLIT_NAMES, Files, Listing
from vit_jax.errors import UserError, nearest


def list_folder(
    dataset: str,
    root: str,
    class_names: Sequence[str] | None = None,
    labels: bool = True,
) -> Listing:
    """Return the listing of a folder; the images of a split are listed when it is opened.

    Args:
      dataset: as the user named it.
      root: the folder.
      class_names: classes of a trained model, for a folder without classes of its own, that is,
        without `train/`.
      labels: whether class folders are labels; False: every image is read, without a label.

    Raises:
      UserError: there is no such folder, or the expected class folders are missing.
    """
    root = os.path.expanduser(root)
    _check_directory(dataset, root)
    left_out = _LeftOut(root)
    folders = sorted(_sub_folders(root, "", left_out))
    split_folders = _split_folders(dataset, root, folders)
    notes: list[str] = []
    if split_folders is None:
        split_folders = {"train": ""}
        notes += [
            f"{as_text(name)}/ in {as_text(root)} is read as a class, because there is no train/"
            " with class folders beside it"
            for name in folders
            if name in SPLIT_NAMES
        ]
    else:
        left_out.tell(notes)
        if others := [as_text(name) for name in folders if name not in SPLIT_NAMES]:
            notes.append(f"folders beside train/ in {as_text(root)}, skipped: {some_of(others)}")

    numbering = "train" if "train" in split_folders else min(split_folders)
    why_unlabelled = "data.labels is False; omit it"
    if labels and _is_flat(root, split_folders[numbering]):
        labels, where = False, as_text(os.path.join(root, split_folders[numbering])).rstrip("/")
        why_unlabelled = (
            f"{where} contains images directly; move those of each class into a folder of its own,"
            f" as in {where}/cat/1.jpg"
        )
    if not labels:
        class_names = ()
    elif "train" in split_folders or len(split_folders) == 1:
        classes = _class_folders(dataset, root, split_folders[numbering])
        class_names = sorted({same_form(as_text(name)) for name in classes})
        notes += look_alikes(class_names)
    elif class_names is None:
        raise UserError(
            f"{dataset} has {some_of([f'{as_text(name)}/' for name in folders])} but no train/,"
            " whose folders define the classes; create it, or move the class folders directly into"
            f" {as_text(root)}"
        )
    facts: dict[str, FileFacts] = {}
    return Listing(
        dataset=dataset,
        root=root,
        class_names=tuple(class_names),
        splits={
            split: functools.partial(
                _files, dataset, root, folder, split == "train", labels, notes, facts
            )
            for split, folder in split_folders.items()
        },
        form=f"folder {{}}/ in {as_text(root)}",
        labelled=labels,
        why_unlabelled=why_unlabelled,
        notes=notes,
        facts=facts,
    )


def _check_directory(dataset: str, root: str) -> None:
    if os.path.isdir(root):
        return
    if os.path.exists(root):
        raise UserError(
            f"{dataset}: {as_text(root)} is a file, not a folder of images; for a file of labels"
            " use csv:FILE or jsonl:FILE"
        )
    parent = os.path.dirname(os.path.normpath(root)) or "."
    while not os.path.isdir(parent):
        root, parent = parent, os.path.dirname(parent) or "."
    try:
        siblings = [entry.name for entry in os.scandir(parent) if entry.is_dir()]
    except OSError:
        siblings = []
    hint = nearest(os.path.basename(os.path.normpath(root)), map(as_text, siblings))
    raise UserError(f"{dataset}: there is no folder {as_text(root)}{hint}")


def _split_folders(dataset: str, root: str, folders: list[str]) -> dict[str, str] | None:
    """Return the folder of every split; None if the folders are classes."""
    found: dict[str, str] = {}
    for name in folders:
        split = SPLIT_NAMES.get(name)
        if split in found:
            raise UserError(
                f"{dataset}: both {found[split]}/ and {name}/ are the {split} split; keep one"
            )
        if split:
            found[split] = name
    has_others = len(found) < len(folders)
    # A class may have the name `train`: then it has images directly, and other classes beside it.
    if "train" in found and has_others and not any(_sub_folders(root, found["train"])):
        return None
    return found if "train" in found or (found and not has_others) else None


def _is_flat(root: str, folder: str) -> bool:
    """Return whether a folder has images directly and no visible folders."""
    found = _LeftOut(root)
    return not list(_sub_folders(root, folder, found)) and bool(found.stray)


def _class_folders(dataset: str, root: str, folder: str) -> list[str]:
    left_out = _LeftOut(root)
    classes = list(_sub_folders(root, folder, left_out))
    if not classes:
        where = as_text(os.path.join(root, folder)).rstrip("/")
        if left_out.unreadable:
            raise UserError(f"{dataset}: {where} cannot be read: {left_out.unreadable[0]}")
        raise UserError(
            f"{dataset}: {where} contains no class folders; it must contain one sub-folder per"
            f" class, as in {where}/cat/1.jpg"
            + ("" if folder else ", or train/ and val/ with such folders")
            + ", or images without labels directly"
        )
    return classes


def _files(
    dataset: str,
    root: str,
    folder: str,
    training: bool,
    labels: bool,
    notes: list[str],
    facts: dict[str, FileFacts],
) -> Files:
    """Return the images below the class folders of a split; extends `notes` and `facts`.

    Without labels, images beside the class folders are among them, without a class.
    """
    left_out = _LeftOut(root)
    files: Files = {}
    empty = []
    for name in sorted(_sub_folders(root, folder, left_out)):
        path = f"{folder}/{name}" if folder else name
        classes = (same_form(as_text(name)),)
        found = dict.fromkeys(_images(root, path, folder, left_out), classes)
        files |= found
        if not found:
            empty.append(as_text(name))
    if not labels:
        files |= dict.fromkeys(sorted(left_out.stray), ())
        left_out.stray.clear()
    left_out.tell(notes)
    _drop_second_paths(root, files, facts, left_out.links, notes)
    if not files:
        where = as_text(os.path.join(root, folder) if folder else root)
        raise UserError(
            f"{dataset}: there are no images in"
            f" {'the class folders of ' if labels else ''}{where} ({some_of(empty)});"
            f" the extensions of images are {', '.join(sorted(image_extensions()))}"
        )
    if empty and training and labels:
        notes.append(f"classes without an image, which keep their numbers: {some_of(empty, 10)}")
    return files


def _drop_second_paths(
    root: str, files: Files, facts: dict[str, FileFacts], links: set[str], notes: list[str]
) -> None:
    """Keep one path of every file of a class, and report files in two classes."""
    paths: dict[tuple[int, int], list[str]] = {}
    for path in files:
        try:
            facts[path] = facts_of(os.stat(os.path.join(root, path)))
        except OSError:  # it was deleted after the listing; reading it will fail
            facts[path] = MISSING
        if (identity := facts[path].identity) is not None:
            paths.setdefault(identity, []).append(path)
    dropped, shared = [], []
    for same in (group for group in paths.values() if len(group) > 1):
        first_of: dict[tuple[str, ...], str] = {}
        for path in sorted(same, key=lambda path: (path in links, path)):
            first = first_of.setdefault(files[path], path)
            if first != path:
                del files[path]
                dropped.append(f"{as_text(path)} = {as_text(first)}")
        if len(first_of) > 1:
            shared.append(" = ".join(map(as_text, first_of.values())))
    if dropped:
        notes.append(
            f"paths in {as_text(root)} of a file that has another path in its class, skipped:"
            f" {len(dropped):,}, {some_of(sorted(dropped))}"
        )
    if shared:
        notes.append(
            f"files in {as_text(root)} that belong to several classes by links, so that no model"
            f" can predict all of their labels: {len(shared):,}, {some_of(sorted(shared))}"
        )


def _sub_folders(root: str, folder: str, left_out: "_LeftOut | None" = None) -> Iterator[str]:
    """Yield the names of the visible folders directly in a folder, in the system's order."""
    left_out = left_out or _LeftOut(root)
    for entry in left_out.entries(folder):
        path = f"{folder}/{entry.name}" if folder else entry.name
        if left_out.is_folder(entry, path):
            yield entry.name
        elif left_out.is_image(entry, path):
            left_out.stray.append(path)


def _images(root: str, top: str, split_folder: str, left_out: "_LeftOut") -> Iterator[str]:
    """Yield the paths of the images below a class folder."""
    # A link back to the split, the root or above would add other classes' images to this class.
    seen = set(_identities_above(os.path.join(root, split_folder)))
    waiting = [top]
    while waiting:
        folder = waiting.pop()
        identity = _identity(os.path.join(root, folder))
        if identity in seen:
            left_out.seen_twice.append(folder)
            continue
        seen.add(identity)
        deeper: list[tuple[bool, str]] = []
        for entry in left_out.entries(folder):
            path = f"{folder}/{entry.name}"
            if left_out.is_folder(entry, path):
                deeper.append((entry.is_symlink(), path))
            elif left_out.is_image(entry, path):
                if entry.is_symlink():
                    left_out.links.add(path)
                yield path
        # The last is read first: folders before links to folders, each in the order of names.
        waiting += [path for _, path in sorted(deeper, reverse=True)]


def _identities_above(folder: str) -> Iterator[tuple[int, int] | None]:
    path = os.path.realpath(folder)
    while True:
        yield _identity(path)
        if path == (parent := os.path.dirname(path)):
            return
        path = parent


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@dataclasses.dataclass
class _LeftOut:
    """Classifier of directory entries, with a record of those that are skipped."""

    root: str
    hidden: list[str] = dataclasses.field(default_factory=list)
    unreadable: list[str] = dataclasses.field(default_factory=list)
    broken: list[str] = dataclasses.field(default_factory=list)
    seen_twice: list[str] = dataclasses.field(default_factory=list)
    links: set[str] = dataclasses.field(default_factory=set)
    others: int = 0
    other_example: str = ""
    stray: list[str] = dataclasses.field(default_factory=list)  # images beside folders

    def entries(self, folder: str) -> Iterator[os.DirEntry]:
        """Yield the entries of a folder; none if it cannot be read."""
        try:
            with os.scandir(os.path.join(self.root, folder)) as entries:
                yield from entries
        except OSError as error:
            self.unreadable.append(f"{as_text(folder) or '.'} ({error.strerror})")

    def is_folder(self, entry: os.DirEntry, path: str) -> bool:
        """Return whether an entry is a visible folder or a link to one."""
        try:
            folder = entry.is_dir()
        except OSError:  # for example, a link to itself
            return False
        if folder and is_hidden(entry.name):
            self.hidden.append(as_text(path))
            return False
        return folder

    def is_image(self, entry: os.DirEntry, path: str) -> bool:
        """Return whether an entry is a visible file or link with an image's extension."""
        if is_hidden(entry.name):
            return False
        try:
            file = entry.is_file()
        except OSError:
            file = False
        if file and is_image_name(entry.name):
            return True
        if entry.is_symlink() and not file:
            self.broken.append(as_text(path))
        else:
            self.others += 1
            self.other_example = min(self.other_example or as_text(path), as_text(path))
        return False

    def tell(self, notes: list[str]) -> None:
        """Append a sentence for every type of skipped entry."""
        where = f"in {as_text(self.root)}"
        told = []
        if self.hidden:
            told.append(
                f"hidden or system folders {where}, skipped: {some_of(sorted(self.hidden))}"
            )
        if self.stray:
            told.append(
                f"images {where} that are beside the class folders and belong to no class, skipped:"
                f" {len(self.stray):,}, such as {min(map(as_text, self.stray))!r}"
            )
        if self.others:
            told.append(
                f"files {where} without an image extension, skipped: {self.others:,},"
                f" such as {self.other_example!r}"
            )
        if self.broken:
            told.append(
                f"broken links {where}, skipped: {len(self.broken):,},"
                f" {some_of(sorted(self.broken))}"
            )
        if self.seen_twice:
            told.append(
                f"folders {where} that are linked repeatedly, read once:"
                f" {some_of(sorted(map(as_text, self.seen_twice)))}"
            )
        if self.unreadable:
            told.append(f"folders {where} that cannot be read: {some_of(sorted(self.unreadable))}")
        notes.extend(note for note in told if note not in notes)
