"""Self-distillation without labels (DINO): a student predicts its own average, the teacher.

- Student and teacher are equal: an encoder and a head with many outputs, the prototypes. The
  student sees all crops of an image, the teacher the large ones; each of the teacher's outputs is
  the target of every crop but itself.
- The teacher is a moving average of the student. It, and the centre that is subtracted from its
  outputs, are collections beside the parameters: checkpoints keep them, and skipped steps do not
  change them.
- The centre follows the mean of a whole update, over all devices and parts of an accumulated batch.
- After training the teacher's encoder is used, which is better than the student's.

Source: Caron et al. 2021, "Emerging Properties in Self-Supervised Vision Transformers", and the
repository's `main_dino.py`.
"""

import functools
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from vit_jax.config.durations import Clock
from vit_jax.data.features import Feature
from vit_jax.data.transforms.views import MultiCrop
from vit_jax.errors import UserError
from vit_jax.models.description import model_roles
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.validation import pair
from vit_jax.models.vit.dino_head import DinoHead
from vit_jax.tasks.base import Setting, Task
from vit_jax.tasks.registry import register_task

_LARGE, _SMALL = "global_crops", "local_crops"  # the views of a batch
_GLOBAL_CROPS = 2


@register_task("self_distillation")
@dataclass(frozen=True)
class SelfDistillation(Task):
    """Cross-entropy of the student's outputs for one crop against the teacher's for another.

    The batch of training holds `global_crops` `(batch, 2, height, width, channels)` and, unless
    there are none, `local_crops`. That of evaluation holds `image`, which both see, so the loss of
    held-out data is that of two equal crops.

    head_width, bottleneck, prototypes, norm_last_layer: of the head, see `DinoHead`.
    student_temperature, teacher_temperature: divisors of the logits.
    warmup_teacher_temperature: of the teacher at first; a straight line leads to
        `teacher_temperature` over `temperature_warmup`, a duration.
    teacher_momentum: share of the teacher that an update keeps at first; half a cosine leads to 1.
    center_momentum: share of the centre that an update keeps.
    freeze_last_layer: duration in which the last layer of the student's head does not learn.
    local_crops, local_size: number of small crops and their side in pixels; 0: half of the model's.
    global_scale, local_scale, flip, color_jitter, jitter_strengths, grayscale, blur, local_blur,
        blur_sigma, solarize: of the crops, see `MultiCrop`.
    clock: of the run; without one, schedules are at their ends.
    """

    model: nn.Module
    head_width: int = 2048
    bottleneck: int = 256
    prototypes: int = 65536
    norm_last_layer: bool = True
    student_temperature: float = 0.1
    teacher_temperature: float = 0.04
    warmup_teacher_temperature: float = 0.04
    temperature_warmup: str = "0%"
    teacher_momentum: float = 0.996
    center_momentum: float = 0.9
    freeze_last_layer: str = "1 epoch"
    local_crops: int = 8
    local_size: int = 0
    global_scale: tuple[float, float] = (0.4, 1.0)
    local_scale: tuple[float, float] = (0.05, 0.4)
    flip: float = 0.5
    color_jitter: float = 0.8
    jitter_strengths: tuple[float, float, float, float] = (0.4, 0.4, 0.2, 0.1)
    grayscale: float = 0.2
    blur: tuple[float, ...] = (1.0, 0.1)
    local_blur: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    solarize: tuple[float, ...] = (0.0, 0.2)
    clock: Clock | None = None

    encoder = "teacher/encoder"
    from_setting = ("model", "clock")

    def __post_init__(self):
        for name in ("head_width", "bottleneck", "prototypes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be a whole number from 1")
        for name in ("student", "teacher", "warmup_teacher"):
            temperature = getattr(self, f"{name}_temperature")
            if not 0 < temperature < float("inf"):
                raise ValueError(f"{name}_temperature = {temperature} must be above 0")
        for name in ("teacher_momentum", "center_momentum"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be from 0 to 1")
        if self.local_size < 0:
            raise ValueError(f"local_size = {self.local_size} must be a side in pixels, or 0")
        _ = self.crops, self.steps("temperature_warmup"), self.steps("freeze_last_layer")

    @classmethod
    def make(cls, setting, **fields):
        """Return the task of a configuration. Raises UserError for what does not fit the crops."""
        task = super().make(setting, **fields)
        _check_augment(setting)
        task.crops.check_channels(setting.preprocessing.channels)
        _check_model(setting.model, task.small if task.local_crops else None)
        return task

    def steps(self, name: str) -> int:
        """Return the updates of the duration in a field. Raises ValueError if it is none."""
        clock = self.clock or Clock(1, 1, 1)
        try:
            return clock.steps(getattr(self, name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    # ---------------------------------------------------------------------------------- crops

    @property
    def small(self) -> tuple[int, int]:
        """(height, width) of small crops."""
        if self.local_size:
            return pair(self.local_size)
        return tuple(max(1, side // 2) for side in pair(self.model.image_size))

    @functools.cached_property
    def crops(self) -> MultiCrop:
        """Transform from an image to its crops."""
        shared = {name: getattr(self, name) for name in _OF_CROPS}
        try:
            return MultiCrop(**shared, global_crops=_GLOBAL_CROPS, local_size=self.small)
        except UserError as error:
            raise ValueError(str(error).removeprefix("MultiCrop: ")) from error

    @property
    def inputs(self) -> dict[str, Feature]:
        """The crops of an example."""
        large = {_LARGE: Feature("image", views=_GLOBAL_CROPS)}
        if not self.local_crops:
            return large
        return {**large, _SMALL: Feature("image", views=self.local_crops, size=self.small)}

    def transform(self, augment):
        """Return the transform from an image to its crops."""
        return self.crops

    # -------------------------------------------------------------------------------- modules

    @functools.cached_property
    def head(self) -> DinoHead:
        """Module from pooled features to the logits of prototypes."""
        return DinoHead(
            self.head_width,
            self.bottleneck,
            self.prototypes,
            self.norm_last_layer,
            getattr(self.model, "dtype", "float32"),
        )

    def init(self, rng, batch):
        """Return the initial variables: the teacher is a copy of the student."""
        images = batch[_LARGE][:, 0]
        encoder = super().init(rng, {"image": images})["params"]
        pooled = self._pooled({"encoder": encoder}, images, rng, train=False)
        head = self.head.init(jax.random.fold_in(rng, 1), pooled)["params"]
        student = {"encoder": encoder, "head": head}
        centre = jnp.zeros(self.prototypes)
        return {
            "params": student,
            "teacher": jax.tree.map(jnp.copy, student),
            "center": {"value": centre, "sum": centre, "weight": jnp.zeros(())},
            "schedule": {"updates": jnp.zeros((), jnp.int32)},
        }

    def roles(self, params):
        """Return the roles of the parameters of encoder and head."""
        return {"encoder": model_roles(self.model), "head": DinoHead.ROLES}

    def start_from(self, variables, trained):
        """Return the initial variables with a trained encoder in student and teacher."""
        teacher = {**variables["teacher"], "encoder": jax.tree.map(jnp.copy, trained["params"])}
        student = {**variables["params"], "encoder": trained["params"]}
        return {**variables, "params": student, "teacher": teacher}

    # ------------------------------------------------------------------------------- learning

    def loss(self, variables, batch, rng, *, train):
        """Return the sums of the loss of each image, the mean over its pairs of crops.

        The metric `teacher_entropy` is that of the targets, in nats: 0 where all crops have one
        prototype, and log(prototypes) where the outputs are uniform; both are collapse.
        """
        views = [batch[name] for name in (_LARGE, _SMALL) if name in batch]
        views = views or [batch["image"][:, None]]
        student = self.logits(variables["params"], views, rng, train=train)
        teacher = self.logits(variables["teacher"], views[:1], rng, train=False)
        teacher = jax.lax.stop_gradient(teacher)
        temperature = self.temperature(variables["schedule"]["updates"])
        logits = (teacher - variables["center"]["value"]) / temperature
        targets = nn.softmax(logits)
        losses = pair_losses(targets, student / self.student_temperature)
        state = {name: tree for name, tree in variables.items() if name != "params"}
        if train:
            state["center"] = _added(state["center"], teacher, batch.get("mask"))
        entropy = -jnp.sum(targets * nn.log_softmax(logits), axis=-1).mean(axis=1)
        return self.summed(losses, batch, state, teacher_entropy=entropy)

    def logits(
        self, params: Any, views: list[Float[Array, "b n h w c"]], rng: Array, *, train: bool
    ) -> Float[Array, "batch views prototypes"]:
        """Return the logits of all views, which come in groups of one size each."""
        pooled = []
        for place, images in enumerate(views):
            flat = images.reshape(-1, *images.shape[2:])
            found = self._pooled(params, flat, jax.random.fold_in(rng, place), train=train)
            pooled.append(found.reshape(*images.shape[:2], -1))
        return self.head.apply({"params": params["head"]}, jnp.concatenate(pooled, axis=1))

    def _pooled(self, params: Any, images: Array, rng: Array, *, train: bool) -> Array:
        of_encoder = {"params": params["encoder"]}
        return self.apply(of_encoder, images, rng, train=train, method="features")[0].pooled

    def temperature(self, updates: Array | int) -> Float[Array, ""]:
        """Return the temperature of the teacher after a number of updates."""
        start, end = self.warmup_teacher_temperature, self.teacher_temperature
        length = self.steps("temperature_warmup")
        if self.clock is None or not length:
            return jnp.float32(end)
        return start + (end - start) * jnp.minimum(updates / length, 1.0)

    def momentum(self, updates: Array | int) -> Float[Array, ""]:
        """Return the share of the teacher that the update after a number of others keeps."""
        if self.clock is None:
            return jnp.float32(1)
        share = jnp.minimum(updates / self.clock.total_steps, 1.0)
        return 1 - (1 - self.teacher_momentum) * (1 + jnp.cos(jnp.pi * share)) / 2

    @property
    def frozen_until(self) -> dict[str, int]:
        """The updates that leave the last layer unchanged."""
        updates = self.steps("freeze_last_layer")
        return {"head/last_layer/.*": updates} if updates else {}

    def after_update(self, state):
        """Return the state with a moved teacher and centre."""
        old, center = state.model_state, state.model_state["center"]
        step = 1 - self.momentum(state.updates - 1)
        mean = center["sum"] / center["weight"]
        moved = {
            "teacher": optax.incremental_update(state.params, old["teacher"], step),
            "center": {
                "value": self.center_momentum * center["value"] + (1 - self.center_momentum) * mean,
                "sum": jnp.zeros_like(center["sum"]),
                "weight": jnp.zeros_like(center["weight"]),
            },
            "schedule": {"updates": state.updates},
        }
        return state.replace(model_state={**old, **moved})


# Fields of `MultiCrop` under the same names.
_OF_CROPS = ("local_crops", "global_scale", "local_scale", "flip", "color_jitter")
_OF_CROPS += ("jitter_strengths", "grayscale", "blur", "local_blur", "blur_sigma", "solarize")


def pair_losses(
    targets: Float[Array, "batch large prototypes"], logits: Float[Array, "batch views prototypes"]
) -> Float[Array, " batch"]:
    """Return the mean cross-entropy over all pairs of a target and another view.

    The first views are those of the targets, in the same order. A single view is its own target.
    """
    large, views = targets.shape[1], logits.shape[1]
    pairs = jnp.einsum(
        "bgk,bvk->bgv", targets, -nn.log_softmax(logits), precision=jax.lax.Precision.HIGHEST
    )
    counted = 1 - jnp.eye(large, views) if views > 1 else jnp.ones((1, 1))
    return jnp.sum(pairs * counted, axis=(1, 2)) / jnp.sum(counted)


def _added(
    center: dict[str, Array], teacher: Float[Array, "batch large prototypes"], mask: Array | None
) -> dict[str, Array]:
    """Return the centre with the sums of further outputs of the teacher, without the padding."""
    mask = jnp.ones(len(teacher)) if mask is None else mask
    total = jnp.einsum("b,bgk->k", mask, teacher, precision=jax.lax.Precision.HIGHEST)
    weight = mask.sum() * teacher.shape[1]
    return {**center, "sum": center["sum"] + total, "weight": center["weight"] + weight}


# ------------------------------------------------------------------------------------------ checks


def _check_augment(setting: Setting) -> None:
    """Raise UserError for augmentation that the crops replace."""
    if active := setting.augment.active:
        options = ", ".join(f"augment.{name} = {getattr(setting.augment, name)}" for name in active)
        raise UserError(
            f"{options} would have no effect: the task 'self_distillation' makes crops of its own, "
            "with objective.global_scale, objective.flip, objective.color_jitter and others; "
            "switch augmentation off"
        )


def _check_model(model: nn.Module, small: tuple[int, int] | None) -> None:
    """Raise UserError for a model without pooled features, or that cannot take small crops."""
    name, size = type(model).__name__, pair(model.image_size)

    def features(variables: Any, side: tuple[int, int]) -> Any:
        images = jnp.zeros((1, *side, model.in_channels))
        return model.apply(variables, images, train=False, method="features").pooled

    images = jax.ShapeDtypeStruct((1, *size, model.in_channels), jnp.float32)
    variables = abstract_variables(model, images)
    if others := variables.keys() - {"params"}:
        raise UserError(
            f"{name} keeps {', '.join(sorted(others))}, running statistics that the teacher of "
            "self-distillation does not average; use a model without them, such as a ViT"
        )
    pooled = jax.eval_shape(lambda v: features(v, size), variables)
    if pooled.ndim != 2:
        raise UserError(
            f"the features of {name} have the shape {pooled.shape}, but self-distillation needs "
            "one vector for each image; use --config.model.pool=cls, mean or map"
        )
    if small is None or small == size:
        return
    try:
        jax.eval_shape(lambda v: features(v, small), variables)
    except (ValueError, TypeError) as error:
        raise UserError(
            f"the model cannot take small crops of {small[0]} x {small[1]} pixels: "
            f"{str(error).rstrip('.')}; use --config.objective.local_crops=0, or a side in "
            "--config.objective.local_size that the model takes"
        ) from error
