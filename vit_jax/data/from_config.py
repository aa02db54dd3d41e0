"""Sources of a configuration: those of its splits, checked against each other."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from vit_jax.data.folds import fold_of
from vit_jax.data.sources.manifest.columns import TableOptions
from vit_jax.data.sources.registry import list_splits, open_source
from vit_jax.data.sources.source import Source
from vit_jax.data.sources.subset import stratified
from vit_jax.data.texts import TextOptions
from vit_jax.errors import UserError
from vit_jax.text import tell


def open_sources(
    config: ConfigDict,
    class_names: Sequence[str] | None,
    split: Mapping[str, Sequence[str]] | None,
    texts: TextOptions | None = None,
) -> dict[str, Source]:
    """Open the splits that a configuration names; they must share no images.

    With `data.fold` the test data are that fold of the training split, which loses it. Of the
    training split `data.limit` examples are kept.

    texts: what turns captions into ids; without a tokenizer, the one of the training split serves
        all of them. None: captions are ignored.
    """
    sources: dict[str, Source] = {}
    for name in ("train", "validation", "test"):
        if not config.data[name] and name == "validation":
            continue
        if config.data.fold and name == "test":
            continue
        sources[name] = open_source(
            config.dataset,
            config.data[name],
            data_dir=config.data.dir or None,
            manual_dir=config.data.manual_dir or None,
            holdout=config.data.holdout,
            split_seed=config.data.split_seed,
            class_names=class_names,
            saved=split,
            table=table_options(config),
            labels=config.data.labels,
            texts=texts,
        )
        if texts is not None and texts.tokenizer is None:
            texts = dataclasses.replace(texts, tokenizer=sources[name].tokenizer)
    check_splits(config, sources)
    if config.data.group_column and not sources["train"].groups:
        raise UserError(
            f"data.group_column = {config.data.group_column!r} needs a table, csv:PATH or "
            f"jsonl:PATH, with a group for each image, and {config.dataset} has none; omit it"
        )
    if config.data.fold:
        fold, seed = config.data.fold, config.data.split_seed
        sources["train"], sources["test"] = fold_of(sources["train"], fold, seed)
    if config.data.limit:
        limit, seed = config.data.limit, config.data.split_seed
        sources["train"] = stratified(sources["train"], limit, seed)
    return sources


def open_probe_sources(config: ConfigDict, dataset: str, test: str = "test") -> dict[str, Source]:
    """Open the labelled splits `train` and `test` of data other than those of a run.

    Args:
        test: split for `test`. Without a split test, its validation split is used.

    Raises:
        UserError: there is no such dataset or split, or the two share images.
    """
    table = options_for_other(config, dataset)
    where = {
        "data_dir": config.data.dir or None,
        "manual_dir": config.data.manual_dir or None,
        "holdout": config.data.holdout,
        "split_seed": config.data.split_seed,
        "table": table,
    }
    splits = list_splits(dataset, **where)
    if test == "test" and "test" not in splits and "validation" in splits:
        test = "validation"
    sources = {"train": "train", "test": test}
    sources = {name: open_source(dataset, split, **where) for name, split in sources.items()}
    if sources["train"].overlaps(sources["test"]):
        raise UserError(f"the splits train and {test} of {dataset} share images; separate them")
    return sources


def open_with_labels(
    config: ConfigDict, split: Mapping[str, Sequence[str]] | None
) -> dict[str, Source]:
    """Open the splits of a configuration with their labels, even if `data.labels` is false."""
    labelled = config.copy_and_resolve_references()
    labelled.data.labels = True
    return open_sources(labelled, None, split)


def table_options(config: ConfigDict) -> TableOptions:
    """Return the options of a configuration for a file of labels."""
    data = config.data
    return TableOptions(
        data.path_column,
        data.label_column,
        data.image_dir,
        data.caption_column,
        data.group_column,
    )


def options_for_other(config: ConfigDict, dataset: str) -> TableOptions | None:
    """Return the options of a configuration for another file of the same kind; else None."""
    if config.dataset.partition(":")[0] != dataset.partition(":")[0]:
        return None
    return dataclasses.replace(table_options(config), image_dir="", group_column="")


def check_splits(config: ConfigDict, sources: dict[str, Source]) -> None:
    """Raise UserError if two of the training, validation and test data share images."""
    for one, other in itertools.combinations(sources, 2):
        if sources[one].overlaps(sources[other]):
            links = [f"{a} = {b}" for a, b in sources[one].shared_files(sources[other]) if a != b]
            named = f" ({len(links):,} as links, such as {links[0]})" if links else ""
            raise UserError(
                f"data.{one} = {config.data[one]!r} and data.{other} = {config.data[other]!r} "
                f"share images{named}; use disjoint parts, such as "
                "--config.data.train='train[:90%]' "
                "--config.data.validation='train[90%:]' --config.data.test=test"
            )


def open_part(
    dataset: str,
    split: str,
    class_names: Sequence[str] | None,
    table: TableOptions | None,
    texts: TextOptions | None = None,
) -> Source:
    """Open a split of data that a model was not trained on; the only split if there is one.

    texts: what turns captions into ids; None: they are ignored.
    """
    splits = list_splits(dataset, holdout=0, class_names=class_names, table=table)
    if split not in splits and len(splits) == 1:
        tell(f"{dataset} has no split {split!r}: all its images are used", error=True)
        [split] = splits
    where = {"class_names": class_names, "table": table, "texts": texts}
    return open_source(dataset, split, holdout=0, **where)
