"""Estimate of the memory to train or run a model, without compiling it.

- The estimate walks the traced program, its jaxpr, and determines at every step which arrays are
  still needed, like the buffer assignment of a compiler. Operands and results of matrix products
  and convolutions are held, and arrays that are read in several places, as by the forward and the
  backward pass; other elementwise work is fused with its only reader, and takes no memory.
- So it works for any architecture and batch, but does not include a device's own workspace. Steps
  compiled by XLA for a CPU take within 15 % of it.
- Blocks are counted as unrolled. A loop over layers holds the same activations, stacked.
- Rematerialisation counts as requested. On a CPU XLA undoes it, because it merges equal
  computations.
"""

import dataclasses
import math
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from vit_jax.models.inputs import abstract_input, abstract_variables


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on one device.

    Attributes:
        parameters: float32, with running statistics.
        optimizer: the two moments of AdamW; 0 without training.
        images: one batch, float32.
        temporaries: the most that activations and gradients take at once.
        gradients: of all parameters; a part of the temporaries at the end of a step.
        attention: matrices of queries x keys, a part of the temporaries when they are fullest.
    """

    parameters: int
    optimizer: int
    images: int
    temporaries: int
    gradients: int
    attention: int

    @property
    def total(self) -> int:
        """Total number of bytes that must fit."""
        return self.parameters + self.optimizer + self.images + self.temporaries


def memory(
    model: nn.Module,
    batch: int = 1,
    image_size: int | tuple[int, int] | None = None,
    *,
    train: bool = False,
) -> Memory:
    """Estimate the memory of a forward pass, or of a training step with AdamW.

    Args:
        model: any architecture with the fields `image_size` and `in_channels`.
        batch: images at once.
        image_size: pixels (height, width) or one number; None: the model's own.
        train: a step that learns from the cross-entropy of a label for each image.
    """
    if image_size is not None:
        model = model.clone(image_size=image_size)
    if getattr(model, "scan_layers", False):
        model = model.clone(scan_layers=False)
    images = abstract_input(model, batch)
    variables = abstract_variables(model, images)
    program = jax.make_jaxpr(_step(model, train))(variables, images)
    program = _Program(program.jaxpr)
    peak, of_attention = program.peak(), program.softmax_shapes()
    gradients = _bytes_of(variables["params"]) if train else 0
    return Memory(
        parameters=_bytes_of(variables),
        optimizer=2 * gradients,
        images=_bytes_of(images),
        temporaries=sum(size for _, size in peak),
        gradients=gradients,
        attention=sum(size for shape, size in peak if shape in of_attention),
    )


def _step(model: nn.Module, train: bool):
    """A forward pass, or the gradients of a training step."""
    if not train:
        return lambda variables, images: model.apply(variables, images)

    def gradients(variables, images):
        state = {name: tree for name, tree in variables.items() if name != "params"}
        labels = jnp.zeros(len(images), jnp.int32)

        def loss(params):
            out, new = model.apply(
                {"params": params, **state},
                images,
                train=True,
                rngs={"dropout": jax.random.key(0)},
                mutable=list(state),
            )
            out = out.mean() if hasattr(out, "head_dist") else out
            losses = optax.softmax_cross_entropy_with_integer_labels(out, labels)
            return losses.mean(), new

        return jax.grad(loss, has_aux=True)(variables["params"])

    return gradients


def _bytes_of(tree: Any) -> int:
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


# ------------------------------------------------------------------------------- the traced program

# What reads arrays that lie in memory, and writes such.
_HEAVY = (
    "dot_general",
    "conv_general_dilated",
    "reduce_window_sum",
    "reduce_window_max",
    "reduce_window",
    "select_and_scatter_add",
    "select_and_gather_add",
    "gather",
    "scatter",
    "scatter-add",
    "sort",
    "top_k",
    "cumsum",
    "scan",
    "while",
    "cond",
    "random_bits",
    "threefry2x32",
    "optimization_barrier",
)
# What reads as it goes, and writes an array.
_REDUCTIONS = ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "argmax", "argmin")
# What is the same array under another shape or order of axes.
_ALIASES = ("reshape", "squeeze", "expand_dims", "transpose", "copy", "stop_gradient")
# What is computed again for each reader: it is cheaper to compute than to keep.
_CHEAP = (
    "broadcast_in_dim",
    "convert_element_type",
    "iota",
    "eq",
    "lt",
    "gt",
    "le",
    "ge",
    "and",
    "or",
    "not",
    "select_n",
    "pad",
    "slice",
    "dynamic_slice",
    "concatenate",
)


@dataclasses.dataclass
class _Operation:
    kind: str
    reads: list[int]
    writes: list[int]


class _Program:
    """A program as a flat row of operations on numbered values."""

    def __init__(self, jaxpr):
        self.operations: list[_Operation] = []
        self.values: list[tuple[tuple[int, ...], int]] = []  # shape and bytes
        names = {var: self._new(var) for var in (*jaxpr.invars, *jaxpr.constvars)}
        self.given = set(names.values())
        self.results = self._flatten(jaxpr, names)

    def _new(self, var) -> int:
        shape = getattr(var.aval, "shape", ())
        itemsize = getattr(getattr(var.aval, "dtype", None), "itemsize", 0)
        self.values.append((tuple(shape), math.prod(shape) * itemsize))
        return len(self.values) - 1

    def _flatten(self, jaxpr, names: dict[Any, int]) -> list[int]:
        def number(var) -> int | None:
            return None if hasattr(var, "val") else names[var]

        for equation in jaxpr.eqns:
            reads = [number(var) for var in equation.invars]
            kind, inner = equation.primitive.name, _called(equation)
            if kind in _ALIASES:
                names[equation.outvars[0]] = (
                    reads[0] if reads[0] is not None else self._new(equation.outvars[0])
                )
            elif inner is not None and kind not in _HEAVY:
                values = [
                    self._new(var) if read is None else read
                    for read, var in zip(reads, inner.invars, strict=True)
                ]
                inside = dict(zip(inner.invars, values, strict=True))
                inside |= {var: self._new(var) for var in inner.constvars}
                results = self._flatten(inner, inside)
                for var, result in zip(equation.outvars, results, strict=True):
                    names[var] = self._new(var) if result is None else result
            else:
                for var in equation.outvars:
                    names[var] = self._new(var)
                writes = [names[var] for var in equation.outvars]
                self.operations.append(
                    _Operation(kind, [read for read in reads if read is not None], writes)
                )
        return [number(var) for var in jaxpr.outvars]

    def peak(self) -> list[tuple[tuple[int, ...], int]]:
        """Shapes and bytes of what is held at the fullest moment, besides what was given."""
        readers: dict[int, list[int]] = defaultdict(list)
        writer: dict[int, int] = {}
        for place, operation in enumerate(self.operations):
            for value in operation.reads:
                readers[value].append(place)
            for value in operation.writes:
                writer[value] = place
        results = {value for value in self.results if value is not None}
        held = {v for v in writer if self._is_held(v, writer, readers) or v in results}
        last = self._last_use(held, readers, results)
        return self._fullest(held, writer, last)

    def softmax_shapes(self) -> set[tuple[int, ...]]:
        """Shapes `(batch, heads, queries, keys)`: of what a softmax takes the maximum."""
        read = (op.reads[0] for op in self.operations if op.kind == "reduce_max" and op.reads)
        shapes = {self.values[value][0] for value in read}
        return {shape for shape in shapes if len(shape) >= 4}

    def _is_held(self, value: int, writer, readers) -> bool:
        """Return whether a value is an array in memory, and not recomputed where it is read."""
        kind = self.operations[writer[value]].kind
        if kind in _HEAVY or kind in _REDUCTIONS:
            return True
        if any(self.operations[place].kind in _HEAVY for place in readers[value]):
            return True
        return kind not in _CHEAP and len(set(readers[value])) > 1

    def _last_use(self, held, readers, results) -> dict[int, int]:
        """Return the last read of each held value; fused work reads when its reader runs."""
        end = len(self.operations)
        last: dict[int, int] = {}
        for value in reversed(range(len(self.values))):
            uses = [end] if value in results else []
            for place in readers[value]:
                written = self.operations[place].writes
                fused = [w for w in written if w not in held]
                uses += [last.get(w, place) for w in fused] or [place]
            last[value] = max(uses, default=-1)
        return last

    def _fullest(self, held, writer, last):
        ends = defaultdict(list)
        for value in held:
            ends[max(last[value], writer[value])].append(value)
        live, total, best, fullest = set(), 0, -1, []
        for place, operation in enumerate(self.operations):
            for value in operation.writes:
                if value in held:
                    live.add(value)
                    total += self.values[value][1]
            if total > best:
                best, fullest = total, list(live)
            for value in ends[place]:
                live.discard(value)
                total -= self.values[value][1]
        return [self.values[value] for value in fullest]


def _called(equation) -> Any | None:
    """The program inside an equation that calls one; None for any other."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = equation.params.get(key)
        if inner is not None:
            return getattr(inner, "jaxpr", inner)
    return None
