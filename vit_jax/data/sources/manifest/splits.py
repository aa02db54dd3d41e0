"""Assignment of table rows to splits, with reports of repeated, contradictory and missing rows."""

import dataclasses
from collections.abc import Mapping

from vit_jax.data.paths import as_text, some_of
from vit_jax.data.sources.find_files import FileFacts, FileFinder, Found
from vit_jax.data.sources.manifest.rows import Table
from vit_jax.data.sources.splits import SPLIT_NAMES, Files
from vit_jax.errors import UserError, nearest

CLASSES_FILE = "classes.txt"


@dataclasses.dataclass(frozen=True)
class Row:
    """Image in a line: `name` as written there; `several`: the label is a list.

    captions: those of the line; none without a column of captions. group: of the image; empty
    without a column of groups. numbers: of the classes in the line, later their probabilities; None
    for labels that are certain.
    """

    line: int
    name: str
    found: Found
    labels: tuple[str, ...]
    several: bool
    split: str | None
    captions: tuple[str, ...] = ()
    group: str = ""
    numbers: Mapping[str, float] | None = None


@dataclasses.dataclass
class SortedRows:
    """Rows of one or more files by split, each checked against earlier rows.

    known: the names in `classes.txt`, if there is one. labelled: whether labels are used.
    seen: the place, the split and the first row of every path. paths: the path of every file by its
    identity. captions: those of every path, in the order of the lines. groups: the group of every
    path. shares: the probabilities of the classes of every path that has a soft label.
    """

    known: dict[str, None] | None
    labelled: bool = True
    multi_label: bool = False
    splits: dict[str, Files] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    seen: dict[str, tuple[str, str, Row]] = dataclasses.field(default_factory=dict)
    facts: dict[str, FileFacts] = dataclasses.field(default_factory=dict)
    paths: dict[tuple[int, int], str] = dataclasses.field(default_factory=dict)
    captions: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    groups: dict[str, str] = dataclasses.field(default_factory=dict)
    shares: dict[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def add(self, table: Table, rows: list[Row], split_of_file: str | None) -> None:
        """Add the rows of a file, and report its mistakes."""
        repeated: list[str] = []
        for row in rows:
            split = split_of_file or SPLIT_NAMES.get((row.split or "train").lower(), "")
            path, facts = row.found
            if facts.identity is not None:
                path = self.paths.setdefault(facts.identity, path)
            cause = self._mistake(row, split, split_of_file)
            known = self.captions.setdefault(path, [])
            fresh = [caption for caption in dict.fromkeys(row.captions) if caption not in known]
            if cause is None and path in self.seen:
                cause = self._contradiction(row, path, split)
                if not fresh:
                    repeated.append(row.name)
            if cause is not None:
                table.mistakes.add(row.line, cause)
                continue
            known.extend(fresh)
            self.seen.setdefault(path, (f"{as_text(table.file)}:{row.line}", split, row))
            self.splits.setdefault(split, {})[path] = row.labels
            self.facts[path] = facts
            self.groups[path] = row.group
            if row.numbers is not None:
                self.shares[path] = row.numbers
        table.mistakes.tell()
        if repeated:
            self.notes.append(
                f"lines of {as_text(table.file)} that repeat an earlier one, skipped:"
                f" {len(repeated):,}, such as that of {repeated[0]!r}"
            )

    def tell_missing(self, dataset: str, finder: FileFinder) -> None:
        """Append a sentence on missing files; raise UserError if all are missing."""
        missing = [as_text(path) for path, facts in self.facts.items() if facts.size < 0]
        if missing and len(missing) == len(self.facts):
            raise UserError(
                f"{dataset}: none of the {len(missing):,} listed images exists, such as"
                f" {missing[0]!r}; paths start from {as_text(finder.start)}; to change that, use"
                " --config.data.image_dir=FOLDER"
            )
        if missing:
            self.notes.append(
                f"images listed in {dataset} that do not exist, treated like unreadable ones:"
                f" {len(missing):,} of {len(self.facts):,}, {some_of(missing)}"
            )

    def _mistake(self, row: Row, split: str, split_of_file: str | None) -> str | None:
        if row.split is not None and split_of_file:
            return "the whole file is one split; remove its column of splits"
        if not split or row.split == "":
            return f"there is no split {row.split!r}; use train, val or test"
        if not self.labelled:
            return None
        names = row.numbers or row.labels
        if "" in names or not (names or self.multi_label):
            return f"the label of {row.name!r} is empty"
        if self.known is not None:
            for name in names:
                if name not in self.known:
                    return f"the label {name!r} is not in {CLASSES_FILE}{nearest(name, self.known)}"
        return None

    def _contradiction(self, row: Row, path: str, split: str) -> str | None:
        where, first_split, first = self.seen[path]
        text = as_text(path)
        name = f"{row.name!r}" + (f" (the file {text!r})" if text != row.name else "")
        if first_split != split:
            return (
                f"{name} is in {split} here and in {first_split} in {where}; an image"
                " must be in one split"
            )
        if self.labelled and (first.labels, first.numbers) != (row.labels, row.numbers):
            return (
                f"{name} has another label in {where}; write several labels of one image"
                " in one line, with | between them"
            )
        return None
