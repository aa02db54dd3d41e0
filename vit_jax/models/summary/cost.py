"""Exact cost of a model without running it: parameters, MACs, tokens, shapes.

- Multiply-accumulates (MACs) are counted in the traced program, its jaxpr: every matrix product and
  every convolution. So the count works for any architecture and always matches the code.
- One MAC is one multiplication and one addition: FLOPs are twice the MACs. Papers often print MACs
  under the name FLOPs. Elementwise work (norms, GELU, softmax; about 1 %) is not counted, which is
  also how torch's FlopCounter counts.
- XLA's own `cost_analysis` counts the body of a scan once; here every iteration counts.
- Only shapes are computed: `jax.eval_shape` and `jax.make_jaxpr` do no arithmetic.
"""

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
from flax import linen as nn
from flax.traverse_util import flatten_dict

from vit_jax.models.attention.implementations import IMPLEMENTATIONS
from vit_jax.models.inputs import abstract_input, abstract_variables
from vit_jax.models.tokens.fields import reduces_tokens


@dataclasses.dataclass(frozen=True)
class Part:
    """One row of a cost table; the rows of a table sum to the totals."""

    name: str
    parameters: int
    macs: int


@dataclasses.dataclass(frozen=True)
class Cost:
    """Cost of one image.

    Attributes:
        parameters: trainable numbers.
        macs: multiply-accumulates of matrix products and convolutions in a forward pass.
        tokens: tokens after the last block, prefix tokens included; of a pyramid, the last stage's.
        parts: the same by part of the network.
    """

    parameters: int
    macs: int
    tokens: int
    parts: tuple[Part, ...]

    @property
    def flops(self) -> int:
        """Floating point operations: two for each multiply-accumulate."""
        return 2 * self.macs


_OF_BLOCKS = ("heads", "mlp_width", "global_blocks")  # fields that tell blocks apart


def cost(model: nn.Module, image_size: int | tuple[int, int] | None = None) -> Cost:
    """Compute the exact cost of a forward pass on one image.

    The blocks of a model with a field `depth` are equal unless it has numbers of single ones, or
    reduces tokens: two are traced and the others added, since tracing the 48 of ViT-G takes too
    long. `trace_cost` traces them all.

    Args:
        model: any architecture with the fields `image_size` and `in_channels` whose `__call__` goes
            through its `features`.
        image_size: count as if the model were built for this size (in pixels, `(height, width)` or
            one number), so with a position table of that size; None takes the model's own.

    Raises:
        ValueError: the model cannot take images of that size.
    """
    depth = getattr(model, "depth", 0)
    differ = any(isinstance(getattr(model, name, 0), tuple) for name in _OF_BLOCKS)
    if depth <= 2 or differ or reduces_tokens(model):
        return trace_cost(model, image_size)
    one, two = (trace_cost(model.clone(depth=d), image_size) for d in (1, 2))

    def extended(first: int, second: int) -> int:
        return first + (depth - 1) * (second - first)

    return Cost(
        parameters=extended(one.parameters, two.parameters),
        macs=extended(one.macs, two.macs),
        tokens=one.tokens,
        parts=tuple(
            Part(a.name, extended(a.parameters, b.parameters), extended(a.macs, b.macs))
            for a, b in zip(one.parts, two.parts, strict=True)
        ),
    )


def trace_cost(model: nn.Module, image_size: int | tuple[int, int] | None = None) -> Cost:
    """Compute `cost` with every block traced: slow, without knowledge of repeated blocks."""
    model, images = _model_and_image(model, image_size)
    variables = abstract_variables(model, images)
    parameters, macs = Counter(), Counter()
    for path, leaf in flatten_dict(variables["params"]).items():
        parameters[_part_of(path)] += math.prod(leaf.shape)

    program, calls = _forward(model, variables, images)
    for scope, count in _walk(program):
        macs[_part_of(_module_path(model, scope))] += count

    features = next((result for _, method, result in calls if method == "features"), None)
    names = sorted({*parameters, *macs}, key=_display_order)
    return Cost(
        parameters=parameters.total(),
        macs=macs.total(),
        tokens=features.tokens.shape[1] if features is not None else 0,
        parts=tuple(Part(name, parameters[name], macs[name]) for name in names),
    )


def macs_of(function: Callable[..., Any], *arguments: Any) -> int:
    """Return the multiply-accumulates of a function that JAX can trace.

    arguments: trees of arrays, or of their shapes and types.
    """
    program = jax.make_jaxpr(function)(*arguments)
    return sum(count for _, count in _walk(program.jaxpr))


def shape_walk(
    model: nn.Module, image_size: int | tuple[int, int] | None = None
) -> list[tuple[str, tuple[int, ...]]]:
    """Return the shapes of one image's activations, as rows `(stage, shape)` up to the logits.

    Stages are the model's direct submodules by their names in the parameter tree, in the order in
    which they run, besides `image`, `tokens` (what enters the blocks), `pooled` and `logits`.

    Raises:
        ValueError: the model cannot take images of that size.
    """
    model, images = _model_and_image(model, image_size)
    _, calls = _forward(model, abstract_variables(model, images), images)
    own_stages = {"embed": "tokens", "pool_tokens": "pooled", "__call__": "logits"}
    rows = [("image", images.shape)]
    for module, method, result in calls:
        array = result[0] if isinstance(result, tuple) else result
        if not module.path and method in own_stages:
            rows.append((own_stages[method], array.shape))
        elif len(module.path) != 1 or method != "__call__" or isinstance(module, nn.Dropout):
            continue
        elif rows[-1][0] != module.path[0]:  # otherwise it has called the method of its base
            rows.append((module.path[0], array.shape))
    return [row for row in rows if row[0] not in ("head", "head_dist")]  # they give the logits


def _model_and_image(model, image_size) -> tuple[nn.Module, jax.ShapeDtypeStruct]:
    if image_size is not None:
        model = model.clone(image_size=image_size)
    if str(getattr(model, "attention_impl", None)) in ("auto", *IMPLEMENTATIONS):
        # Blocks of queries would be counted with their padding.
        model = model.clone(attention_impl="xla")
    return model, abstract_input(model)


def _forward(model: nn.Module, variables: dict[str, Any], images: jax.ShapeDtypeStruct):
    """The program of a forward pass, and the calls in it: (module, method, abstract result)."""
    calls = []

    def note(run, args, kwargs, context):
        result = run(*args, **kwargs)
        calls.append((context.module, context.method_name, result))
        return result

    with nn.intercept_methods(note):
        program = jax.make_jaxpr(model.apply)(variables, images)
    return program.jaxpr, calls


# The rows of a cost table, in the order of the forward pass. A module or parameter belongs to the
# first name in its path that stands here, trailing numbers aside: `blocks_0/attn/q_norm` to attn.
_PARTS = {
    "patch_embed": "patch embedding",
    "cls_token": "class token",
    "dist_token": "distillation token",
    "reg_tokens": "registers",
    "pos_embed": "positions",
    "time_embed": "positions",
    "time": "attention along time",
    "downsample": "downsampling",
    "attn": "attention",
    "mlp": "MLP",
    "token_mlp": "token MLP",  # of a Mixer, across patches
    "channel_mlp": "channel MLP",
    "norm": "norms",
    "pre_norm": "norms",
    "stem_norm": "norms",
    "ls": "layer scale",
    "token_reduction": "token reduction",
    "map_head": "attention pooling",
    "pre_logits": "representation",
    "head": "head",
    "head_dist": "distillation head",
}
_ORDER = list(dict.fromkeys(_PARTS.values()))


def _part_of(path: tuple[str, ...]) -> str:
    # In attention, and a table of positions or what computes one.
    if path[-1:] == ("relative_bias",) or "relative_mlp" in path:
        return _PARTS["pos_embed"]
    names = [re.sub(r"_?\d+$", "", name) for name in path]
    known = (_PARTS[name] for name in names if name in _PARTS)
    return next(known, names[0] if names else "other")


def _display_order(part: str) -> tuple[int, str]:
    """Rows this file does not know by name (other architectures' stages) stand before the heads."""
    return (_ORDER.index(part) if part in _ORDER else _ORDER.index("norms"), part)


def _module_path(model: nn.Module, scope: str) -> tuple[str, ...]:
    """A name stack such as `ViT/ViT.features/blocks_0/attn/qkv/btw,wshd->btshd`, modules only."""
    names = [name for name in scope.split("/") if re.fullmatch(r"\w+", name)]
    return tuple(names[1:] if names[:1] == [type(model).__name__] else names)


def _walk(jaxpr, scope: str = "", times: int = 1) -> Iterator[tuple[str, int]]:
    """Yield `(name stack, MACs)` of every matrix product and convolution, as often as it runs."""
    for equation in jaxpr.eqns:
        here = f"{scope}/{equation.source_info.name_stack}".strip("/")
        kind = equation.primitive.name
        if kind == "dot_general":
            yield here, times * _macs_of_product(equation)
        elif kind == "conv_general_dilated":
            yield here, times * _macs_of_convolution(equation)
        elif kind == "cond":  # one branch runs; the dearest one bounds the cost
            branches = [list(_walk(b.jaxpr, here, times)) for b in equation.params["branches"]]
            yield from max(branches, key=lambda rows: sum(count for _, count in rows))
        else:
            repeats = equation.params["length"] if kind == "scan" else 1
            for inner in _inner_jaxprs(equation):
                yield from _walk(inner, here, times * repeats)


def _inner_jaxprs(equation) -> Iterator[Any]:
    """The programs inside an equation: of jit, remat, scan, custom derivatives."""
    for value in equation.params.values():
        for candidate in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(candidate, "jaxpr", candidate)
            if hasattr(inner, "eqns"):
                yield inner


def _macs_of_product(equation) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left, result = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return math.prod(result) * math.prod(left[axis] for axis in contracted)


def _macs_of_convolution(equation) -> int:
    """Every output number sums over one kernel window and the input channels of its group."""
    kernel, result = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
    out_axis = equation.params["dimension_numbers"].rhs_spec[0]
    return math.prod(result) * math.prod(kernel) // kernel[out_axis]
