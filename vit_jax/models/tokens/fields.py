"""Fields of a ViT for fewer tokens: what they mean for each block, and what they go with."""

import math
from typing import TYPE_CHECKING, Annotated, Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.errors import shown
from vit_jax.models.fields import Each, Whole, check_rate, is_number, of_block, pair
from vit_jax.models.tokens.reduction import Keep, Merge, Reduction, TokenMap

if TYPE_CHECKING:
    from vit_jax.models.vit.module import ViT


class Share:
    """A number above 0 and at most 1."""

    def check(self, where: str, field: str, value: Any) -> None:
        if not is_number(value) or not 0 < value <= 1:
            raise ValueError(
                f"{where}: {field}={shown(value)} must be above 0 and at most 1, which keeps all."
            )


class DropShare:
    """A number from 0 to below 1."""

    def check(self, where: str, field: str, value: Any) -> None:
        check_rate(where, field, value)
        if value == 1:
            raise ValueError(
                f"{where}: {field}={value} would drop all patches; use a share below 1."
            )


OF_TOKENS = ("tome_r", "tome_proportional", "keep_ratio", "keep_fused", "patch_dropout")
Pairs = Annotated[int | tuple[int, ...], Each(Whole(0))]
Kept = Annotated[float | tuple[float, ...], Each(Share())]
Dropped = Annotated[float, DropShare()]


ANY_TOKENS = ("softmax", "talking_heads", "performer", "linear")  # attention without a grid


def merge_schedule(r: int, depth: int, inflect: float = 0.0) -> tuple[int, ...]:
    """Return `tome_r` for every block: from `r (1 - inflect)` linearly to `r (1 + inflect)`.

    inflect: from -1, many tokens merge early (the paper's decreasing schedule), to 1.
    """
    if not -1 <= inflect <= 1:
        raise ValueError(f"merge_schedule: inflect={inflect} must be from -1 to 1")
    first = int(r * (1.0 - inflect))
    step = 2 * (r - first) / max(depth - 1, 1)
    return tuple(int(first + step * i) for i in range(depth))


def reduces_tokens(model: Any) -> bool:
    """Return whether a model may leave fewer tokens than its patches, when it predicts."""
    return _merges(model) or _keeps_some(model)


def block_reduction(model: "ViT", number: int) -> Reduction | None:
    """Return the reduction of a block; None for all blocks of a model that keeps all tokens."""
    if _merges(model):
        return Merge(of_block(model.tome_r, number), model.prefix, model.tome_proportional)
    if _keeps_some(model):
        ratio = model.keep_ratio
        if isinstance(ratio, tuple):
            ratio = ratio[number]
        elif number not in keep_blocks(model.depth):
            ratio = 1.0
        return Keep(ratio, model.prefix, model.has_class_token, model.keep_fused)
    return None


def start(
    model: "ViT",
    x: Float[Array, "batch tokens width"],
    *,
    key_mask: Array | None = None,
    blocks: tuple[int, ...] = (),
) -> Float[Array, "batch tokens width"] | tuple[Array, TokenMap]:
    """Return what the first block takes: tokens, with their map if there will be fewer.

    key_mask, blocks: asked of the model's `features`; they need all tokens.

    Raises:
        ValueError: there will be fewer, and one of these is asked.
    """
    if not reduces_tokens(model):
        return x
    if key_mask is not None or blocks:
        check_all_tokens(model, "a key_mask and outputs of single blocks need all")
    return x, TokenMap(jnp.broadcast_to(jnp.arange(x.shape[1]), x.shape[:2]))


def keep_blocks(depth: int) -> tuple[int, ...]:
    """Return the blocks that a single `keep_ratio` is for: 3, 6 and 9 of 12, from 0."""
    return tuple(dict.fromkeys(depth * i // 4 for i in (1, 2, 3)))


def token_counts(model: "ViT", patches: int | None = None) -> tuple[int, ...]:
    """Return the number of tokens after every block, prefix tokens included.

    patches: of an image; None: of the model's own size.

    Raises:
        ValueError: a block has fewer pairs of tokens than it shall merge; it is named.
    """
    if patches is None:
        sides = zip(pair(model.image_size), pair(model.patch_size), strict=True)
        patches = math.prod(pixels // patch for pixels, patch in sides)
    counts, left = [], model.prefix + patches
    for number in range(model.depth):
        if (reduction := block_reduction(model, number)) is not None:
            try:
                left = reduction.count(left)
            except ValueError as error:
                raise ValueError(f"{type(model).__name__}: block {number}: {error}") from error
        counts.append(left)
    return tuple(counts)


def check_reduction(model: "ViT") -> None:
    """Raise ValueError for fields that a reduction of tokens, or patch dropout, cannot go with."""
    name = type(model).__name__
    for field in ("tome_r", "keep_ratio"):
        numbers = getattr(model, field)
        if isinstance(numbers, tuple) and len(numbers) != model.depth:
            raise ValueError(
                f"{name}: {field} has {len(numbers)} numbers, one for each block, but depth="
                f"{model.depth}; use {model.depth} numbers, or one for all."
            )
    fields = [field for field, on in _active(model).items() if on]
    if not fields:
        return
    field = fields[0]
    given = f"{field}={shown(getattr(model, field))}"
    if len(set(fields) - {"patch_dropout"}) > 1:
        raise ValueError(
            f"{name}: {given} and keep_ratio={shown(model.keep_ratio)} both reduce tokens; use "
            "tome_r=0 or keep_ratio=1.0."
        )
    of_any_tokens = model.attention_type in ANY_TOKENS and not reduces_tokens(model)
    needed = {
        "attention_type": (of_any_tokens or model.attention_type == "softmax", "softmax"),
        "rotary": (model.rotary == "none", "none"),
        "pool": (model.pool != "none", "cls", "mean"),
        "positions": (model.positions not in ("relative", "rotary"), "learned"),
    }
    if reduces_tokens(model):
        needed |= {
            "parallel": (not model.parallel, False),
            "scan_layers": (not model.scan_layers, False),
        }
    for other, (fits, *instead) in needed.items():
        if not fits:
            values = " or ".join(map(repr, instead))
            raise ValueError(
                f"{name}: {given} does not go with {other}={shown(getattr(model, other))}, which "
                f"needs {_WHY[other]}; use {other}={values}, or leave {field} out."
            )
    if getattr(model, "takes_patches", False) and reduces_tokens(model):
        raise ValueError(
            f"{name}: {given} cannot tell patches from padding, which images of any aspect ratio "
            f"have; use a ViT, or leave {field} out."
        )
    token_counts(model)


def check_all_tokens(model: Any, reason: str) -> None:
    """Raise ValueError for a model with fewer tokens than patches, which a use of it needs.

    reason: of the need, as the end of a sentence: "a decoder reads every patch".
    """
    for field, on in _active(model).items():
        if on:
            off = 1.0 if field == "keep_ratio" else 0
            raise ValueError(
                f"{type(model).__name__}: {field}={shown(getattr(model, field))} leaves fewer "
                f"tokens than patches, but {reason}; use {field}={off}."
            )


_WHY = {
    "attention_type": "all tokens, or has no logits of its own",
    "rotary": "the place of every token in the grid",
    "positions": "the place of every token in the grid",
    "pool": "every token as it is",
    "parallel": "the same tokens in attention and MLP",
    "scan_layers": "the same tokens in every block",
}


def _active(model: Any) -> dict[str, bool]:
    return {
        "tome_r": _merges(model),
        "keep_ratio": _keeps_some(model),
        "patch_dropout": getattr(model, "patch_dropout", 0) > 0,
    }


def _merges(model: Any) -> bool:
    r = getattr(model, "tome_r", 0)
    return any(r) if isinstance(r, tuple) else r > 0


def _keeps_some(model: Any) -> bool:
    ratio = getattr(model, "keep_ratio", 1.0)
    return min(ratio, default=1.0) < 1 if isinstance(ratio, tuple) else ratio < 1
