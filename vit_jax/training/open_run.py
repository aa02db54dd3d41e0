"""A run opened again: its experiment as this machine can run it, and data to run it on.

reopened = open_run("runs/digits")
reopened.source("test")
reopened.experiment.preprocessing
"""

import dataclasses
import os
from dataclasses import dataclass

from ml_collections import ConfigDict

from vit_jax.config import default_config, differences, restore_config
from vit_jax.data import Source, TableOptions, list_splits, open_source
from vit_jax.errors import UserError
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.text import tell
from vit_jax.training.leaks import leak
from vit_jax.training.setup import Experiment, build, table_options


@dataclass(frozen=True)
class OpenedRun:
    """What a run folder stands for.

    run: the folder. experiment: as `build` makes it. other: what was asked for of other data than
    the run's own; None: its own are.
    """

    run: RunDir
    experiment: Experiment
    other: Source | None = None

    def source(self, split: str) -> Source:
        """A split of the data, or the other data; labels are numbered as the model has them.

        Raises UserError for a split that is not there.
        """
        if self.other is not None:
            return self.other
        sources = self.experiment.sources
        if split not in sources:
            raise UserError(f"{self.run.path} has no split {split!r}; it has {', '.join(sources)}")
        if split != "train":
            _warn_of_leak(self.run, sources[split])
        return sources[split]


def open_run(path: str | os.PathLike, dataset: str = "", split: str = "test") -> OpenedRun:
    """Opens a run folder again, on whatever devices there are.

    Args:
        path: a run folder, of a run or of weights that were converted.
        dataset: other data than the run's own; weights that were converted have none.
        split: of `dataset`, that is wanted.

    Raises:
        UserError: no such run, no data, or classes that cannot be matched.
    """
    folder = RunDir(path)
    record = folder.read_model()
    other = _open_other(folder, record, dataset, split) if dataset else None
    if folder.config_file.exists():
        config, only = restore_config(folder.read_config()), None
        _compare_config(folder, config)
    elif dataset:  # weights that were converted
        config, only = restore_config(default_config()), other
        config.dataset = dataset
        config.schedule.warmup = "0"  # which a few images would be too few for
    else:
        raise UserError(
            f"{path} was not trained here, so it has no data; name some as dataset "
            "(--dataset=DATASET)"
        )
    # Any machine will do, not only the one it ran on.
    config.distillation = default_config().distillation  # nor is a teacher wanted any more
    config.device, config.mesh = "auto", {"data": -1, "fsdp": 1, "tensor": 1}
    class_names = record.class_names if record.has_names() else None
    experiment = build(
        config, class_names=class_names, split=folder.read_split(), record=record, only=only
    )
    _check_classes(folder, record, config.dataset, experiment.record.class_names)
    return OpenedRun(folder, experiment, other)


def _compare_config(folder: RunDir, config: ConfigDict) -> None:
    """Says where `config.json` is not the configuration that the run was trained with."""
    saved = folder.read_last_record().get("config")
    if saved is None:
        return
    if changed := differences(restore_config(saved).to_dict(), config.to_dict()):
        tell(
            f"warning: {folder.config_file} is not what the last checkpoint was saved with "
            f"({', '.join(changed)}); if nobody has changed it on purpose it is damaged",
            error=True,
        )


def open_other(path: str | os.PathLike, dataset: str, split: str) -> Source:
    """A split of data that a model was not trained on, its labels numbered as the model has them.

    Needs nothing of the run but its record: neither its data nor its configuration.

    Raises:
        UserError: no such run or data, or classes that cannot be matched.
    """
    folder = RunDir(path)
    return _open_other(folder, folder.read_model(), dataset, split)


def _open_other(folder: RunDir, record: ModelRecord, dataset: str, split: str) -> Source:
    names = record.class_names if record.has_names() else None
    source = _other_source(dataset, split, names, _table_options(folder, dataset))
    _check_classes(folder, record, dataset, source.class_names)
    _warn_of_leak(folder, source)
    return source


def _warn_of_leak(folder: RunDir, source: Source) -> None:
    """Says on stderr how many images of a source the model was trained on."""
    if found := leak(source, folder.read_training_images()):
        tell(
            f"warning: {folder.path} was trained on {found}, so its accuracy on them is too good",
            error=True,
        )


def _check_classes(
    folder: RunDir, record: ModelRecord, dataset: str, found: tuple[str, ...]
) -> None:
    """Raises UserError where the classes of a model without names are not as many as the data's."""
    classes = len(record.class_names)
    if len(found) != classes:
        raise UserError(
            f"{folder.path} tells {classes:,} classes apart, whose names nobody has said, "
            f"and {dataset} has {len(found):,}: they cannot be matched. Write the names "
            "into class_names of model.json, in the order of the outputs"
        )


def _table_options(folder: RunDir, dataset: str) -> TableOptions | None:
    """The columns that the run's own table has, for another table in its place."""
    if not folder.config_file.exists():
        return None
    config = restore_config(folder.read_config())
    same_kind = config.dataset.partition(":")[0] == dataset.partition(":")[0]
    return dataclasses.replace(table_options(config), image_dir="") if same_kind else None


def _other_source(
    dataset: str, split: str, class_names: tuple[str, ...] | None, table: TableOptions | None
) -> Source:
    """A split of data that a model was not trained on; the only one where there is no choice."""
    splits = list_splits(dataset, holdout=0, class_names=class_names, table=table)
    if split not in splits and len(splits) == 1:
        tell(f"{dataset} has no split {split!r}: all its images are taken", error=True)
        [split] = splits
    return open_source(dataset, split, holdout=0, class_names=class_names, table=table)
