"""Evaluators applied to trained models: runs, converted weights, published weights.

judged = evaluate_by("knn", "runs/mae")
judged = evaluate_by("knn", "runs/mae", dataset="folder:pets")
judged = evaluate_by("linear_probe", "hf://google/vit-base-patch16-224", dataset="folder:pets")
judged.metrics["linear_accuracy"]
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from vit_jax.config import default_config, restore_config
from vit_jax.data import DecodeErrors, Source, eval_batches
from vit_jax.data.from_config import open_probe_sources
from vit_jax.errors import UserError
from vit_jax.evaluation import runner
from vit_jax.evaluation.base import HELD_OUT, Evaluator
from vit_jax.evaluation.probe import Probe
from vit_jax.evaluation.registry import get_evaluator, make_evaluator
from vit_jax.plugins import import_plugins
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.tasks.base import Task
from vit_jax.training.distributed.sharding import batch_shards, make_mesh, replicated, to_devices
from vit_jax.training.open_run import open_run
from vit_jax.training.setup.evaluators import RunEvaluators, check_evaluator
from vit_jax.training.step import make_eval_step
from vit_jax.weights.resolve import open_weights

BATCH_SIZE = 64
_ASKED_BY = "--evaluator"


class Judged(NamedTuple):
    """Metrics of a trained model.

    metrics: by name. step: of the checkpoint; None for published weights. split: the held-out data.
    unreadable: a sentence on images that could not be read; None if there are none.
    """

    metrics: dict[str, float]
    step: int | None
    split: str
    unreadable: str | None


def evaluate_by(
    name: str,
    model: str,
    *,
    dataset: str = "",
    split: str = "test",
    checkpoint: int | str = "last",
    raw: bool = False,
    fields: Mapping[str, Any] = MappingProxyType({}),
    shown: Callable[[Any, Source], Any] = lambda batches, source: batches,
) -> Judged:
    """Return the metrics of a trained model by the evaluator of a name.

    Args:
        name: of a registered evaluator.
        model: a run folder, or weights as for `vit_jax.load_pretrained`.
        dataset: data in place of the run's own, with a training split and any classes.
        split: the held-out split.
        checkpoint, raw: of a run.
        fields: of its model, to change how it computes (`ModelRecord.used_with`).
        shown: passes the batches of a source on, such as to show the progress.

    Raises:
        UserError: unknown evaluator, model, data or split, or data that do not fit the evaluator.
    """
    run = RunDir(model)
    if run.is_run():
        import_plugins(run.read_model().plugins, "plugins of the model record (model.json)")
    kind = get_evaluator(name, _ASKED_BY)
    trained_here = run.is_run() and run.config_file.exists()
    if not dataset and not trained_here:
        raise UserError(
            f"{model} was not trained here, so it has no data; name a data set (--dataset=DATASET)"
        )
    if trained_here and not (dataset and issubclass(kind, Probe)):
        return _by_its_task(name, model, dataset, split, checkpoint, raw, fields, shown)
    if not issubclass(kind, Probe):
        raise UserError(
            f"the evaluator {name!r} needs the task of a run that was trained here; {model} has "
            "weights only"
        )
    if run.is_run():
        record = run.read_model().used_with(fields)
        variables, step = run.read_variables(checkpoint, raw=raw, record=record)
        record, variables = record.alone(), record.of_encoder(variables)
    else:
        (record, variables), step = open_weights(model), None
        record = record.used_with(fields)
    config = restore_config(run.read_config()) if trained_here else default_config()
    sources = open_probe_sources(config, dataset, split)
    metrics, unreadable = _by_its_features(name, record, variables, sources, shown)
    return Judged(metrics, step, sources["test"].split, unreadable)


def _by_its_task(name, model, dataset, split, checkpoint, raw, fields, shown) -> Judged:
    """Return the metrics of a run with the task and the devices of its experiment."""
    opened = open_run(model, fields=fields)
    experiment, judging = opened.experiment, opened.experiment.judging
    evaluator = _find(judging, name)
    if dataset:
        sources = open_probe_sources(experiment.config, dataset, split)
        split, shown_split = "test", sources["test"].split
    else:
        shown_split = split
        opened.source(split)  # an unknown split, or images of it that were trained on
        own = evaluator in judging.task.evaluators()
        sources = judging.sources if own else judging.of_named
    if split not in sources:
        raise UserError(f"there is no split {split!r}; there are {', '.join(sources)}")
    check_evaluator(evaluator, sources, split)
    variables, step = opened.run.read_variables(checkpoint, raw=raw, record=experiment.record)
    result = experiment.evaluate(
        variables,
        sources[split],
        evaluator=evaluator,
        sources=sources,
        shown=lambda batches: shown(batches, sources[split]),
    )
    unreadable = experiment.decode_errors.summary()
    return Judged(result.metrics, step, shown_split, unreadable)


def _find(judging: RunEvaluators, name: str) -> Evaluator:
    """Return the evaluator of a run with this name, or a new one."""
    known = [evaluator for evaluator in judging.all if evaluator.name == name]
    return known[0] if known else make_evaluator(name, judging.task, _ASKED_BY)


@dataclass(frozen=True)
class _Encoder(Task):
    """Task of a trained encoder, which gives features only."""

    model: nn.Module


def _by_its_features(
    name: str,
    record: ModelRecord,
    variables: dict[str, Any],
    sources: dict[str, Source],
    shown: Callable[[Any, Source], Any],
) -> tuple[dict[str, float], str | None]:
    """Return the metrics of an encoder, and a sentence on images that could not be read."""
    task = _Encoder(record.create_model())
    evaluator = make_evaluator(name, task, _ASKED_BY)
    check_evaluator(evaluator, sources, "test")
    there = {**sources, HELD_OUT: sources["test"]}
    mesh, bad = make_mesh(jax.devices()), DecodeErrors()
    size = -(-BATCH_SIZE // batch_shards(mesh)) * batch_shards(mesh)

    def batches(source):
        made = eval_batches(source, record.preprocessing, batch_size=size, bad=bad)
        return (to_devices(batch, mesh) for batch in shown(made, source))

    result = runner.evaluate(
        evaluator,
        make_eval_step(evaluator, task, record.preprocessing, mesh),
        jax.device_put(variables, replicated(mesh)),
        {split: evaluator.choose(split, there[split]) for split in evaluator.splits},
        batches,
    )
    return result.metrics, bad.summary()
