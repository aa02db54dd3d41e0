"""Several tasks at once: one backbone learns classes, segmentation, depth and detection.

- The model has a head for each task (`UniversalViT`); a head learns what its own task learns, from
  the same features. The backbone runs once for all of them.
- The loss is the sum of the mean losses of the tasks, with fixed weights, or with weights that are
  learned as the noise of each task (Kendall et al. 2018, "Multi-Task Learning Using Uncertainty to
  Weigh Losses", section 3.2, with s = log of the variance): exp(-s) * loss + s / 2.
- Of a batch of mixed data (`mix:`) each task reads the examples that have its truth.
"""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from vit_jax.data.features import IMAGE, Feature
from vit_jax.data.sources.composed.mix import KNOWN
from vit_jax.errors import UserError, nearest, shown
from vit_jax.evaluation.dense.segmentation import IGNORED
from vit_jax.evaluation.dense.several import SeveralEvaluators
from vit_jax.models.dense import CLASSES, DEPTH, DETECTION, SEGMENTATION, frozen_fields, gives
from vit_jax.models.description import model_roles
from vit_jax.models.description.roles import Role
from vit_jax.models.universal.module import SEVERAL
from vit_jax.runs.record import part_of
from vit_jax.tasks.base import Loss, Task
from vit_jax.tasks.registry import TASK_OF, TASKS, register_task

MODEL, BALANCE = "model", "balance"  # parts of the parameters with learned weights
_LEAST = 1e-9  # of the weight of a loss, where no example has the truth


@register_task("multitask")
@dataclass(frozen=True)
class MultiTask(Task):
    """Sum of the mean losses of the tasks of all heads of a `UniversalViT`.

    The batch holds what the tasks need: `label` (-1: none), `segmentation`, `depth`, `boxes` and
    `classes`; with mixed data also `has_boxes`.

    weights: of the losses of some heads, "depth=0.5,detection=2"; of others 1.
    learned_weights: whether they are learned, and `weights` are what they begin with.
    options: fields of the task of a head by name, {"depth": {"kind": "affine"}}.
    parts: the task of each head.
    """

    model: nn.Module
    weights: str = ""
    learned_weights: bool = False
    options: Any = None
    parts: tuple[tuple[str, Task], ...] = ()

    additive: ClassVar[bool] = False
    from_setting: ClassVar = ("model", "parts")

    def __post_init__(self):
        object.__setattr__(self, "options", frozen_fields(self.options or {}))
        _ = self.factors

    # ------------------------------------------------------------------ from a configuration

    @classmethod
    def outputs(cls, config, source):
        """Return the number of classes of labels; 0 without labels."""
        del config
        return len(source.class_names) if source.has_labels else 0

    @classmethod
    def make(cls, setting, **fields):
        """Return the task of a configuration. Raises UserError for a model with one head."""
        model, config = setting.model, setting.config
        if gives(model) != SEVERAL:
            raise UserError(
                f"the task 'multitask' needs a model with several heads, and "
                f"{config.model.name or 'the default model'} gives {gives(model)}; use "
                "--config.model.name=UniversalViT"
            )
        for name in ("mixup", "cutmix"):
            if config.augment[name]:
                raise UserError(
                    f"augment.{name} = {config.augment[name]} mixes images, of which the task "
                    "'multitask' cannot mix the masks and boxes; set it to 0"
                )
        options = dict(fields.get("options") or {})
        if unknown := [name for name in options if name not in model.task_names]:
            raise UserError(
                f"objective.options has {shown(unknown[0])}, but the heads are "
                f"{', '.join(model.task_names)}{nearest(unknown[0], model.task_names)}"
            )
        parts = []
        for name in model.task_names:
            part = model.part(name)
            if dict(options.get(name, {})).get("padding"):
                raise UserError(
                    f"objective.options.{name}.padding is for a DETR alone, since the other heads "
                    "take no mask; remove it"
                )
            kind = TASKS.find(TASK_OF[gives(part)], "task")
            _check_classes(name, part, kind, setting.source)
            of_part = dataclasses.replace(setting, model=part)
            parts.append((name, kind.make(of_part, **dict(options.get(name, {})))))
        return cls(model, parts=tuple(parts), **fields)

    @property
    def inputs(self) -> dict[str, Feature]:
        """The image, and what the tasks of all heads need."""
        wanted = {"image": IMAGE}
        for _, part in self.parts:
            wanted |= part.inputs
        return {name: dataclasses.replace(of, partial=True) for name, of in wanted.items()}

    @property
    def encoder(self) -> str:
        """The model, which has the parameters for itself unless weights are learned."""
        return MODEL if self.learned_weights else ""

    @functools.cached_property
    def factors(self) -> dict[str, float]:
        """Weight of the loss of each head."""
        given = {}
        for item in filter(None, map(str.strip, self.weights.split(","))):
            name, _, text = item.partition("=")
            try:
                given[name.strip()] = float(text)
            except ValueError:
                given[name.strip()] = -1.0
        names = [name for name, _ in self.parts] or list(given)
        for name, factor in given.items():
            if name not in names or not 0 < factor < float("inf"):
                raise ValueError(
                    f"weights = {self.weights!r} must be names of heads with numbers above 0, such "
                    f"as {','.join(f'{name}=1' for name in names[:2])}; the heads are "
                    f"{', '.join(names)}"
                )
        return {name: given.get(name, 1.0) for name in names}

    # ------------------------------------------------------------------------------- learning

    def init(self, rng, batch):
        """Return the initial variables of the model, and those of learned weights."""
        variables = super().init(rng, batch)
        if not self.learned_weights:
            return variables
        # exp(-s) is the weight.
        balance = {name: -jnp.log(jnp.float32(factor)) for name, factor in self.factors.items()}
        named = {name: {MODEL: tree} for name, tree in variables.items()}
        return {**named, "params": {MODEL: variables["params"], BALANCE: balance}}

    def roles(self, params):
        """Return the roles of the parameters of the model, and of learned weights."""
        of_model = model_roles(self.model)
        if not self.learned_weights:
            return of_model
        return {MODEL: of_model, BALANCE: {name: Role.BIAS for name in params[BALANCE]}}

    def loss(self, variables, batch, rng, *, train):
        """Return the loss times the number of images; metrics are those of each task by name."""
        outputs, state = self.outputs_of(variables, batch["image"], rng, train=train)
        images = jnp.sum(batch.get("mask", jnp.ones(len(batch["image"]))))
        balance = self.balance(variables)
        total, metrics = jnp.float32(0), {}
        for name, task in self.given(outputs):
            found = task.loss({}, self.of_part(name, batch), rng, train=train)
            divisor = jnp.maximum(found.weight, _LEAST)
            mean = found.total / divisor
            metrics[f"{name}_loss"] = mean
            metrics |= {f"{name}_{of}": x / divisor for of, x in found.metrics.items()}
            total += self.weighted(balance, name, mean)
        return Loss(total * images, images, {of: x * images for of, x in metrics.items()}, state)

    def balance(self, variables: Any) -> Mapping[str, Any]:
        """Return the learned logarithm of the noise of each task; empty for fixed weights."""
        return variables["params"][BALANCE] if self.learned_weights else {}

    def weighted(self, balance: Mapping[str, Any], name: str, mean: Any) -> Any:
        """Return the part of the loss that a task has, from its mean loss."""
        if name not in balance:
            return self.factors[name] * mean
        return jnp.exp(-balance[name]) * mean + balance[name] / 2

    def outputs_of(
        self, variables: Any, images: Any, rng: Any = None, *, train: bool
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what every head gives, and the new state."""
        of_model = part_of(variables, self.encoder)
        outputs, state = self.apply(of_model, images, rng, train=train)
        if not self.learned_weights:
            return outputs, state
        return outputs, {name: {MODEL: tree} for name, tree in state.items()}

    def given(self, outputs: Mapping[str, Any]) -> list[tuple[str, Task]]:
        """Return the task of each head, which reads its outputs in place of running a model."""
        return [
            (name, dataclasses.replace(part, model=_Given(outputs[name], gives(part.model))))
            for name, part in self.parts
        ]

    def of_part(self, name: str, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a batch whose `mask` is 0 for examples without the truth of a head."""
        known = jnp.asarray(batch.get("mask", jnp.ones(len(batch["image"]))))
        kind = gives(self.model.part(name))
        if kind == CLASSES:
            known = known * (batch["label"] >= 0)
            return {**batch, "mask": known, "label": jnp.maximum(batch["label"], 0)}
        if kind == SEGMENTATION:
            known = known * (batch["segmentation"] != IGNORED).any((1, 2))
        elif kind == DEPTH:
            known = known * (batch["depth"] > 0).any((1, 2))
        elif f"{KNOWN}boxes" in batch:
            known = known * batch[f"{KNOWN}boxes"]
        return {**batch, "mask": known}

    # -------------------------------------------------------------------------------- judging

    def evaluators(self):
        """Return the evaluator of all tasks, which runs the backbone once."""
        return (SeveralEvaluators(self),)

    def record_fields(self, source):
        """Return the names of the classes of labels."""
        names = tuple(source.class_names) if source.has_labels else ()
        heads = {name: part.record_fields(source)["class_names"] for name, part in self.parts}
        return {
            "class_names": names,
            "activation": "none",
            "encoder": self.encoder,
            "head_classes": {name: tuple(classes) for name, classes in heads.items() if classes},
        }

    def describe(self, source):
        """Return the tasks, and what each says of the data."""
        sentences = []
        for name, part in self.parts:
            clause, more = part.describe(source)
            sentences += [f"{name}: {clause}", *more] if clause else more
        names = ", ".join(name for name, _ in self.parts)
        return f"with the tasks {names}", sentences


class _Given:
    """Stands for a model whose outputs for a batch are there already."""

    def __init__(self, outputs: Any, kind: str):
        self.outputs, self.gives = outputs, kind

    def apply(self, variables: Any, images: Any, *, train: bool = False, **more: Any) -> Any:
        """Return the outputs; in training with an empty state."""
        del variables, images
        return (self.outputs, {}) if train and "mutable" in more else self.outputs


def _check_classes(name: str, model: nn.Module, kind: type[Task], source: Any) -> None:
    """Raise UserError for a head of pixels or boxes with other classes than the data."""
    feature = {SEGMENTATION: "segmentation", DETECTION: "classes"}.get(gives(model))
    if feature is None or feature not in source.features:
        return  # what is missing is said by the task
    classes = len(source.features[feature].classes)
    if classes and classes != model.num_classes:
        raise UserError(
            f"the head {name!r} has num_classes = {model.num_classes}, but {source.name} has "
            f"{classes} classes of its kind; set model.task_heads.{name}.num_classes to that"
        )
