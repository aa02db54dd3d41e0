"""Datasets of WebDataset: shards by folder or pattern, read by random access without its library.

    wds:pets                          all .tar of a folder, or of its folders train/, val/ and test/
    wds:pets/pets-{000..010}.tar      these shards
    wds:pets/*.tar

- The splits are folders, or names that begin with one, such as train-000.tar; other shards are
  training data, of which a part is held out.
- A sample has an image, and its caption in .txt, .caption or .json, and its class in .cls. All have
  captions, or none; all have classes, or none.
- Classes are numbers, or names. The lines of a file classes.txt beside the shards name numbers.
"""

import functools
import glob
import itertools
import os
import re
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Int64

from vit_jax.data.features import Example
from vit_jax.data.images.decoding import AS_IT_IS, Decoding, decode_as
from vit_jax.data.labels import look_alikes, normal_label
from vit_jax.data.paths import as_text, some_of
from vit_jax.data.sources.examples import EncodedExamples, Labels, with_label
from vit_jax.data.sources.find_files import FileFacts
from vit_jax.data.sources.manifest.splits import CLASSES_FILE
from vit_jax.data.sources.splits import SPLIT_NAMES, Files, Listing
from vit_jax.data.sources.webdataset.shard import Sample, read_shard
from vit_jax.data.texts import TextOptions
from vit_jax.errors import UserError

KIND = "wds"
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_SPLIT_NAME = re.compile(rf"({'|'.join(SPLIT_NAMES)})(?![A-Za-z])")
_MOST_SHARDS = 1_000_000


def list_shards(
    dataset: str, path: str, labels: bool = True, texts: TextOptions | None = None
) -> Listing:
    """Return the listing of shards, whose images are named `SHARD.tar/MEMBER`.

    Args:
      dataset: as the user named it.
      path: a folder, a file, or a pattern with `{000..010}`, `{a,b}` or `*`.
      labels: whether labels are used.
      texts: how captions are used; None: not at all.

    Raises:
      UserError: there is no such shard, or one is damaged; only some samples have a caption or a
        class, or an invalid one.
    """
    root, shards = _shards(dataset, os.path.expanduser(path))
    read = {name: read_shard(os.path.join(root, name)) for name in sorted(shards)}
    samples = {
        f"{name}/{sample.name}": (name, sample) for name in read for sample in read[name].samples
    }
    if not samples:
        raise UserError(f"{dataset}: the {len(read):,} shards have no sample with an image")
    notes = [note for shard in read.values() for note in shard.notes]
    if without := [f"{name}/{key}" for name in read for key in read[name].imageless]:
        notes.append(f"samples without an image, skipped: {len(without):,}, {some_of(without)}")
    alone = {path: sample for path, (_, sample) in samples.items()}
    captions = _all_captions(dataset, alone, texts)
    classes = _all_labels(dataset, alone, root, labels)
    splits: dict[str, Files] = {}
    for path, (name, _) in samples.items():
        splits.setdefault(shards[name], {})[path] = classes.get(path, ())
    if "train" not in splits:
        raise UserError(f"{dataset}: there are only shards of {some_of(sorted(splits))}, no train")
    labelled = labels and bool(classes)
    names = _class_names(splits["train"], root) if labelled else ()
    unlabelled = "its samples have no .cls; add them" if labels else "data.labels is False; omit it"
    return Listing(
        dataset=dataset,
        root=root,
        class_names=names,
        splits={split: functools.partial(dict, files) for split, files in splits.items()},
        form=f"shard {{}}-*.tar in {as_text(root) or '.'}",
        labelled=labelled,
        why_unlabelled="" if labelled else unlabelled,
        notes=notes + look_alikes(names),
        facts={path: FileFacts(sample.size) for path, sample in alone.items()},
        captions=captions,
        open_examples=functools.partial(TarExamples.of, samples),
    )


# ------------------------------------------------------------------------------ shards


def _shards(dataset: str, path: str) -> tuple[str, dict[str, str]]:
    """Return the root, and the split of every shard by its path from there."""
    if os.path.isdir(path):
        folders = {name: split for name, split in SPLIT_NAMES.items() if _tars(path, name)}
        shards = {
            os.path.join(name, tar): split
            for name, split in folders.items()
            for tar in _tars(path, name)
        }
        shards |= {tar: _split_of(tar) for tar in _tars(path, "")}
        if not shards:
            raise UserError(f"{dataset}: there is no .tar file in {as_text(path)}")
        return path, shards
    by_glob = "*" in path or "?" in path
    files = sorted(glob.glob(path)) if by_glob else _expanded(dataset, path)
    missing = [as_text(file) for file in files if not os.path.isfile(file)]
    if missing or not files:
        what = f"{len(missing):,} of {len(files):,} shards do not exist, {some_of(missing)}"
        raise UserError(
            f"{dataset}: {what if missing else 'no file has such a name'}; use a folder of .tar"
            " files, or a pattern such as wds:PATH/{000..010}.tar"
        )
    root = os.path.commonpath([os.path.dirname(file) for file in files])
    names = [os.path.relpath(file, root or ".") for file in files]
    return root, {name: _split_of(name) for name in names}


def _tars(folder: str, name: str) -> list[str]:
    place = os.path.join(folder, name)
    if not os.path.isdir(place):
        return []
    return sorted(x for x in os.listdir(place) if x.endswith(".tar") and not x.startswith("."))


def _split_of(name: str) -> str:
    """Return the split that the name of a shard, or its folder, begins with; or `train`."""
    for part in reversed(name.split(os.sep)):
        if match := _SPLIT_NAME.match(part):
            return SPLIT_NAMES[match[1]]
    return "train"


def _expanded(dataset: str, path: str) -> list[str]:
    """Return the paths of a pattern with `{000..010}` and `{a,b}`, as a shell writes them."""
    pieces = _BRACES.split(path)  # the odd ones were within braces
    choices: list[list[str]] = []
    for number, piece in enumerate(pieces):
        if number % 2 == 0:
            choices.append([piece])
        elif match := _RANGE.fullmatch(piece):
            first, last = int(match[1]), int(match[2])
            if not 0 <= last - first < _MOST_SHARDS:
                raise UserError(
                    f"{dataset}: {{{piece}}} is no range of at most {_MOST_SHARDS:,} numbers"
                )
            width = len(match[1])
            choices.append([f"{x:0{width}d}" for x in range(first, last + 1)])
        else:
            choices.append(piece.split(","))
    return ["".join(parts) for parts in itertools.product(*choices)]


# ------------------------------------------------------------------------------ samples


def _all_captions(
    dataset: str, samples: Mapping[str, Sample], texts: TextOptions | None
) -> dict[str, tuple[str, ...]]:
    """Return the captions of all samples; empty if none has any."""
    if texts is None:
        return {}
    without = [as_text(path) for path, sample in samples.items() if not any(sample.captions)]
    if len(without) == len(samples) and not texts.needed:
        return {}
    if without:
        raise UserError(
            f"{dataset}: {len(without):,} of {len(samples):,} samples have no caption (.txt,"
            f" .caption, or .json with a caption) or an empty one, {some_of(without)}; add them, or"
            " write the shards again without these samples"
        )
    return {path: tuple(filter(None, sample.captions)) for path, sample in samples.items()}


def _all_labels(
    dataset: str, samples: Mapping[str, Sample], root: str, labels: bool
) -> dict[str, tuple[str, ...]]:
    """Return the class of all samples; empty if none has any.

    labels: whether they are used; otherwise they may be missing.
    """
    if not labels:
        return {path: (sample.label,) for path, sample in samples.items() if sample.label}
    without = [as_text(path) for path, sample in samples.items() if not sample.label]
    if len(without) == len(samples):
        return {}
    if without:
        raise UserError(
            f"{dataset}: {len(without):,} of {len(samples):,} samples have no class (.cls) or an"
            f" empty one, {some_of(without)}; add them, or use --config.data.labels=false"
        )
    names = _names_of_numbers(root)
    if not names:
        return {path: (normal_label(sample.label),) for path, sample in samples.items()}
    wrong = [f"{x.label!r} of {as_text(path)}" for path, x in samples.items() if not _in(x, names)]
    if wrong:
        raise UserError(
            f"{dataset}: {len(wrong):,} samples have a class that is no line of {CLASSES_FILE},"
            f" which has {len(names):,}, counted from 0: {', '.join(wrong[:3])}"
        )
    return {path: (names[int(sample.label)],) for path, sample in samples.items()}


def _in(sample: Sample, names: Sequence[str]) -> bool:
    return sample.label.isdecimal() and int(sample.label) < len(names)


def _names_of_numbers(root: str) -> list[str]:
    path = os.path.join(root, CLASSES_FILE)
    if not os.path.isfile(path):
        return []
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        names = list(map(normal_label, file.read().rstrip().splitlines()))
    for number, name in enumerate(names):
        if not name or name in names[:number]:
            what = f"repeats {name!r}" if name else "is empty"
            raise UserError(
                f"{as_text(path)}: line {number + 1} {what}, so that its number has no name of its"
                " own; give each number a line"
            )
    return names


def _class_names(files: Files, root: str) -> tuple[str, ...]:
    """Return the names of the classes, numbers in their order."""
    if names := _names_of_numbers(root):
        return tuple(names)
    found = {name for names in files.values() for name in names}
    if all(name.isdecimal() for name in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found))


class TarExamples(EncodedExamples):
    """Images in tar files, read by their places."""

    def __init__(
        self,
        root: str,
        shards: Sequence[str],
        places: Int64[np.ndarray, "n 3"],
        names: Sequence[str],
        labels: Labels | None,
    ):
        self.root, self.shards, self.places = root, shards, places
        self.names, self.labels = names, labels

    @classmethod
    def of(
        cls,
        samples: Mapping[str, tuple[str, Sample]],
        root: str,
        paths: Sequence[str],
        labels: Labels | None,
    ) -> "TarExamples":
        """Return the examples of some paths of a listing."""
        chosen = [samples[path] for path in paths]
        shards = sorted({name for name, _ in chosen})
        numbers = {name: number for number, name in enumerate(shards)}
        places = [(numbers[name], sample.offset, sample.size) for name, sample in chosen]
        return cls(root, shards, np.array(places, np.int64).reshape(-1, 3), tuple(paths), labels)

    def __len__(self) -> int:
        return len(self.places)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        shard, offset, size = self.places[index].tolist()
        with open(os.path.join(self.root, self.shards[shard]), "rb") as file:
            file.seek(offset)
            content = file.read(size)
        return with_label(decode_as(content, self.where(index), how), self.labels, index)

    def where(self, index: int) -> str:
        return as_text(os.path.join(self.root, self.names[index]))
