"""Opening of a finished run: its experiment on this machine, and its data.

reopened = open_run("runs/digits")
reopened.source("test")
reopened.experiment.preprocessing
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import default_config, differences, restore_config
from vit_jax.data import Source, TableOptions, check_inputs
from vit_jax.data.from_config import open_part, options_for_other
from vit_jax.data.texts import TextOptions
from vit_jax.errors import UserError
from vit_jax.models.dense import CLASSES, gives
from vit_jax.models.registry import get_preset
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.runs.tokenizer import read_tokenizer
from vit_jax.text import tell
from vit_jax.training.leaks import leak
from vit_jax.training.setup.build import build
from vit_jax.training.setup.experiment import Experiment


@dataclass(frozen=True)
class OpenedRun:
    """Run that was opened again.

    run: the folder. experiment: as built by `build`. other: a source requested in place of the
    run's own data; None for its own.
    """

    run: RunDir
    experiment: Experiment
    other: Source | None = None

    def source(self, split: str) -> Source:
        """Return a split of the data, or the other data, with the model's label numbering.

        Raises UserError for an unknown split.
        """
        if self.other is not None:
            return self.other
        sources = self.experiment.sources
        if split not in sources:
            raise UserError(f"{self.run.path} has no split {split!r}; it has {', '.join(sources)}")
        if split != "train":
            warn_of_leak(self.run, sources[split])
        return sources[split]


def open_run(
    path: str | os.PathLike,
    dataset: str = "",
    split: str = "test",
    fields: Mapping[str, Any] = MappingProxyType({}),
    *,
    test: str = "",
) -> OpenedRun:
    """Open a run folder again, on the devices of this machine.

    Args:
        path: a run folder, of a run or of converted weights.
        dataset: data to use in place of the run's own; converted weights have none.
        split: split of `dataset`.
        fields: of the model, to change how it computes (`ModelRecord.used_with`).
        test: split in place of the run's `data.test`, such as the test images of a run that was
            tested on validation images.

    Raises:
        UserError: missing run, no data, classes that cannot be matched, or an invalid field.
    """
    folder = RunDir(path)
    record = folder.read_model().used_with(fields)
    other = _open_other(folder, record, dataset, split) if dataset else None
    if folder.config_file.exists():
        config, only = restore_config(folder.read_config()), None
        _compare_config(folder, config)
    elif dataset:  # converted weights
        config, only = restore_config(default_config()), other
        config.dataset = dataset
        if gives(get_preset(record.name).architecture) != CLASSES:
            config.task = record.task
            config.objective.update(record.options)
        config.schedule.warmup = "0"  # a small data set may have fewer steps than the warm-up
    else:
        raise UserError(
            f"{path} was not trained here, so it has no data; name a data set (--dataset=DATASET)"
        )
    config.model.update(fields)
    config.data.test = test or config.data.test
    # The run may be opened on a different machine.
    config.distillation = default_config().distillation  # the teacher is no longer needed
    config.device, config.mesh = "auto", {"data": -1, "fsdp": 1, "tensor": 1}
    experiment = build(
        config,
        like=record,
        split=folder.read_split(),
        record=record,
        only=only,
        tokenizer=read_tokenizer(folder),
    )
    record.check_classes(config.dataset, experiment.train_source, folder.path)
    if other is not None:
        inputs = experiment.evaluators[0].inputs.items()
        texts = {name: feature for name, feature in inputs if feature.kind == "text"}
        check_inputs(texts, other, wanted_by=f"the task {config.task}")
    return OpenedRun(folder, experiment, other)


def _compare_config(folder: RunDir, config: ConfigDict) -> None:
    """Warn if `config.json` differs from the configuration that the run was trained with."""
    saved = folder.read_last_record().get("config")
    if saved is None:
        return
    if changed := differences(restore_config(saved).to_dict(), config.to_dict()):
        tell(
            f"warning: {folder.config_file} differs from the configuration of the last checkpoint "
            f"({', '.join(changed)}); unless it was edited on purpose, it is damaged",
            error=True,
        )


def open_other(path: str | os.PathLike, dataset: str, split: str) -> Source:
    """Open a split of data that a model was not trained on, with the model's label numbering.

    It needs only the record of the run: neither its data nor its configuration.

    Raises:
        UserError: missing run or data, or classes that cannot be matched.
    """
    folder = RunDir(path)
    return _open_other(folder, folder.read_model(), dataset, split)


def _open_other(folder: RunDir, record: ModelRecord, dataset: str, split: str) -> Source:
    tokenizer = read_tokenizer(folder)
    texts = None if tokenizer is None else TextOptions(tokenizer)
    table = _table_options(folder, dataset)
    source = open_part(dataset, split, record.label_names(), table, texts)
    record.check_classes(dataset, source, folder.path)
    warn_of_leak(folder, source)
    return source


def warn_of_leak(folder: RunDir, source: Source) -> None:
    """Warn on stderr about images of a source that the model was trained on."""
    if found := leak(source, folder.read_training_images()):
        tell(
            f"warning: {folder.path} was trained on {found}, so its accuracy on them is too high",
            error=True,
        )


def _table_options(folder: RunDir, dataset: str) -> TableOptions | None:
    """Return the column options of the run's own table, for a table used in its place."""
    if not folder.config_file.exists():
        return None
    return options_for_other(restore_config(folder.read_config()), dataset)
