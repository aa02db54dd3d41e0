"""Dataset registry: from a dataset's name to a random-access source of decoded examples.

    train = open_source("folder:pets", "train")
    train[0]  # {"image": uint8 (375, 500, 3), "label": 3}

A dataset is named by a string: `folder:PATH`, `csv:PATH`, `jsonl:PATH`, `wds:PATH`, `digits`,
`tfds:NAME[:CONFIG]`, `hf:OWNER/NAME` and `parquet:PATH` (`hub.py`), `masks:PATH`, `coco:PATH` and
`dense:NAME` (`dense/`), `scenes:NAME` (`scenes/`), `compositions:digits` (`compositions.py`), clips
of `frames:PATH` and `moving:digits` (`clips/`), a name that a user's own module has registered
(`custom.py`), `captions:` and any of these (`captions.py`), or `mix:` of several (`mix.py`). A
split is one of the dataset's own, or a part of one in the slicing language of TFDS: `train`,
`test[:100]`, `train[90%:]`. The rest of the
package uses only the interface of `Source`.
"""

import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from vit_jax.data.features import IMAGES, LABELLED
from vit_jax.data.labels import number_classes, unknown_to_model
from vit_jax.data.paths import same_form
from vit_jax.data.sources import custom
from vit_jax.data.sources.clips import folders, moving
from vit_jax.data.sources.composed import captions, compositions, mix
from vit_jax.data.sources.dense import OF_FILES
from vit_jax.data.sources.examples import Example, MemoryExamples
from vit_jax.data.sources.files import open_files
from vit_jax.data.sources.folder import list_folder
from vit_jax.data.sources.hub import OF_TABLES
from vit_jax.data.sources.manifest.captions import captions_file
from vit_jax.data.sources.manifest.columns import TableOptions
from vit_jax.data.sources.manifest.listing import list_table
from vit_jax.data.sources.names import argument_of
from vit_jax.data.sources.scenes import scenes
from vit_jax.data.sources.source import IN_MEMORY_BYTES, Source
from vit_jax.data.sources.splits import Listing, split_sizes
from vit_jax.data.sources.webdataset import listing as shards
from vit_jax.data.texts import USUAL, TextOptions, make_texts
from vit_jax.errors import UserError, nearest, shown

# TFDS takes most of a second to import, and files do not need it: the functions below import it.
if TYPE_CHECKING:
    import tensorflow_datasets as tfds

DATASET_FORMS = (
    "digits",
    "folder:PATH",
    "csv:PATH",
    "jsonl:PATH",
    "wds:PATH",
    "tfds:NAME",
    "tfds:NAME:CONFIG",
    "hf:OWNER/NAME",
    "parquet:PATH",
    "captions:DATASET",
    "mix:DATASET=WEIGHT,DATASET=WEIGHT",
    "masks:PATH",
    "coco:PATH",
    "dense:NAME",
    "scenes:digits",
    "scenes:fashion",
    "compositions:digits",
    "frames:PATH",
    "moving:digits",
)
TABLE_KINDS = ("csv", "jsonl")
_MADE_HERE = {
    scenes.PREFIX: scenes.open_scenes,
    compositions.PREFIX: compositions.open_compositions,
    moving.PREFIX: moving.open_moving,
}


def open_source(
    dataset: str,
    split: str,
    *,
    data_dir: str | os.PathLike | None = None,
    manual_dir: str | os.PathLike | None = None,
    holdout: float = 0.2,
    split_seed: int = 0,
    class_names: Sequence[str] | None = None,
    saved: Mapping[str, Sequence[str]] | None = None,
    table: TableOptions | None = None,
    labels: bool = True,
    texts: TextOptions | None = USUAL,
) -> Source:
    """Open a split of a dataset; prepare the dataset first if necessary and possible.

    Args:
      dataset: `folder:PATH` with one sub-folder per class, or images without labels; `csv:PATH` or
        `jsonl:PATH` with paths and labels; `digits`; `tfds:NAME[:CONFIG]`, an
        image-classification set of TFDS; or `scenes:digits`, with dense targets.
      split: such as `train`, `test` or `train[:90%]`.
      data_dir: root of the prepared TFDS datasets; `None` is TFDS's own (`~/tensorflow_datasets`,
        or `$TFDS_DATA_DIR`).
      manual_dir: directory with manually downloaded files, for preparing a TFDS dataset.
      holdout: share of every class that becomes the `test` split of a folder or file of labels
        with neither `test` nor `validation`.
      split_seed: seed of the choice of held-out images.
      class_names: classes of a trained model, which number the labels; the dataset's classes are
        matched with them by name.
      saved: the files of splits as returned by `split_record`; other splits are computed.
      table: the columns of a table, if they cannot be detected.
      labels: whether labels are used. Without them the source has images only, `source.labels` is
        None and `class_names` is ignored; each split has the same files as with labels.
      texts: what turns captions into ids, if the dataset has captions; None: they are ignored.

    Raises:
      UserError: there is no such dataset or split, it is not an image classification dataset, it
        has a class that `class_names` lacks, or it is not prepared and cannot be prepared here.
    """
    if not 0 <= holdout < 1:
        raise UserError(f"data.holdout is {holdout}; it must be a share of at least 0 and below 1")
    if captioned := captions.captioned(dataset):
        where = {"data_dir": data_dir, "manual_dir": manual_dir, "table": table, "saved": saved}
        more = {"holdout": holdout, "split_seed": split_seed, "class_names": class_names}
        source = open_source(captioned, split, texts=None, **where, **more)
        return captions.with_captions(source, dataset, labels, texts)
    class_names = class_names if labels else None
    if (parts := mix.parts_of(dataset)) is not None:
        where = {"data_dir": data_dir, "manual_dir": manual_dir, "holdout": holdout}
        more = {"split_seed": split_seed, "class_names": class_names, "labels": labels}
        open_split = functools.partial(open_source, split=split, texts=None, **where, **more)
        return mix.open_mix(dataset, split, parts, open_split)
    listing = _listing(dataset, class_names, table, labels, texts)
    if listing is not None:
        saved_paths = saved.get(split) if saved else None
        options = texts or USUAL
        return open_files(listing, split, holdout, split_seed, class_names, saved_paths, options)
    if opened := _opened(dataset, data_dir, table):
        names, numbers = _numbered(dataset, opened.class_names, class_names)
        return custom.open_part(
            opened, dataset, split, holdout, split_seed, list(numbers.values()), names, labels
        )
    builder = _builder(dataset, data_dir, manual_dir)
    if dataset.startswith("dense:"):
        from vit_jax.data.sources.dense.tfds_sets import open_dense

        return open_dense(builder, dataset, split, class_names, labels)
    return _open_builder(builder, dataset, split, class_names, labels, texts)


def list_splits(
    dataset: str,
    *,
    data_dir: str | os.PathLike | None = None,
    manual_dir: str | os.PathLike | None = None,
    holdout: float = 0.2,
    split_seed: int = 0,
    class_names: Sequence[str] | None = None,
    table: TableOptions | None = None,
    labels: bool = True,
) -> dict[str, int]:
    """Return the number of examples of each split of a dataset; arguments as for `open_source`.

    Raises:
      UserError: there is no such dataset, or it is not prepared and cannot be prepared here.
    """
    if captioned := captions.captioned(dataset):
        where = {"data_dir": data_dir, "manual_dir": manual_dir, "table": table}
        return list_splits(captioned, holdout=holdout, split_seed=split_seed, **where)
    if (parts := mix.parts_of(dataset)) is not None:
        where = {"data_dir": data_dir, "manual_dir": manual_dir}
        sizes = [list_splits(x, holdout=holdout, split_seed=split_seed, **where) for x in parts]
        common = [name for name in sizes[0] if all(name in other for other in sizes)]
        return {name: sum(each[name] for each in sizes) for name in common}
    listing = _listing(dataset, class_names if labels else None, table, labels)
    if listing is not None:
        return split_sizes(listing, holdout, split_seed)
    if opened := _opened(dataset, data_dir, table):
        return custom.sizes(opened, holdout, split_seed)
    from vit_jax.data.sources import tfds

    builder = _builder(dataset, data_dir, manual_dir)
    if not builder.info.splits:
        tfds.open_records(builder, dataset, "train", "image")  # raises with the missing files
    return {name: info.num_examples for name, info in builder.info.splits.items()}


def split_record(sources: Mapping[str, Source]) -> dict[str, list[str]]:
    """Return the files of every split of some sources, to be stored as JSON and used as `saved`."""
    return {source.split: list(source.files) for source in sources.values() if source.files}


def _listing(
    dataset: str,
    class_names: Sequence[str] | None,
    table: TableOptions | None,
    labels: bool,
    texts: TextOptions | None = USUAL,
) -> Listing | None:
    """Return the listing of a dataset of files; None for other datasets."""
    kind, _, path = dataset.partition(":")
    if kind not in ("folder", folders.KIND, shards.KIND, *TABLE_KINDS):
        return None
    if not path:
        raise UserError(f"{dataset!r} has no path; use {kind}:PATH")
    if kind == folders.KIND:
        return folders.list_clips(dataset, path, class_names, labels)
    if kind == shards.KIND:
        return shards.list_shards(dataset, path, labels, texts)
    ending = os.path.splitext(path)[1].removeprefix(".")
    if kind == "folder" and ending in TABLE_KINDS and not os.path.isdir(os.path.expanduser(path)):
        kind = ending
    if kind == "folder" and texts and (file := captions_file(path)):
        path, kind = file, os.path.splitext(file)[1].removeprefix(".")
    if kind == "folder":
        return list_folder(dataset, path, class_names, labels)
    return list_table(dataset, path, kind, table, labels, texts)


def _opened(
    dataset: str, data_dir: str | os.PathLike | None, table: TableOptions | None = None
) -> "custom.Dataset | None":
    """Return a dataset with dense targets or made on the spot, or a user's own; None for others."""
    kind, _, argument = dataset.partition(":")
    if kind in (*OF_FILES, *OF_TABLES):
        if not argument:
            raise UserError(f"{dataset!r} has no path; use {kind}:PATH")
        if opener := OF_TABLES.get(kind):
            return opener(argument, (table or TableOptions()).label_column)
        return OF_FILES[kind](argument)
    open_split = functools.partial(open_source, data_dir=data_dir)
    for prefix, opener in _MADE_HERE.items():
        if (argument := argument_of(dataset, prefix)) is not None:
            return opener(argument, open_split)
    return custom.open_dataset(dataset)


def _builder(
    dataset: str, data_dir: str | os.PathLike | None, manual_dir: str | os.PathLike | None
) -> "tfds.core.DatasetBuilder":
    from vit_jax.data.sources import tfds
    from vit_jax.data.sources.digits import SklearnDigits

    kind, _, name = dataset.partition(":")
    if dataset == "digits":
        kind, name = "tfds", SklearnDigits.name
    if kind not in ("tfds", "dense") or not name:
        raise UserError(_no_such_dataset(dataset))
    # An empty text, as in the configuration, means None.
    return tfds.open_builder(
        name,
        os.fspath(data_dir) if data_dir else None,
        os.fspath(manual_dir) if manual_dir else None,
    )


# Words before a path or name in other tools, by the type of dataset that they mean.
_KINDS = {
    "folder": "folder folders imagefolder image_folder dir directory path file files images",
    "csv": "csv tsv table manifest",
    "jsonl": "jsonl json ndjson",
    "wds": "wds webdataset tar shards",
    "tfds": "tfds tf tensorflow tensorflow_datasets tensorflow-datasets torchvision",
    "hf": "hf huggingface hub datasets",
    "parquet": "parquet pq",
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words.split()}


def _no_such_dataset(dataset: str) -> str:
    forms = f"use {' or '.join((*DATASET_FORMS, *custom.list_sources()))}"
    return f"there is no dataset {shown(dataset)}; {forms}{_nearest_dataset(dataset)}"


def _nearest_dataset(dataset: str) -> str:
    """Return a hint with the probable spelling, or ""."""
    from vit_jax.data.sources import tfds

    path = os.path.expanduser(dataset)
    kind = os.path.splitext(path)[1].removeprefix(".").lower()
    kind = "folder" if os.path.isdir(path) else _KIND_OF.get(kind, "")
    if dataset and os.path.exists(path) and kind in ("folder", "wds", *TABLE_KINDS):
        return f"; for that path, use {kind}:{dataset}"
    before, colon, rest = dataset.partition(":")
    known = ["digits", *custom.list_sources(), *(f"tfds:{name}" for name in tfds.known_names())]
    if colon and (kind := _KIND_OF.get(before.strip().lower())):
        meant = f"{kind}:{rest.strip() or 'PATH'}"
        if kind == "tfds":
            return nearest(meant.lower(), known, cutoff=0.8)
        return f"; did you mean {meant!r}?"
    return nearest(dataset, known)


def _numbered(
    dataset: str, own: Sequence[str], class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names of the labels, and the label of each class of a dataset, in its order."""
    names = tuple(class_names or map(same_form, own))
    numbers, unknown = number_classes(own, names)
    if unknown:
        raise UserError(unknown_to_model(dataset, unknown, names))
    return names, numbers


def _open_builder(
    builder: "tfds.core.DatasetBuilder",
    dataset: str,
    split: str,
    class_names: Sequence[str] | None,
    labels: bool,
    options: TextOptions | None,
) -> Source:
    from vit_jax.data.sources import tfds

    features = tfds.find_features(builder, dataset, labels, options is not None)
    why_unlabelled = "" if labels else "data.labels is False; omit it"
    if labels and features.label is None:
        labels, why_unlabelled = False, "it has captions, and no feature 'label'"
    records = tfds.open_records(builder, dataset, split, features.image_key)
    own_names = features.label.names if labels else ()
    names, numbers = _numbered(dataset, own_names, class_names)
    examples: Sequence[Example] = tfds.TfdsExamples(
        records=records,
        features=features,
        numbers=np.array([numbers[name] for name in own_names], np.int64),
        classes=len(names),
        split=f"{dataset} {split}",
        directory=str(builder.data_dir),
    )

    texts = None
    if options is not None and features.caption_key:
        training = None
        if options.needs_training_captions(split):
            theirs = tfds.open_records(builder, dataset, "train", features.image_key)
            training = dataclasses.replace(examples, records=theirs).captions()
        texts = make_texts(examples.captions(), options, f"{dataset} {split}", training)
    shape = features.image.shape
    in_memory = None not in shape and len(records) * math.prod(shape) <= IN_MEMORY_BYTES
    content = hashlib.sha256("\n".join(names).encode())
    if in_memory:
        examples = MemoryExamples.read(examples)
        if labels:
            content.update(examples.labels.tobytes())
    if texts is not None:
        content.update(texts.digest())
    captioned = {} if texts is None else {"text": texts.feature}
    return Source(
        name=dataset,
        split=split,
        class_names=names,
        fingerprint=f"{builder.info.full_name}:{split}:{len(records)}:{content.hexdigest()[:12]}",
        in_memory=in_memory,
        examples=examples,
        spans=tfds.find_spans(builder, split),
        multi_label=features.multi_label,
        features={**(LABELLED if labels else IMAGES), **captioned},
        why_unlabelled=why_unlabelled,
        notes=(texts.note,) if texts and texts.note else (),
        texts=texts,
        tokenizer=texts and texts.tokenizer,
    )
