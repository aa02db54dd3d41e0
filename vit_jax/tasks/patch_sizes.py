"""Classification at several patch sizes, by a model with one set of parameters for all (FlexiViT).

Each training step draws a patch size, uniformly, as in Beyer et al. 2023, section 3.2; the model is
judged at each of them.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import flax.linen as nn
from ml_collections import ConfigDict

from vit_jax.errors import UserError
from vit_jax.evaluation.base import Evaluator, Result

if TYPE_CHECKING:
    from vit_jax.tasks.classification import Classification


@dataclass(frozen=True)
class AtPatchSize(Evaluator):
    """Loss and accuracy at one patch size, under the name `patch_SIZE`.

    task: with a model of this patch size.
    """

    task: "Classification"
    size: int

    @property
    def name(self) -> str:
        """The prefix of its metrics."""
        return f"patch_{self.size}"

    def step(self, variables, batch):
        """Return the sums of the task; there are no rows."""
        return self.task.predict(variables, batch)[0], {}

    def finish(self, parts):
        """Return the means of the sums."""
        [part] = parts.values()
        return Result({**part.means(), "examples": part.examples})


def configured_sizes(
    config: ConfigDict, model: nn.Module
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the patch sizes of training and those of evaluation, both empty by default.

    Raises UserError for a model of one patch size, and for patches that do not divide the images.
    """
    training = _sizes(config, "objective", model)
    judged = _sizes(config, "evaluate", model) or training
    return training, judged


def _sizes(config: ConfigDict, section: str, model: Any) -> tuple[int, ...]:
    sizes = config[section].patch_sizes
    if sizes is None:
        return ()
    key = f"{section}.patch_sizes = {tuple(sizes)}"
    if not hasattr(type(model), "patch_resize"):
        raise UserError(
            f"{key} needs a model for any patch size, but {type(model).__name__} has a kernel for "
            f"one; use --config.model.name=FlexiViT-S or another FlexiViT, or omit {section}."
            "patch_sizes"
        )
    for size in sizes:
        try:
            model.clone(patch_size=size)
        except ValueError as error:
            raise UserError(f"{key}: {error}") from error
    return tuple(sizes)
