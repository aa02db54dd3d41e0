"""Building of the experiment that a configuration describes.

It runs all checks and compiles nothing, so mistakes are reported within seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
from ml_collections import ConfigDict

from vit_jax.config.durations import Clock
from vit_jax.data import Augment, DecodeErrors, Source, train_features
from vit_jax.data.features import check_inputs
from vit_jax.data.from_config import open_sources
from vit_jax.data.pipeline import check_clips, check_packing
from vit_jax.errors import UserError
from vit_jax.evaluation.registry import EVALUATORS, evaluator_names
from vit_jax.models import create_model
from vit_jax.models.description import describe
from vit_jax.models.registry import outside_modules
from vit_jax.plugins import import_installed, import_plugins, module_names
from vit_jax.runs import ModelRecord
from vit_jax.tasks.base import Setting, Task
from vit_jax.tasks.registry import TASKS, get_task, make_task, own_fields
from vit_jax.training.compile_cache import compile_anew_where_unsafe
from vit_jax.training.distributed.sharding import find_devices, make_mesh
from vit_jax.training.logging.provenance import library_versions
from vit_jax.training.optim.optimizer import make_optimizer
from vit_jax.training.optim.param_groups import trainable_mask
from vit_jax.training.optim.schedules import make_decay_schedule, make_schedule
from vit_jax.training.reuse import reuse, trace_key
from vit_jax.training.setup import checks
from vit_jax.training.setup.experiment import Experiment
from vit_jax.training.setup.preprocessing import choose_preprocessing
from vit_jax.training.setup.pretrained_init import (
    chosen_name,
    inherited_fields,
    load_pretrained_init,
)
from vit_jax.training.setup.texts import text_options
from vit_jax.training.setup.tracing import trace

DEFAULT_MODEL = "ViT-Ti/16"


def build(
    config: ConfigDict,
    *,
    like: ModelRecord | None = None,
    split: Mapping[str, Sequence[str]] | None = None,
    record: ModelRecord | None = None,
    only: Source | None = None,
    tokenizer: Any = None,
) -> Experiment:
    """Build and check the experiment of a configuration; raise UserError for invalid values.

    Args:
        config: of `vit_jax.config`.
        like: record of a trained model whose classes the data must have, in its order.
        split: files of each split of the run (`RunDir.read_split`).
        record: of an already trained model, in place of the one in `init_from`.
        only: source used for all splits; nothing can be trained then.
        tokenizer: of an already trained run, in place of `data.tokenizer`.
    """
    plugins = module_names(config.plugins)
    import_installed()
    import_plugins(plugins, "--config.plugins")
    mesh = make_mesh(find_devices(config.device), **config.mesh)
    compile_anew_where_unsafe(mesh)

    kind = get_task(config.task)
    names = like.label_names() if like else None
    start = None
    if config.init_from and record is None:
        start = load_pretrained_init(config.init_from, lambda: kind.read_start(config))
    texts = None
    if kind.reads_texts and not only:
        texts = text_options(config, tokenizer, start and start.fields)
    sources = {"train": only, "test": only} if only else open_sources(config, names, split, texts)
    train_source = sources["train"]
    notes: list[str] = []
    if only is None:  # otherwise nothing will be trained
        checks.check_stop(config, sources)
        config, notes = checks.fit_batch(config, len(train_source))

    trained = start.record if start else record
    name, fields, model = _model(config, kind.outputs(config, train_source), trained)
    preprocessing = choose_preprocessing(config, model, trained)
    if start:
        notes += checks.describe_preprocessing(config, trained.preprocessing, preprocessing)
    augment = Augment.among(config.augment)
    augment.check_channels(preprocessing.channels)
    clock = Clock(len(train_source), config.batch_size)
    clock = Clock(clock.examples, clock.batch_size, checks.resolve_steps(config, "duration", clock))
    begun = start.fields if start else record.options if record else {}
    begun = begun if trained and trained.task == config.task else {}
    task = make_task(Setting(config, model, train_source, preprocessing, augment, clock, begun))
    checks.check_accumulation(config, task)
    checks.check_patches(config, task, preprocessing)
    checks.check_patch_sizes(config, task)
    check_packing(preprocessing, task.transform(augment))
    check_clips(train_source, preprocessing, task.transform(augment))
    checks.check_clips(config, preprocessing)
    check_inputs(
        task.inputs,
        train_source,
        features=train_features(train_source, task.transform(augment)),
        wanted_by=f"the task {config.task}",
    )
    notes += checks.describe_length(clock, config.duration)
    _check_intervals(config, clock)
    schedule = make_schedule(config, clock)
    metric_names, params_shapes = reuse(
        trace_key(task, preprocessing, train_source),
        "trace",
        lambda: trace(task, preprocessing, train_source),
    )
    described = describe(params_shapes, task.roles(params_shapes))
    record = ModelRecord(
        name=name,
        fields=fields,
        preprocessing=preprocessing,
        origin=_origin(config, task),
        versions=library_versions(),
        plugins=_modules(config, name, plugins),
        task=config.task,
        options=_options(task, begun, own_fields(kind, config)),
        **task.record_fields(train_source),
    )
    experiment = Experiment(
        config=config,
        sources=sources,
        model=model,
        record=record,
        start=start.fit(model, record, _others(task, params_shapes)) if start else None,
        augment=augment,
        task=task,
        metric_names=metric_names,
        clock=clock,
        schedule=schedule,
        described=described,
        optimizer=make_optimizer(
            config,
            schedule,
            params_shapes,
            described,
            decay=make_decay_schedule(config, clock),
            frozen_until=task.frozen_until,
        ),
        trainable=trainable_mask(config, params_shapes, described),
        mesh=mesh,
        decode_errors=DecodeErrors(strict=config.data.on_decode_error == "raise"),
        notes=tuple(notes),
    )
    if like is None:  # otherwise it may be used without them
        experiment.judging.check()
    return experiment


def _model(
    config: ConfigDict, outputs: int, trained: ModelRecord | None
) -> tuple[str, dict[str, Any], nn.Module]:
    """Return name, fields and module of the model; raise UserError for invalid fields.

    outputs: of its head. trained: record of a model whose fields it inherits.
    """
    inherited = inherited_fields(config, trained) if trained else {}
    fields = checks.model_fields(config, outputs)
    for name, value in inherited.items():
        both = isinstance(value, Mapping) and name in fields  # fields of a backbone
        fields[name] = {**value, **fields[name]} if both else fields.get(name, value)
    name = chosen_name(config, trained) if trained else config.model.name or DEFAULT_MODEL
    try:
        fields = checks.fit_precision(config, name, fields)
        return name, fields, create_model(name, **fields)
    except (ValueError, TypeError) as error:
        raise UserError(f"model: {error}") from error


def _others(task: Task, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the modules of a task besides its encoder."""
    return {name: tree for name, tree in params.items() if task.encoder and name != task.encoder}


def _options(task: Task, begun: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the task for the record: those of the weights, and those of the run."""
    sizes = {name: getattr(task, name) for name in begun if name in task.from_setting}
    return {**begun, **own, **sizes}


def _check_intervals(config: ConfigDict, clock: Clock) -> None:
    """Raise UserError for an interval that is no duration."""
    keys = ["checkpoint.every", "evaluate.every", "log.every"]
    if config.log.diagnostics:
        keys.append("log.diagnostics")
    if config.evaluate.probe_every:
        keys.append("evaluate.probe_every")
    for key in keys:
        checks.resolve_steps(config, key, clock)


def _origin(config: ConfigDict, task: Task) -> str:
    """Return the origin of the parameters, for the record of the model."""
    start = f", from {config.init_from}" if config.init_from else ""
    more = f", {task.origin}" if task.origin else ""
    return f"trained on {config.dataset} ({config.data.train}){start}{more}"


def _modules(config: ConfigDict, name: str, plugins: Sequence[str]) -> tuple[str, ...]:
    """Return the modules outside this package that another process imports to load a run."""
    of_task = TASKS.outside_modules([config.task], "task")
    of_evaluators = EVALUATORS.outside_modules(evaluator_names(config.evaluators), "evaluators")
    return tuple(dict.fromkeys((*plugins, *outside_modules(name), *of_task, *of_evaluators)))
