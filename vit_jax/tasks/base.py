"""Task: what is learned. Everything that the training loop knows of an objective is here.

A task is one file and one registration. This one learns the mean brightness of an image:

    @register_task("brightness")
    @dataclass(frozen=True)
    class Brightness(Task):
        model: nn.Module
        monitor = ("loss", "min")

        @classmethod
        def outputs(cls, config, source):
            return 1

        def loss(self, variables, batch, rng, *, train):
            images = batch["image"]
            found, state = self.apply(variables, images, rng, train=train)
            errors = (found[:, 0] - images.mean((1, 2, 3))) ** 2
            return self.summed(errors, batch, state=state)

It is trained with `--config.task=brightness --config.plugins=the_module`.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from vit_jax.config.durations import Clock
from vit_jax.data import Preprocessing, Source
from vit_jax.data.features import IMAGE, Feature
from vit_jax.evaluation.base import Evaluator, MeanLoss
from vit_jax.models.description import Roles, model_roles
from vit_jax.runs.record import ModelRecord, part_of
from vit_jax.weights.of_tasks.task_weights import TaskWeights

Variables = Mapping[str, Any]
Batch = Mapping[str, Array]


class Loss(NamedTuple):
    """Sums of a loss over a batch, not means, so that masked and sharded batches add up exactly.

    total: sum of the weighted losses. weight: sum of the weights; `total / weight` is the loss.
    metrics: sums by name; each divided by `weight` is the metric of that name.
    state: the new collections besides the parameters, such as running statistics.
    """

    total: Float[Array, ""]
    weight: Float[Array, ""]
    metrics: dict[str, Float[Array, ""]]
    state: dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Setting in which a task is made: the configuration, and what it has already determined.

    config: of the run. model: the encoder, or the whole model. source: the training data.
    preprocessing: of its images. augment: the configured augmentation. clock: the length of the run
    in steps and epochs. trained: fields of the task that belong to the weights that it begins with.
    """

    config: ConfigDict
    model: nn.Module
    source: Source
    preprocessing: Preprocessing
    augment: Any
    clock: Clock
    trained: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Task:
    """Interface of a task, and its defaults.

    A subclass is a frozen dataclass whose first field is `model`; its other fields have defaults
    and are set by `--config.objective.FIELD`. It must be hashable if its compiled step is to be
    reused by a second run in the same process.

    inputs: what a batch must hold, by name.
    monitor: the metric of the first evaluator that selects the best checkpoint, and "max" or "min".
    additive: whether the loss of a batch is the sum of the losses of its parts. If not,
        accumulation over parts of a batch would change it and is refused.
    reads_texts: whether `text`, the captions of the data, is among the inputs; other tasks ignore
        captions.
    takes_patches: whether `image` may be the patches and grids of images of any aspect ratio, see
        `Preprocessing.normalize`; their model takes them.
    frozen: arrays that the loss reads and nothing changes, such as a teacher's parameters; None if
        there are none.
    rows_from: arrays from which `rows` are computed once, before training; None: there are none.
    encoder: the part of the parameters that are the model's, where the task has other modules with
        parameters of their own; "teacher/encoder" is the part of another collection than `params`;
        empty: all of them.
    from_setting: the fields that the `Setting` of the same name determines; a configuration sets
        the others.
    frozen_until: numbers of updates by regular expressions of the whole paths of parameters. So
        many first updates leave these parameters, and their moments, unchanged.
    fingerprint: digests of what the loss depends on besides the data, checked when a run resumes.
    origin: a clause for the record of the model, such as "distilled from NAME".
    """

    model: nn.Module
    inputs: ClassVar[Mapping[str, Feature]] = {"image": IMAGE}
    monitor: ClassVar[tuple[str, str]] = ("loss", "min")
    additive: ClassVar[bool] = True
    reads_texts: ClassVar[bool] = False
    takes_patches: ClassVar[bool] = False
    frozen: ClassVar[Any] = None
    rows_from: ClassVar[Any] = None
    encoder: ClassVar[str] = ""
    from_setting: ClassVar[tuple[str, ...]] = ("model",)
    frozen_until: ClassVar[Mapping[str, int]] = {}
    fingerprint: ClassVar[Mapping[str, str]] = {}
    origin: ClassVar[str] = ""

    # ------------------------------------------------------------------ from a configuration

    @classmethod
    def outputs(cls, config: ConfigDict, source: Source) -> int:
        """Return the number of outputs of the model's head; 0: no head.

        Raises UserError if the data do not fit the task.
        """
        del config, source
        return 0

    @classmethod
    def settable(cls) -> dict[str, dataclasses.Field]:
        """Return the fields that a configuration may set, by name."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        return {name: field for name, field in fields.items() if name not in cls.from_setting}

    @classmethod
    def make(cls, setting: Setting, **fields: Any) -> "Task":
        """Return the task of a configuration; `fields` are those of `config.objective`."""
        return cls(**{name: getattr(setting, name) for name in cls.from_setting}, **fields)

    @classmethod
    def read_start(cls, config: ConfigDict) -> TaskWeights | None:
        """Return the weights of all modules in `config.init_from`; None: it is read as a model.

        Raises UserError if they cannot be read.
        """
        del config
        return None

    # ------------------------------------------------------------------------------- learning

    def init(self, rng: Array, batch: Batch) -> dict[str, Any]:
        """Return the initial variables of all modules, for a batch of these shapes."""
        return dict(self.model.init(rng, batch["image"], train=False))

    def start_from(self, variables: Variables, trained: Variables) -> Variables:
        """Return the initial variables with trained ones of the model in their place.

        trained: of the model alone, {"params": ..., and any other collections}; after `read_start`
            also "modules", the parameters of the task's other modules.
        """
        if not self.encoder:
            return trained
        parts = {name: {**variables[name], self.encoder: tree} for name, tree in trained.items()}
        return {**variables, **parts}

    def roles(self, params: Mapping[str, Any]) -> Roles | None:
        """Return the roles of the parameters; None: they follow from the names.

        By default those that the model declares. Modules besides the encoder have roles by name
        unless a task declares them.

        Args:
            params: the parameters of all modules, or their shapes.
        """
        of_model = model_roles(self.model)
        if not self.encoder:
            return of_model
        encoder = self.encoder.rpartition("/")[2]  # of another collection it is a copy
        return {name: of_model if name == encoder else None for name in params}

    def frozen_roles(self) -> Roles | None:
        """Return the roles of the arrays in `frozen` and `rows_from`; None: by name."""
        return None

    def loss(self, variables: Variables, batch: Batch, rng: Array, *, train: bool) -> Loss:
        """Return the sums of the loss over a batch of normalised inputs.

        Args:
            variables: {"params": ..., and any other collections}.
            batch: the `inputs`; float32 images; `mask`, if there, is 0 for padding.
            rng: for this step.
            train: whether dropout and the like are on.
        """
        raise NotImplementedError

    def alternatives(self) -> tuple["Task", ...]:
        """Return the tasks of which each training step draws one; by default itself alone.

        They have the same parameters and metrics, and differ in what a compiled program fixes, such
        as a patch size. One that is there twice is drawn twice as often.
        """
        return (self,)

    def after_update(self, state: Any) -> Any:
        """Return the `TrainState` after an update of the parameters, such as with a moved teacher.

        `state.step` counts this update. Only `params` and `model_state` may change. A step that is
        skipped does not call it.
        """
        return state

    def normalized(self, batch: Batch, preprocessing: Preprocessing) -> Batch:
        """Return the batch with normalised images: `image`, and `inputs` of that kind."""
        images = {"image", *(name for name, of in self.inputs.items() if of.kind == "image")}
        there = [name for name in sorted(images) if name in batch]
        return {**batch, **{name: preprocessing.normalize(batch[name]) for name in there}}

    def transform(self, augment: Any) -> Any:
        """Return the transform from an example to the training inputs; `augment` by default."""
        return augment

    def rows(self, arrays: Any, batch: Batch) -> dict[str, Array]:
        """Return rows computed once for every training example, which its batches then hold.

        arrays: `rows_from`.
        """
        raise NotImplementedError

    def with_frozen(self, frozen: Any) -> "Task":
        """Return a copy that reads these arrays in place of `frozen`."""
        raise NotImplementedError

    def reading(self, frozen: Any) -> "Task":
        """Return the copy that reads the `frozen` arguments of a program; itself for None."""
        return self if frozen is None else self.with_frozen(frozen)

    # -------------------------------------------------------------------------------- judging

    def evaluators(self) -> tuple[Evaluator, ...]:
        """Return the evaluators; the first gives the metric of `monitor`."""
        return (MeanLoss(self.loss),)

    def record_fields(self, source: Source) -> dict[str, Any]:
        """Return the fields of the model's record that the task determines."""
        del source
        return {"class_names": (), "activation": "none", "encoder": self.encoder}

    @classmethod
    def predictor(cls, record: ModelRecord) -> Any:
        """Return the class of `vit_jax.inference.Predictor` as which `vit_jax.load` opens a run.

        None: the default, a classifier if the record has classes, otherwise an encoder.
        """
        del record
        return None

    def describe(self, source: Source) -> tuple[str, list[str]]:
        """Return a clause on the training data, such as "in 10 classes", and sentences on them."""
        del source
        return "", []

    def features(self, variables: Variables, batch: Batch) -> Float[Array, "batch width"]:
        """Return the pooled features of the images of a batch, which probes judge."""
        of_model = part_of(variables, self.encoder)
        return self.model.apply(of_model, batch["image"], train=False, method="features").pooled

    # -------------------------------------------------------------------------- for subclasses

    def apply(
        self, variables: Variables, images: Array, rng: Array | None = None, *, train: bool, **more
    ) -> tuple[Any, dict[str, Any]]:
        """Return the outputs of the model and its new state, which only training changes."""
        variables = dict(variables)
        state = {name: tree for name, tree in variables.items() if name != "params"}
        if not train:
            return self.model.apply(variables, images, train=False, **more), state
        return self.model.apply(
            variables, images, train=True, rngs={"dropout": rng}, mutable=list(state), **more
        )

    @staticmethod
    def summed(losses, batch: Batch, state: Mapping[str, Any] | None = None, **metrics) -> Loss:
        """Return the `Loss` of losses and metrics of each example, without the padding."""
        mask = batch.get("mask", jnp.ones(len(losses)))
        sums = {name: jnp.sum(values * mask) for name, values in metrics.items()}
        return Loss(jnp.sum(losses * mask), jnp.sum(mask), sums, dict(state or {}))


def zero_batch(task: Task, preprocessing: Preprocessing, source: Source) -> Batch:
    """Return a normalised batch of one example of zeros, with the shapes of the task's inputs."""
    batch = {}
    for name, feature in task.inputs.items():
        if feature.kind == "image" and preprocessing.max_tokens:
            batch[name] = preprocessing.normalize(np.zeros((1, *preprocessing.shape), np.uint8))
        elif feature.kind == "image":
            views = (feature.views,) if feature.views else ()
            shape = (*feature.size, preprocessing.channels) if feature.size else preprocessing.shape
            batch[name] = jnp.zeros((1, *views, *shape))
        elif feature.kind == "label":
            several = (len(source.class_names),) if source.multi_label else ()
            batch[name] = jnp.zeros((1, *several), jnp.int32)
        elif feature.kind == "text":
            batch[name] = jnp.zeros((1, *feature.shape), jnp.int32)
        elif feature.kind in ("mask", "instances", "depth"):
            whole = feature.kind != "depth"
            shape = (1, *(feature.size or preprocessing.size))
            batch[name] = jnp.zeros(shape, jnp.int32 if whole else jnp.float32)
        else:
            batch[name] = jnp.zeros((1, *(feature.shape or source.features[name].shape or ())))
    return batch
