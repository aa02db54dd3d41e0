"""Report of the command `data`: tables, sentences, JSON and contact sheets.

The dataset is examined in `vit_jax/data/inspect/report.py` and drawn in
`vit_jax/data/inspect/contact_sheets.py`.
"""

import csv
import itertools
import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from vit_jax.config.augment_presets import PRESETS
from vit_jax.data import Augment, Preprocessing, Source, list_splits, open_source
from vit_jax.data.features import has_clips
from vit_jax.data.inspect.contact_sheets import augmented_sheet, contact_sheet
from vit_jax.data.inspect.report import LARGE_IMBALANCE, Report, SplitReport, Spread
from vit_jax.data.inspect.targets import TargetReport
from vit_jax.errors import UserError, nearest
from vit_jax.text import table_cell, to_json

_SIDE_FROM_SCRATCH, _USUAL_BATCH = 96, 32  # of configs/images.py
_USUAL_SIZE = 224  # of a model's input, for larger images
_MOST_NAMED = 100  # unreadable images listed on the screen
_END_CLASSES = 10  # largest and smallest classes, listed if there are many


def open_splits(dataset: str, split: str, options: Mapping[str, Any]) -> dict[str, Source]:
    """Open the requested split, or all splits with images; return the sources by split.

    Args:
      dataset: such as `digits`.
      split: a split or a part of one, or `all`.
      options: the other arguments of `open_source`.

    Raises:
      UserError: the dataset or a split cannot be opened, or it has no images.
    """
    names = [split]
    if split == "all":
        names = [name for name, count in list_splits(dataset, **options).items() if count]
    if not names:
        raise UserError(f"{dataset} holds no images")
    return {name: open_source(dataset, name, **options) for name in names}


def preset_options(name: str) -> dict[str, Any]:
    """Return the keys under `augment.` of an augmentation preset; UserError if unknown."""
    if name not in PRESETS:
        hint = nearest(name, PRESETS)
        raise UserError(f"there is no preset {name!r}{hint}; use one of {', '.join(PRESETS)}")
    keys = PRESETS[name].items()
    return {
        key.removeprefix("augment."): value for key, value in keys if key.startswith("augment.")
    }


def safe_name(dataset: str) -> str:
    """Convert a dataset's name to a folder name."""
    return re.sub(r"[^\w.-]+", "_", dataset).strip("._") or "data"


# ---------------------------------------------------------------------------------------- the files


def write(
    folder: Path,
    dataset: str,
    report: Report,
    source: Source,
    preset: Mapping[str, Any] | None = None,
    size: int = 0,
) -> list[Path]:
    """Write the report and its figures, and return the files.

    Args:
      folder: an existing one.
      dataset: its name.
      report: on the dataset.
      source: the split to draw.
      preset: augmentation options to draw; None: no such sheet.
      size: side of the model's input in that sheet, in pixels; 0: the most common size.

    Raises:
      UserError: augmentation is to be drawn, but no image can be read.
    """
    # File names may hold bytes that are not UTF-8.
    encoding = {"encoding": "utf-8", "errors": "backslashreplace"}
    record = {"dataset": dataset, **report.to_dict()}
    text = to_json(record, indent=1)
    (folder / "report.json").write_text(text + "\n", **encoding)
    names = ["report.json", "contact_sheet.png"]
    if report.labelled:
        names.insert(1, "classes.csv")
        with (folder / "classes.csv").open("w", newline="", **encoding) as file:
            writer = csv.writer(file)
            writer.writerow(["class", *report.splits])
            writer.writerows(_class_counts(report))
    contact_sheet(source).save(folder / "contact_sheet.png")
    if preset is not None:
        split = next(iter(report.splits.values()))
        _draw_augmented(source, split, preset, size).save(folder / "augmented.png")
        names.append("augmented.png")
    return [folder / name for name in names]


_OF_CLIPS = ("frames:", "moving:")  # beginnings of the names of datasets


def _draw_augmented(source: Source, split: SplitReport, preset: Mapping[str, Any], size: int):
    if not (split.height and split.width and split.mean):
        raise UserError(f"no image of {source.name} can be read, so augmentation cannot be drawn")
    usual = min(_USUAL_SIZE, round(min(split.height.median, split.width.median)))
    frames = len(source[0]["image"]) if has_clips(source.features) else 0
    preprocess = Preprocessing((size or usual,) * 2, channels=len(split.mean), frames=frames)
    mixing = [name for name in ("mixup", "cutmix") if preset.get(name)]
    note = f"not drawn: {' and '.join(mixing)}; batches are mixed later, on the device"
    return augmented_sheet(source, preprocess, Augment.among(preset), note=note if mixing else "")


# --------------------------------------------------------------------------------------- the screen


def tables(report: Report) -> Iterator[Table]:
    """Yield a table of the splits side by side, and one of the class counts, if there are any."""
    splits = Table("", *map(table_cell, report.splits))
    for heading, cell in _ROWS.items():
        if report.labelled or heading not in _ROWS_OF_LABELS:
            splits.add_row(heading, *(cell(split) for split in report.splits.values()))
    for heading, cell in _ROWS_OF_TARGETS.items():
        if any(split.targets and cell(split.targets) for split in report.splits.values()):
            cells = [split.targets and cell(split.targets) for split in report.splits.values()]
            splits.add_row(heading, *(text or "-" for text in cells))
    if any(split.captions for split in report.splits.values()):
        for heading, cell in _ROWS_OF_CAPTIONS.items():
            splits.add_row(heading, *map(cell, report.splits.values()))
    yield splits
    yield from _tables_of_targets(report)
    if not report.labelled:
        return
    classes = Table("class")
    for name in report.splits:
        classes.add_column(table_cell(name), justify="right")
    for row in _class_rows(report):
        classes.add_row(*row)
    yield classes


def _tables_of_targets(report: Report) -> Iterator[Table]:
    """Yield a table of objects and one of pixels, by class."""
    for what, names in report.target_names.items():
        of_splits = [
            (split.targets.objects if what == "objects" else split.targets.shares)
            for split in report.splits.values()
            if split.targets
        ]
        if not of_splits or not all(of_splits):
            continue
        table = Table(what)
        for name in report.splits:
            table.add_column(table_cell(name), justify="right")
        form = "{:,}" if what == "objects" else "{:.2%}"
        for name, *numbers in list(zip(names, *of_splits, strict=True))[: 2 * _END_CLASSES]:
            table.add_row(table_cell(name), *map(form.format, numbers))
        if len(names) > 2 * _END_CLASSES:
            table.add_row(f"({len(names) - 2 * _END_CLASSES:,} more in report.json)")
        yield table


def lines(report: Report, files: Sequence[Path]) -> Iterator[str]:
    """Yield the lines below the tables: unreadable images, notes, warnings, written files."""
    for split in report.splits.values():
        for path, cause in itertools.islice(split.bad.items(), _MOST_NAMED):
            yield f"unreadable: {path}: {cause}"
        if len(split.bad) > _MOST_NAMED:
            yield f"unreadable: {len(split.bad) - _MOST_NAMED:,} more, listed in report.json"
    for note in dict.fromkeys(note for split in report.splits.values() for note in split.notes):
        yield f"note: {note}"
    dense = any(split.targets for split in report.splits.values())
    if any(split.captions for split in report.splits.values()):
        yield (
            "note: the images have captions; train on them with --config=language/captions, or any"
            " other config of the task contrastive"
        )
    elif not report.labelled and not dense:
        yield "note: the images have no labels, so they serve for pre-training only"
    for finding in report.findings:
        yield f"warning: {finding}"
    if not report.findings:
        yield "No problems found."
    yield f"written: {', '.join(map(str, files))}"


def training_command(
    dataset: str, report: Report, options: Mapping[str, str | None] | None = None
) -> str | None:
    """Return the command that trains on a dataset; None without labelled data for it.

    Args:
        dataset: its name.
        report: on all of its splits.
        options: data options, by their keys in a configuration, such as `data.label_column`.
    """
    if not report.labelled or (keys := data_keys(dataset, report, options)) is None:
        return None
    keys |= _keys_of_the_images(dataset, report, report.splits["train"])
    config = "digits" if dataset == "digits" else "images"
    config = "video/moving_digits" if dataset.startswith(_OF_CLIPS) else config
    return train_with(config, dataset, keys)


def data_keys(
    dataset: str, report: Report, options: Mapping[str, str | None] | None = None
) -> dict[str, Any] | None:
    """Return the keys of a dataset's splits and options; None if there is nothing to train on."""
    train = report.splits.get("train")
    tests = [name for name in ("test", "validation") if _has_labels(report, name)]
    if not train or not train.height or train.examples < 2:
        return None
    keys: dict[str, Any] = {key: value for key, value in (options or {}).items() if value}
    if not tests and report.labelled:
        if dataset.partition(":")[0] in ("folder", "csv", "jsonl", "wds"):
            return None  # every class has only one image
        keys |= {"data.train": "train[:80%]", "data.test": "train[80%:]"}
    elif tests and tests[0] != "test" and "test" in report.splits:
        keys["data.test"] = tests[0]
    elif tests == ["test", "validation"]:
        keys["data.validation"] = "validation"
    return keys


def train_with(config: str, dataset: str, keys: Mapping[str, Any], suffix: str = "") -> str:
    """Return a command that trains on a dataset. suffix: of the run folder's name."""
    name = safe_name(os.path.basename(dataset.partition(":")[2].rstrip("/")) or dataset)
    command = ["python", "-m", "vit_jax", "train"]
    command += [f"--config={config}", f"--workdir=runs/{name}{suffix}"]
    command += [f"--config.{key}={value}" for key, value in {"dataset": dataset, **keys}.items()]
    return shlex.join(command)


def _has_labels(report: Report, split: str) -> bool:
    found = report.splits.get(split)
    return bool(found and found.examples and (report.multi_label or not found.unlabelled))


def _keys_of_the_images(dataset: str, report: Report, train: SplitReport) -> dict[str, Any]:
    """Return the keys that follow from the images and their labels."""
    keys: dict[str, Any] = {}
    if train.examples < _USUAL_BATCH:
        keys["batch_size"] = 2 ** (train.examples.bit_length() - 1)
    if report.multi_label:
        keys["objective.loss"] = "sigmoid"
    elif train.imbalance and train.imbalance > LARGE_IMBALANCE:
        keys["data.sampling"] = "balanced"
    if dataset == "digits":
        return keys
    side = min(train.height.median, train.width.median)
    if side < _SIDE_FROM_SCRATCH:
        keys["model.image_size"] = max(32, 16 * math.ceil(side / 16))
    if train.mean and len(train.mean) != 3:
        keys["model.in_channels"] = len(train.mean)
    return keys


def _class_counts(report: Report) -> Iterator[tuple[str, *tuple[int, ...]]]:
    """Yield every class with its count in every split."""
    counts = [split.class_counts for split in report.splits.values()]
    yield from zip(report.class_names, *counts, strict=True)


def _class_rows(report: Report) -> Iterator[list[str]]:
    """Yield rows of all classes, or of the largest and the smallest."""
    rows = list(_class_counts(report))
    skipped = len(rows) - 2 * _END_CLASSES
    if skipped > 1:
        ranked = sorted(rows, key=lambda row: -row[1])
        rows = [*ranked[:_END_CLASSES], None, *ranked[-_END_CLASSES:]]
    for row in rows:
        if row is None:
            yield [f"({skipped:,} classes between)"]
        else:
            yield [table_cell(row[0]), *(f"{count:,}" for count in row[1:])]


def _spread(spread: Spread | None) -> str:
    return f"{spread.lowest:.4g} / {spread.median:.4g} / {spread.highest:.4g}" if spread else "-"


def _numbers(numbers: Sequence[float] | None) -> str:
    return ", ".join(f"{number:.3f}" for number in numbers) if numbers else "-"


def _formats(formats: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in formats.items()) or "-"


_ROWS_OF_LABELS = ("without a label", "classes with images", "largest class / smallest")
_ROWS: dict[str, Callable[[SplitReport], str]] = {
    "images": lambda split: f"{split.examples:,}",
    "inspected": lambda split: f"{split.examined:,}",
    "unreadable": lambda split: f"{len(split.bad):,}",
    "without a label": lambda split: f"{split.unlabelled:,}",
    "classes with images": lambda split: f"{sum(map(bool, split.class_counts)):,}",
    "largest class / smallest": lambda split: f"{split.imbalance:.3g}" if split.imbalance else "-",
    "height: min / median / max": lambda split: _spread(split.height),
    "width": lambda split: _spread(split.width),
    "width / height": lambda split: _spread(split.aspect),
    "grey": lambda split: f"{split.grey:,}",
    "formats": lambda split: _formats(split.formats),
    "pixel mean, 0 to 1": lambda split: _numbers(split.mean),
    "pixel standard deviation": lambda split: _numbers(split.std),
    "duplicates within the split": lambda split: f"{split.repeated:,}",
}
_ROWS_OF_CAPTIONS: dict[str, Callable[[SplitReport], str]] = {
    "captions": lambda split: f"{split.captions:,}",
    "tokens of a caption: min / median / max": lambda split: _spread(split.tokens),
}
# Rows of splits with boxes, masks or depth; "" where they have none.
_ROWS_OF_TARGETS: dict[str, Callable[[TargetReport], str]] = {
    "objects": lambda found: f"{sum(found.objects):,}" if found.objects else "",
    "most objects in an image": lambda found: f"{found.most:,}" if found.objects else "",
    "images without objects": lambda found: f"{found.empty:,}" if found.objects else "",
    "pixels ignored": lambda found: f"{found.ignored:.2%}" if found.shares else "",
    "depth: min / median / max": lambda found: _spread(Spread(*found.depth)) if found.depth else "",
    "pixels of unknown depth": lambda found: f"{found.unknown:.2%}" if found.depth else "",
}
