"""Training of a supernet: each step computes one random subnet, whose weights all others share.

The model is the supernet, an ordinary ViT of the largest sizes. It is judged as it is, and at its
smallest subnet. `compress/search` finds the best subnets and cuts them out.

Source: AutoFormer (Chen et al. 2021). Dropout is not rescaled with the width here.
"""

import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import jax

from vit_jax.evaluation.base import Evaluator, Result
from vit_jax.models.supernet.masking import as_subnet, check_space, head_dim, per_block
from vit_jax.models.supernet.space import SearchSpace, Sizes
from vit_jax.tasks.classification import Classification
from vit_jax.tasks.distillation import Distillation
from vit_jax.tasks.registry import register_task

_OWN = ("depths", "widths", "heads", "mlp_ratios", "per_block")


@dataclass(frozen=True)
class SmallestSubnet(Evaluator):
    """Loss and accuracy of the smallest subnet, under the name `smallest`."""

    task: "Supernet"
    name: ClassVar[str] = "smallest"

    def step(self, variables, batch):
        """Return the sums of the task; there are no rows."""
        sizes = self.task.space.smallest.sizes(self.task.model.depth)
        return self.task.predict_subnet(variables, batch, sizes)[0], {}

    def finish(self, parts):
        """Return the means of the sums."""
        [part] = parts.values()
        return Result({**part.means(), "examples": part.examples})


@register_task("supernet")
@dataclass(frozen=True)
class Supernet(Classification):
    """Classification by a random subnet at each step, see `SearchSpace.draw`.

    depths, widths, heads, mlp_ratios, per_block: of the `SearchSpace`; empty: only that of the
        model.

    Raises:
        ValueError: the model is no supernet of this space.
    """

    depths: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()
    mlp_ratios: tuple[float, ...] = ()
    per_block: bool = True

    additive: ClassVar = False  # each part would draw a subnet of its own
    takes_patches: ClassVar = False

    def __post_init__(self):
        check_space(self.model, self.space)

    @property
    def space(self) -> SearchSpace:
        """The sizes of the subnets."""
        model = self.model
        heads, mlp_width = per_block(model)
        return SearchSpace(
            self.depths or (model.depth,),
            self.widths or (model.width,),
            self.heads or (min(heads),),
            self.mlp_ratios or (min(mlp_width) / model.width,),
            self.per_block,
            head_dim(model),
        )

    @classmethod
    def settable(cls):
        """Return the fields of the search space."""
        return {field.name: field for field in dataclasses.fields(cls) if field.name in _OWN}

    @classmethod
    def make(cls, setting, **fields):
        """Return the task of a configuration, with a teacher if it names one."""
        task = super().make(setting)
        if isinstance(task, Distillation):
            supervised = dataclasses.replace(task.supervised, **fields)
            return dataclasses.replace(task, supervised=supervised)
        return dataclasses.replace(task, **fields)

    def evaluators(self):
        """Return the evaluators of the whole supernet, and of the smallest subnet."""
        return *super().evaluators(), SmallestSubnet(self)

    def describe(self, source):
        """Return the number of classes, and sentences on them and on the search space."""
        clause, sentences = super().describe(source)
        space = self.space
        return clause, [*sentences, f"each step draws one of {space.count():,} subnets"]

    def apply(self, variables, images, rng=None, *, train, **more):
        """Return the outputs of the supernet; in training those of a random subnet."""
        if not train:
            return super().apply(variables, images, rng, train=train, **more)
        # Folded in, so that dropout has keys of its own.
        sizes = self.space.draw(jax.random.fold_in(rng, 2), self.model.depth)
        with self._as_subnet(variables, sizes) as masked:
            return super().apply(masked, images, rng, train=train, **more)

    def predict_subnet(self, variables, batch, sizes: Sizes):
        """Return what `predict` does, of a subnet; the sizes may be traced."""
        with self._as_subnet(variables, sizes) as masked:
            return self.predict(masked, batch)

    @contextlib.contextmanager
    def _as_subnet(self, variables: Any, sizes: Sizes):
        with as_subnet(self.model, variables["params"], sizes) as params:
            yield {**variables, "params": params}
