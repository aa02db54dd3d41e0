"""Division of a dataset into splits: held out by `split_seed`, or sliced as in TFDS.

    train, train[:90%], train[100:200], train+validation, test

- An undivided dataset is divided here: a share of every class is held out as `test`.
- If there is `validation` and no `test`, `validation` is used as `test`.
- The files of a split are in the order of a hash of their paths. A file's position therefore
  depends only on its name, a slice such as `train[:90%]` has all classes in about their
  proportions, and the same files give the same split on every machine.
"""

import dataclasses
import hashlib
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vit_jax.data.features import IMAGE, Feature
from vit_jax.data.paths import as_text, same_form, some_of
from vit_jax.data.sources.examples import FileExamples
from vit_jax.data.sources.find_files import FileFacts
from vit_jax.errors import UserError, nearest

Files = dict[str, tuple[str, ...]]
"""The path of every file, from the root of its dataset, and the names of its classes."""

# Names of splits in folders and tables.
SPLIT_NAMES = {
    spelling: split
    for split, names in {
        "train": ("train",),
        "validation": ("val", "valid", "validation"),
        "test": ("test",),
    }.items()
    for name in names
    for spelling in (name, name.capitalize())
}


@dataclasses.dataclass(frozen=True)
class Listing:
    """The image files of a dataset.

    Attributes:
      dataset: as the user named it.
      root: the directory that paths start from.
      class_names: class names of the training split.
      splits: a function that lists the files, for each of `train`, `validation` and `test` that
        the dataset has.
      form: location of a split, with `{}` for its name, such as `folder {}/ in pets`.
      multi_label: whether an image may have several classes, or none.
      labelled: whether the classes of files are labels; otherwise they only stratify the held-out
        part.
      why_unlabelled: without labels, the reason and the remedy as a part of a sentence.
      notes: sentences on skipped files; extended when files are listed.
      facts: size and identity of every listed file, by path.
      captions: the captions of every listed file, by path; empty without captions.
      groups: the group of every listed file, by path; empty without groups.
      shares: the probabilities of classes of every listed file, by path and name; empty without
        soft labels.
      image: the feature of its images, or of its clips.
      open_examples: from the root, paths and labels to the examples.
    """

    dataset: str
    root: str
    class_names: tuple[str, ...]
    splits: Mapping[str, Callable[[], Files]]
    form: str
    multi_label: bool = False
    labelled: bool = True
    why_unlabelled: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)
    facts: dict[str, FileFacts] = dataclasses.field(default_factory=dict)
    captions: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    groups: Mapping[str, str] = dataclasses.field(default_factory=dict)
    shares: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    image: Feature = IMAGE
    open_examples: Callable[..., Any] = FileExamples


def divide(
    listing: Listing,
    split: str,
    holdout: float,
    split_seed: int,
    saved: Sequence[str] | None = None,
) -> tuple[list[str], Files]:
    """Return the paths of a split, in order, and all listed files of the dataset.

    Args:
      listing: the files.
      split: in the slicing language of TFDS, with `val` and `valid` for `validation`.
      holdout: the share of every class that is held out as `test`, if the dataset has neither
        `test` nor `validation`; every class keeps at least one training image.
      split_seed: seed of the choice of held-out images.
      saved: the stored paths of the split as texts, if any.

    Raises:
      UserError: there is no such split, or it is empty, or a saved file is missing.
    """
    roles = dict(SPLIT_NAMES)
    mentioned = {roles.get(name, name) for name in _names(split)}
    if "test" in mentioned and "test" not in listing.splits and "validation" in listing.splits:
        roles |= {"test": "validation", "Test": "validation"}
        mentioned = mentioned - {"test"} | {"validation"}
        listing.notes.append(
            f"without a {listing.form.format('test')}, the validation images are used as 'test'"
        )
    if "validation" in mentioned and "validation" not in listing.splits:
        raise UserError(
            f"{listing.dataset} has no validation split: there is no"
            f" {listing.form.format('val')}; create it, or use disjoint parts of the training"
            " images, such as train[:90%] and train[90%:]"
        )

    if "all" in mentioned or _is_undivided(listing):
        mentioned |= set(listing.splits)
    listed = {name: list_() for name, list_ in listing.splits.items() if name in mentioned}
    files = {path: names for part in listed.values() for path, names in part.items()}
    if saved is not None:
        return _found_again(listing, split, saved, files), files

    members = _members(listing, listed, holdout, split_seed)
    if "test" in mentioned and members.get("test") == []:
        raise UserError(_nothing_to_test(listing, holdout))
    spec = re.sub(NAME, lambda match: roles.get(match[1], match[1]), split)
    return sliced(listing.dataset, split, spec, members), files


def split_sizes(listing: Listing, holdout: float, split_seed: int) -> dict[str, int]:
    """Return the number of files in each split of a listing; empty splits are skipped."""
    listed = {name: list_files() for name, list_files in listing.splits.items()}
    members = _members(listing, listed, holdout, split_seed)
    return {name: len(paths) for name, paths in members.items() if paths}


# A name is at the beginning of a split or after a plus.
NAME = re.compile(r"(?:^|(?<=\+))\s*([A-Za-z_]\w*)")


def _names(split: str) -> list[str]:
    return NAME.findall(split)


def _place(path: str, key: bytes = b"") -> bytes:
    """Return a hash of the path and the key."""
    return hashlib.blake2b(os.fsencode(path), digest_size=16, key=key).digest()


def _is_undivided(listing: Listing) -> bool:
    return set(listing.splits) == {"train"}


def _members(
    listing: Listing, listed: Mapping[str, Files], holdout: float, split_seed: int
) -> dict[str, list[str]]:
    """Return the paths of every split, in order; none of splits that were not listed."""
    members = {name: sorted(listed.get(name, ()), key=_place) for name in listing.splits}
    if _is_undivided(listing):
        members |= _hold_out(listing, members["train"], listed["train"], holdout, split_seed)
    return members


def _found_again(listing: Listing, split: str, saved: Sequence[str], files: Files) -> list[str]:
    path_of = {same_form(as_text(path)): path for path in files}
    path_of |= {as_text(path): path for path in files}
    known = {text: path_of.get(text, path_of.get(same_form(text))) for text in saved}
    missing = [text for text, path in known.items() if path is None]
    if missing:
        raise UserError(
            f"{listing.dataset} lacks {len(missing):,} of the {len(saved):,} images that the"
            f" run has recorded for {split!r}: {some_of(missing)}; restore them to"
            f" {as_text(listing.root)}"
        )
    return [known[text] for text in saved]


def _hold_out(
    listing: Listing, paths: list[str], files: Files, share: float, split_seed: int
) -> dict[str, list[str]]:
    """Return training and test paths: of every class, the lowest keyed hashes are held out.

    Multi-label images are not stratified and count as one class, and so do images without a class.
    """
    classes: dict[tuple[str, ...], list[str]] = {}
    for path in paths:
        classes.setdefault(() if listing.multi_label else files[path], []).append(path)
    if not listing.labelled and len(classes) == len(paths):  # a number, or a name of each image
        classes = {(): paths}
    held_out: set[str] = set()
    alone = []
    for names, members in classes.items():
        wanted = max(1, math.floor(len(members) * share + 0.5)) if share else 0
        ranked = sorted(members, key=lambda path: _place(path, key=str(split_seed).encode()))
        held_out.update(ranked[: min(wanted, len(members) - 1)])
        if share and len(members) == 1:
            alone.extend(names)
    held_out -= _also_trained_on(listing, paths, held_out)
    if alone and listing.labelled:
        listing.notes.append(
            f"classes with a single image, which is used for training and not held out for testing:"
            f" {some_of(sorted(alone))}"
        )
    return {
        "train": [path for path in paths if path not in held_out],
        "test": [path for path in paths if path in held_out],
    }


def _also_trained_on(listing: Listing, paths: Sequence[str], held_out: set[str]) -> set[str]:
    """Return held-out paths whose file is in training by another path: links in two classes."""
    identities = {path: listing.facts[path].identity for path in paths if path in listing.facts}
    trained = {identity for path, identity in identities.items() if path not in held_out}
    return {path for path in held_out if identities.get(path) in trained - {None}}


def _nothing_to_test(listing: Listing, holdout: float) -> str:
    each = "every class has" if listing.class_names else "there is"
    why = (
        f"{each} a single image, which is needed for training"
        if holdout
        else "data.holdout is 0, so that none are held out"
    )
    return (
        f"{listing.dataset} has no test images: there is neither"
        f" {listing.form.format('test')} nor {listing.form.format('val')}, and {why}; create one of"
        " them" + (", or add images" if holdout else ", or set data.holdout to 0.2")
    )


def sliced(dataset: str, split: str, spec: str, members: Mapping[str, list[Any]]) -> list[Any]:
    """Return the members of a split in the slicing language of TFDS.

    Args:
      dataset: its name, for messages.
      split: as the user wrote it, for messages.
      spec: the same with names of `members`.
      members: those of every split, in order.

    Raises:
      UserError: there is no such split, or the part is empty.
    """
    if members.get(spec):
        return members[spec]
    import tensorflow_datasets as tfds  # takes most of a second

    counts = {name: len(paths) for name, paths in members.items()}
    infos = tfds.core.splits.SplitDict(
        [
            tfds.core.SplitInfo(name=name, shard_lengths=[count], num_bytes=0)
            for name, count in counts.items()
        ]
    )
    try:
        parts = tfds.core.ReadInstruction.from_spec(spec).to_absolute(infos)
    except Exception as error:  # TFDS raises various types for a text that it cannot parse
        raise UserError(split_mistake(dataset, split, str(error), counts)) from error
    paths = [path for part in parts for path in members[part.splitname][part.from_ : part.to]]
    if not paths:
        raise UserError(split_mistake(dataset, split, "it has no examples", counts))
    return paths


def split_mistake(dataset: str, split: str, cause: str, counts: Mapping[str, int]) -> str:
    """Return the message for an invalid split; a count of 0 is an unknown count."""
    known = ", ".join(f"{name} ({n:,})" if n else name for name, n in counts.items())
    cause = cause.strip().partition("\n")[0].rstrip(".")
    unknown = [name for name in _names(split) if name not in counts]
    hint = nearest(unknown[0], counts) if unknown else ""
    return (
        f"split {split!r} of {dataset} cannot be read: {cause}; use one of {known}, or a part of"
        f" one like train[:90%] or test[100:200]{hint}"
    )
