"""Distillation from a teacher (Hinton, Vinyals, Dean 2015; Touvron et al. 2021).

With z the student's logits, t the teacher's, y the label and a the weight `alpha`, an image's loss
is

    (1 - a) CE(z, y) + a CE(z', argmax t)                      hard
    (1 - a) CE(z, y) + a T^2 KL(softmax(t / T) || softmax(z' / T))      soft

- In a model with two heads z is the head of the class token and z' that of the distillation token
  (DeiT, section 4); in a model with one head they are the same.
- Labels are smoothed and mixed as configured; the teacher sees the mixed image itself,
  and its hard predictions are never smoothed (DeiT, section 4: "true" labels).
- The divergence is a sum over classes and a mean over images, as Hinton et al. write it.
  DeiT's code also divides by the number of classes: its soft loss is that many times smaller.
- The teacher's arrays are `frozen`: an argument of the compiled step, not saved in checkpoints.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from vit_jax.data import Augment
from vit_jax.errors import UserError
from vit_jax.models import DistilledLogits
from vit_jax.models.description import model_roles
from vit_jax.tasks.base import Loss, Setting, Task
from vit_jax.tasks.classification import Classification, finite_rows
from vit_jax.tasks.teacher import Teacher, open_teacher

ANSWERS = "teacher_logits"  # name of the teacher's logits in a batch, if they are precomputed


@dataclass(frozen=True)
class Distillation(Task):
    """Loss with a cross-entropy against the labels and a term for the teacher.

    The batch is that of `Classification`; if it has `teacher_logits`, `(batch, classes)`, the
    teacher is not applied again.

    supervised: the term of the labels. Its class weights are weights of the images, and multiply
        both terms; it also does the evaluation.
    teacher: the trained model.
    kind: "hard" or "soft", see the top of the file.
    alpha: weight of the teacher's term, from 0 to 1.
    temperature: of the soft kind, above 0; higher values flatten both distributions.
    cached: whether every batch contains the teacher's logits.
    """

    supervised: Classification
    teacher: Teacher
    kind: str = "hard"
    alpha: float = 0.5
    temperature: float = 1.0
    cached: bool = False

    inputs = Classification.inputs

    @property
    def model(self):
        """The student."""
        return self.supervised.model

    @property
    def monitor(self) -> tuple[str, str]:
        """The metric of the supervised term."""
        return self.supervised.monitor

    @property
    def frozen(self) -> dict[str, Any] | None:
        """The teacher's parameters and other collections; None if its logits are cached."""
        return None if self.cached else self.teacher.variables

    @property
    def rows_from(self) -> dict[str, Any] | None:
        """The same, if its logits are computed once for every image."""
        return self.teacher.variables if self.cached else None

    def frozen_roles(self):
        """Return the roles of the teacher's variables: of its parameters those that it declares."""
        names = self.teacher.variables
        return {
            name: model_roles(self.teacher.model) if name == "params" else None for name in names
        }

    def with_frozen(self, frozen: dict[str, Any]) -> "Distillation":
        """Return a copy with these in place of the teacher's variables."""
        teacher = dataclasses.replace(self.teacher, variables=frozen)
        return dataclasses.replace(self, teacher=teacher)

    @property
    def fingerprint(self) -> dict[str, str]:
        """The digest of the teacher's parameters."""
        return {"teacher": self.teacher.fingerprint}

    @property
    def origin(self) -> str:
        """The teacher, for the record of the student."""
        return f"distilled from {self.teacher.source} ({self.teacher.fingerprint})"

    def alternatives(self):
        """Return those of the supervised term, with the same teacher."""
        terms = self.supervised.alternatives()
        return tuple(dataclasses.replace(self, supervised=term) for term in terms)

    def evaluators(self):
        """Return the evaluators of the supervised term: on the labels alone."""
        return self.supervised.evaluators()

    def record_fields(self, source):
        """Return those of the supervised term."""
        return self.supervised.record_fields(source)

    def describe(self, source):
        """Return those of the supervised term."""
        return self.supervised.describe(source)

    def rows(self, arrays, batch):
        """Return the teacher's logits.

        Those of an unreadable image are never used, since another image replaces it.
        """
        return {ANSWERS: self.with_frozen(arrays).teacher(batch["image"])}

    def loss(self, variables, batch, rng, *, train):
        """Return the sums over the batch of the loss and the metrics, as `Classification.loss`.

        The metric `teacher_agreement` is added: the share of images for which the student's
        prediction, from the mean of its heads, equals the teacher's.
        """
        supervised = self.supervised
        images, own_share = supervised.mixed(batch["image"], rng, train)
        outputs, state = supervised.apply(variables, images, rng, train=train)
        head = head_dist = logits = outputs
        if isinstance(outputs, DistilledLogits):
            head, head_dist, logits = outputs.head, outputs.head_dist, outputs.mean()
        taught = batch[ANSWERS] if ANSWERS in batch else self.teacher(images)
        targets = supervised.targets(batch, head, own_share)
        losses = (1 - self.alpha) * supervised.losses(head, targets, train)
        losses += self.alpha * self.teacher_losses(head_dist, taught)
        losses *= supervised.weights(batch, own_share, train)
        mask = batch.get("mask", jnp.ones(len(logits)))
        answered = finite_rows(logits) & finite_rows(taught)
        agreement = jnp.sum((logits.argmax(-1) == taught.argmax(-1)) * answered * mask)
        metrics = {
            **supervised.metrics(logits, targets, mask),
            "teacher_agreement": agreement,
        }
        return Loss(jnp.sum(losses * mask), jnp.sum(mask), metrics, state)

    def teacher_losses(
        self, logits: Float[Array, "batch classes"], taught: Float[Array, "batch classes"]
    ) -> Float[Array, " batch"]:
        """Return the teacher's term of the loss for each image, before `alpha`, in nats."""
        if self.kind == "hard":
            answer = jax.nn.one_hot(taught.argmax(-1), taught.shape[-1])
            # Logits that are not finite teach nothing; the step is skipped and reported.
            answer = jnp.where(finite_rows(taught)[:, None], answer, jnp.nan)
            return self.supervised.losses(logits, answer, train=False)
        ours, its = (jax.nn.log_softmax(x / self.temperature) for x in (logits, taught))
        return self.temperature**2 * jnp.sum(jnp.exp(its) * (its - ours), axis=-1)


def check_distillation(config: ConfigDict, supervised: Classification, augment: Augment) -> None:
    """Check the keys of `distillation` against each other, before a teacher is opened.

    Raises:
        UserError: a key without a teacher, or one that the data, the loss or other keys exclude.
    """
    keys = config.distillation
    if not keys.teacher:
        for name, off in (("cache", False), ("temperature", 1.0)):
            if keys[name] != off:
                raise UserError(
                    f"distillation.{name} = {keys[name]} but there is no teacher; name one with "
                    "--config.distillation.teacher"
                )
        return
    if supervised.multi_label:
        raise UserError(
            f"the images of {config.dataset!r} may have several labels, but distillation needs "
            "exactly one; omit distillation.teacher"
        )
    if keys.kind == "hard" and keys.temperature != 1.0:
        raise UserError(
            f"distillation.temperature = {keys.temperature:g} has no effect with hard predictions "
            "of the teacher; use --config.distillation.kind=soft, or leave it at 1"
        )
    if keys.kind == "soft" and supervised.kind == "sigmoid":
        raise UserError(
            "distillation.kind = 'soft' compares probabilities that sum to 1, but those of "
            "objective.loss = 'sigmoid' do not; use --config.distillation.kind=hard, or "
            "--config.objective.loss=softmax"
        )
    changing = list(augment.active)
    if supervised.mixing.on:
        changing += [name for name in ("mixup", "cutmix") if config.augment[name]]
    if keys.cache and changing:
        named = ", ".join(f"augment.{name} = {config.augment[name]}" for name in changing)
        raise UserError(
            f"distillation.cache = True keeps one prediction per image, but {named} shows the "
            "teacher another image each time; use --config.distillation.cache=false, or "
            "switch augmentation off"
        )


def distilled(setting: Setting, supervised: Classification) -> Distillation:
    """Return the task of a configuration with a teacher, which is opened.

    Raises UserError if the teacher cannot be read, or does not fit the data or the kind of
    distillation.
    """
    config, keys = setting.config, setting.config.distillation
    teacher = open_teacher(
        keys.teacher,
        setting.preprocessing,
        tuple(setting.source.class_names),
        dtype=config.precision,
    )
    if keys.kind == "soft" and teacher.activation != "softmax":
        raise UserError(
            f"distillation.kind = 'soft', but the teacher {teacher.source!r} was trained with a "
            f"{teacher.activation}, so its probabilities do not sum to 1; use "
            "--config.distillation.kind=hard"
        )
    return Distillation(
        supervised, teacher, keys.kind, keys.alpha, keys.temperature, bool(keys.cache)
    )
