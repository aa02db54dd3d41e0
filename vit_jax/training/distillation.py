"""Learning from a teacher beside the labels (Hinton, Vinyals, Dean 2015; Touvron et al. 2021).

With z the student's logits, t the teacher's, y the label and a the weight `alpha`, an image's loss
is

    (1 - a) CE(z, y) + a CE(z', argmax t)                      hard
    (1 - a) CE(z, y) + a T^2 KL(softmax(t / T) || softmax(z' / T))      soft

What is notable here:
- In a model with two heads z is the head of the class token and z' that of the distillation token
  (DeiT, section 4); in a model with one head they are the same.
- The label is smoothed and mixed as the run says; the teacher answers for the mixed image itself,
  and its hard answer is never smoothed (DeiT, section 4: "true" labels).
- The divergence is a sum over the classes and a mean over the images, as Hinton et al. write it.
  DeiT's code divides by the number of classes too: its soft loss is that many times smaller.
- The teacher's arrays are `constants`: an argument of the compiled step, and in no checkpoint.
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
from vit_jax.tasks.classification import Supervised, apply_model, finite_rows
from vit_jax.training.teacher import Teacher

ANSWERS = "teacher_logits"  # what they are called in a batch, where they are computed beforehand


@dataclass(frozen=True)
class Distillation:
    """Cross-entropy against the labels, and a part that draws the student to its teacher.

    The batch is that of `Supervised`; where it has `teacher_logits`, `(batch, classes)`, the
    teacher is not asked again.

    supervised: the part of the labels. Its class weights are those of the images, and multiply
        both parts; evaluation is its own.
    teacher: who is asked.
    kind: "hard" or "soft", see the top of the file.
    alpha: weight of the teacher's part, from 0 to 1.
    temperature: of the soft kind, above 0; more makes both distributions flatter.
    cached: whether every batch brings the answers with it.
    """

    supervised: Supervised
    teacher: Teacher
    kind: str = "hard"
    alpha: float = 0.5
    temperature: float = 1.0
    cached: bool = False

    @property
    def criterion(self) -> str:
        """That of the part of the labels."""
        return self.supervised.criterion

    @property
    def constants(self) -> dict[str, Any] | None:
        """The teacher's parameters and other collections; None where it is not asked."""
        return None if self.cached else self.teacher.variables

    def holding(self, constants: dict[str, Any]) -> "Distillation":
        """The same with these in place of the teacher's variables."""
        teacher = dataclasses.replace(self.teacher, variables=constants)
        return dataclasses.replace(self, teacher=teacher)

    def loss(self, params, model_state, batch, rng, train):
        """Sums over the batch of the loss and of right answers, as `Supervised.loss`.

        Beside its metrics there is `teacher_agreement`: how often the student's answer, of the mean
        of its heads, is the teacher's.
        """
        supervised = self.supervised
        images, own_share = supervised.mixed(batch["image"], rng, train)
        outputs, model_state = apply_model(
            supervised.model, params, model_state, images, rng=rng, train=train
        )
        head = head_dist = logits = outputs
        if isinstance(outputs, DistilledLogits):
            head, head_dist, logits = outputs.head, outputs.head_dist, outputs.mean()
        taught = batch[ANSWERS] if ANSWERS in batch else self.teacher(images)
        targets = supervised.targets(batch["label"], head, own_share)
        losses = (1 - self.alpha) * supervised.losses(head, targets, train)
        losses += self.alpha * self.teacher_losses(head_dist, taught)
        losses *= supervised.weights(batch["label"], own_share, train)
        mask = batch.get("mask", jnp.ones(len(logits)))
        answered = finite_rows(logits) & finite_rows(taught)
        agreement = jnp.sum((logits.argmax(-1) == taught.argmax(-1)) * answered * mask)
        metrics = {
            **supervised.metrics(logits, targets, mask),
            "teacher_agreement": agreement,
        }
        return jnp.sum(losses * mask), jnp.sum(mask), metrics, model_state

    def evaluate(self, params, model_state, batch):
        """Of the labels alone: see `Supervised.evaluate`."""
        return self.supervised.evaluate(params, model_state, batch)

    def teacher_losses(
        self, logits: Float[Array, "batch classes"], taught: Float[Array, "batch classes"]
    ) -> Float[Array, " batch"]:
        """The teacher's part for each image, before `alpha`, in nats."""
        if self.kind == "hard":
            answer = jax.nn.one_hot(taught.argmax(-1), taught.shape[-1])
            # Nothing can be learned of an answer that is none; the step is skipped and reported.
            answer = jnp.where(finite_rows(taught)[:, None], answer, jnp.nan)
            return self.supervised.losses(logits, answer, train=False)
        ours, its = (jax.nn.log_softmax(x / self.temperature) for x in (logits, taught))
        return self.temperature**2 * jnp.sum(jnp.exp(its) * (its - ours), axis=-1)


def check_distillation(config: ConfigDict, supervised: Supervised, augment: Augment) -> None:
    """What the keys of `distillation` mean together, before any teacher is opened.

    Raises:
        UserError: a key without a teacher, or that the data, the loss or other keys rule out.
    """
    keys = config.distillation
    if not keys.teacher:
        for name, off in (("cache", False), ("temperature", 1.0)):
            if keys[name] != off:
                raise UserError(
                    f"distillation.{name} = {keys[name]} and there is no teacher; say which with "
                    "--config.distillation.teacher"
                )
        return
    if supervised.multi_label:
        raise UserError(
            f"the images of {config.dataset!r} may have several labels, and distillation is for "
            "exactly one; leave distillation.teacher out"
        )
    if keys.kind == "hard" and keys.temperature != 1.0:
        raise UserError(
            f"distillation.temperature = {keys.temperature:g} changes nothing of a teacher's hard "
            "answers; use --config.distillation.kind=soft, or leave it at 1"
        )
    if keys.kind == "soft" and supervised.kind == "sigmoid":
        raise UserError(
            "distillation.kind = 'soft' compares probabilities that add up to 1, and those of "
            "objective.loss = 'sigmoid' do not; use --config.distillation.kind=hard, or "
            "--config.objective.loss=softmax"
        )
    changing = list(augment.active)
    if supervised.mixing.on:
        changing += [name for name in ("mixup", "cutmix") if config.augment[name]]
    if keys.cache and changing:
        named = ", ".join(f"augment.{name} = {config.augment[name]}" for name in changing)
        raise UserError(
            f"distillation.cache = True keeps one answer for each image, and {named} shows the "
            "teacher another image each time; use --config.distillation.cache=false, or "
            "switch augmentation off"
        )


def make_distillation(config: ConfigDict, supervised: Supervised, teacher: Teacher) -> Distillation:
    """The objective that a configuration with a teacher describes.

    Raises UserError where the teacher's answers are not of the kind that is asked for.
    """
    keys = config.distillation
    if keys.kind == "soft" and teacher.activation != "softmax":
        raise UserError(
            f"distillation.kind = 'soft' and the teacher {teacher.source!r} was trained with a "
            f"{teacher.activation}, so its probabilities do not add up to 1; use "
            "--config.distillation.kind=hard"
        )
    return Distillation(
        supervised, teacher, keys.kind, keys.alpha, keys.temperature, bool(keys.cache)
    )
