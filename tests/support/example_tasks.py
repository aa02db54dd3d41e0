"""Tasks as a user's own module would define them, with needs that classification does not have.

It is a plugin: `--config.plugins=tests.support.example_tasks --config.task=regression`.
"""

from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.data.features import Feature
from vit_jax.data.transforms.views import MultiCrop, Views
from vit_jax.evaluation.base import HELD_OUT, Evaluator, MeanLoss, Result
from vit_jax.inference import BATCH, ArraySpec, Predictor
from vit_jax.tasks import Loss, Task, register_task

NAMES = ("regression", "autoencoder", "averaged_teacher", "crops", "whole_batch")


@register_task("regression")
@dataclass(frozen=True)
class Regression(Task):
    """Regression of an image's mean: a target that is no label, and a metric better when lower."""

    model: nn.Module
    scale: float = 1.0

    @classmethod
    def outputs(cls, config, source):
        return 1

    def loss(self, variables, batch, rng, *, train):
        images = batch["image"]
        found, state = self.apply(variables, images, rng, train=train)
        errors = found[:, 0] - self.scale * images.mean((1, 2, 3))
        return self.summed(errors**2, batch, state, absolute_error=jnp.abs(errors))


class Decoder(nn.Module):
    """One linear layer from pooled features to an image."""

    shape: tuple[int, ...]

    @nn.compact
    def __call__(self, features):
        return nn.Dense(int(np.prod(self.shape)))(features).reshape(-1, *self.shape)


@dataclass(frozen=True)
class Reconstruction(Evaluator):
    """Predictions that are images, drawn as a figure, every second step."""

    task: "Autoencoder"
    name: ClassVar[str] = "reconstruction"
    every: ClassVar[str] = "2 steps"

    def step(self, variables, batch):
        images = self.task.decoded(variables, batch["image"])[0]
        errors = ((images - batch["image"]) ** 2).mean((1, 2, 3)) * batch["mask"]
        return {"pixel_error": errors.sum(), "weight": batch["mask"].sum()}, {"image": images}

    def finish(self, parts):
        part = parts[HELD_OUT]
        return Result({**part.means(), "examples": part.examples}, part.rows["image"])


class Decoded(Predictor):
    """Images as the autoencoder makes them of images."""

    usage = "take the images that it makes with vit_jax.load({path!r})(images)"

    @classmethod
    def of_record(cls, record, variables, step=None):
        made = super().of_record(record, variables, step)
        made.task = Autoencoder(made.model, **record.options)
        return made

    @property
    def outputs(self):
        shape = (BATCH, self.task.height, self.task.width, self.task.channels)
        return {"images": ArraySpec(shape, "float32", "decoded images, normalised")}

    def function(self, variables, images):
        decoded, _ = self.task.decoded(variables, self.preprocessing.normalize(images))
        return {"images": decoded}

    def result(self, outputs):
        """Pixels from 0 to 255."""
        mean, std = np.array(self.preprocessing.mean), np.array(self.preprocessing.std)
        return np.clip(np.round(255 * (outputs["images"] * std + mean)), 0, 255).astype(np.uint8)


@register_task("autoencoder")
@dataclass(frozen=True)
class Autoencoder(Task):
    """An encoder and a decoder that are initialised together, and two evaluators."""

    model: nn.Module
    channels: int = 1
    height: int = 16
    width: int = 16

    encoder = "encoder"

    @property
    def decoder(self):
        return Decoder((self.height, self.width, self.channels))

    def init(self, rng, batch):
        encoder = super().init(rng, batch)
        pooled = self.model.apply(encoder, batch["image"], train=False)
        decoder = self.decoder.init(jax.random.fold_in(rng, 1), pooled)
        return {"params": {"encoder": encoder["params"], "decoder": decoder["params"]}}

    def decoded(self, variables, images, rng=None, *, train=False):
        params = variables["params"]
        pooled, _ = self.apply({"params": params["encoder"]}, images, rng, train=train)
        return self.decoder.apply({"params": params["decoder"]}, pooled), {}

    def loss(self, variables, batch, rng, *, train):
        images, state = self.decoded(variables, batch["image"], rng, train=train)
        return self.summed(((images - batch["image"]) ** 2).mean((1, 2, 3)), batch, state)

    def evaluators(self):
        return MeanLoss(self.loss), Reconstruction(self)

    @classmethod
    def predictor(cls, record):
        return Decoded


@register_task("averaged_teacher")
@dataclass(frozen=True)
class AveragedTeacher(Task):
    """Two views, and state besides parameters: a teacher that follows on a schedule, a centre."""

    model: nn.Module
    start: float = 0.9
    steps: int = 6

    inputs: ClassVar = {"image": Feature("image", views=2)}

    @classmethod
    def outputs(cls, config, source):
        return 4

    @classmethod
    def make(cls, setting, **fields):
        return cls(setting.model, **{"steps": setting.clock.total_steps, **fields})

    def transform(self, augment):
        return Views(2, augment)

    def init(self, rng, batch):
        params = super().init(rng, {"image": batch["image"][:, 0]})["params"]
        return {"params": params, "teacher": params, "centre": {"mean": jnp.zeros(4)}}

    def loss(self, variables, batch, rng, *, train):
        images = batch["image"]  # of evaluation there is one
        one, other = (images[:, 0], images[:, 1]) if images.ndim == 5 else (images, images)
        student, _ = self.apply({"params": variables["params"]}, one, rng, train=train)
        teacher = self.model.apply({"params": variables["teacher"]}, other, train=False)
        centre = variables["centre"]["mean"]
        targets = jax.lax.stop_gradient(nn.softmax((teacher - centre) / 0.5))
        losses = -(targets * nn.log_softmax(student)).sum(-1)
        state = {"teacher": variables["teacher"], "centre": {"mean": centre}}
        if train:
            state["centre"] = {"mean": 0.9 * centre + 0.1 * teacher.mean(0)}
        return self.summed(losses, batch, state)

    def after_update(self, state):
        momentum = 1 - (1 - self.start) * (1 - state.step / self.steps)
        teacher = jax.tree.map(
            lambda old, new: momentum * old + (1 - momentum) * new,
            state.model_state["teacher"],
            state.params,
        )
        return state.replace(model_state={**state.model_state, "teacher": teacher})


@dataclass(frozen=True)
class Spread(Evaluator):
    """The mean square of the outputs, better when higher."""

    task: "Crops"

    def step(self, variables, batch):
        found, _ = self.task.apply(variables, batch["image"], train=False)
        mask = batch["mask"]
        return {"spread": ((found**2).mean(1) * mask).sum(), "weight": mask.sum()}, {}


@register_task("crops")
@dataclass(frozen=True)
class Crops(Task):
    """Large and small crops of an image, which are to have outputs of one direction."""

    model: nn.Module
    local_crops: int = 3

    monitor = ("spread", "max")

    @property
    def inputs(self):
        return {
            "global_crops": Feature("image", views=2),
            "local_crops": Feature("image", views=self.local_crops, size=(16, 16)),
        }

    @classmethod
    def outputs(cls, config, source):
        return 4

    def transform(self, augment):
        return MultiCrop(local_crops=self.local_crops, local_size=16)

    def init(self, rng, batch):
        return super().init(rng, {"image": batch["global_crops"][:, 0]})

    def loss(self, variables, batch, rng, *, train):
        crops = jnp.concatenate([batch["global_crops"], batch["local_crops"]], axis=1)
        found, state = self.apply(variables, crops.reshape(-1, *crops.shape[2:]), rng, train=train)
        found = found.reshape(*crops.shape[:2], -1)
        directions = found / jnp.linalg.norm(found + 1e-6, axis=-1, keepdims=True)
        alike = jnp.einsum("bnd,bmd->b", directions, directions) / crops.shape[1] ** 2
        return self.summed(1 - alike, batch, state)

    def evaluators(self):
        return (Spread(self),)


@register_task("whole_batch")
@dataclass(frozen=True)
class WholeBatch(Task):
    """A loss that is no sum over examples: the outputs of a batch are to be uncorrelated."""

    model: nn.Module
    additive = False

    @classmethod
    def outputs(cls, config, source):
        return 3

    def loss(self, variables, batch, rng, *, train):
        found, state = self.apply(variables, batch["image"], rng, train=train)
        weights = batch.get("mask", jnp.ones(len(found)))[:, None]
        centred = (found - (weights * found).sum(0) / weights.sum()) * weights
        covariance = centred.T @ centred / weights.sum()
        loss = ((covariance - jnp.eye(3)) ** 2).sum()
        return Loss(loss * weights.sum(), weights.sum(), {}, state)
