"""The block of all transformers here, with rematerialisation and a scan over many blocks.

- Rematerialisation stores fewer activations for the backward pass and recomputes them; a loop over
  layers is traced and compiled once. Both wrap the class, and the block does not depend on them.
- Outputs and gradients stay equal up to rounding for the same parameters. The random bits of
  dropout are equal with rematerialisation, but different in a loop.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Bool, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.description.roles import Roles
from vit_jax.models.fields import Checked, Choice, Factory, Positive, factory, fields_of
from vit_jax.models.layers.mlp import Mlp
from vit_jax.models.layers.norm import LayerNorm, NormType, make_norm
from vit_jax.models.layers.residual import DropPath, LayerScale
from vit_jax.models.tokens.reduction import Reduction, TokenMap

NormOrder = Annotated[str, Choice("pre", "post", "branch")]
Remat = Annotated[str, Choice("none", "dots", "full")]


class Block(Checked):
    """Residual block of an attention and an MLP, each on a branch with a norm; shape kept.

    | `norm_order` | branch | source |
    |---|---|---|
    | `"pre"` | `x + f(norm(x))` | ViT paper, eq. 2 and 3 |
    | `"post"` | `norm(x + f(x))` | Vaswani et al. 2017, section 3.1 |
    | `"branch"` | `x + norm(f(x))` | Liu et al. 2022, "Swin Transformer V2", section 3.2 |

    With `parallel` both branches read the same normed tokens, `x + attn(y) + mlp(y)` with
    `y = norm1(x)` (ViT-22B, Dehghani et al. 2023, section 2.1). With `cross` the attention reads
    its keys and values from a context, after the norm `norm_context` (Jaegle et al. 2021,
    "Perceiver", section 3.1). The output is sown as `intermediates/.../out`.

    Tokens are whatever the attention takes: `(batch, tokens, width)`, or the map of windows,
    `(batch, height, width, channels)`. With `token_reduction` there are fewer of them behind the
    attention, and the block takes and gives a pair, tokens and their `TokenMap`; the source of this
    map is sown beside the output.
    """

    ROLES: ClassVar[Roles] = {
        "norm1": LayerNorm.ROLES,
        "norm_context": LayerNorm.ROLES,
        "attn": Attention.ROLES,
        "ls1": LayerScale.ROLES,
        "norm2": LayerNorm.ROLES,
        "mlp": Mlp.ROLES,
        "ls2": LayerScale.ROLES,
    }

    attn: Factory
    mlp: Factory
    norm_type: NormType = "layer"
    norm_eps: Positive = 1e-6
    norm_order: NormOrder = "pre"
    norm_initial: float = 1.0  # scale; at 0 with "branch" a block begins as the identity
    parallel: bool = False
    cross: bool = False
    layer_scale: Positive | None = None  # initial value
    drop_path: float = 0.0
    dtype: str = "float32"
    token_reduction: Reduction | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch *tokens width"] | tuple[Array, TokenMap],
        context: Float[Array, "batch keys width"] | None = None,
        *,
        train: bool = False,
        attention_weights: bool = False,
        drop_path: Float[Array, ""] | None = None,  # replaces the field if it is traced
        grid: tuple[int, int] | None = None,  # of the patches, the last tokens
        key_mask: Bool[Array, "batch keys"] | None = None,
    ) -> Float[Array, "batch *tokens width"] | tuple[Array, TokenMap]:
        if self.cross:
            context = make_norm(self, "norm_context")(check_context(x, context))
        norm1 = make_norm(self, "norm1", initial=self.norm_initial)
        norm2 = norm1 if self.parallel else make_norm(self, "norm2", initial=self.norm_initial)
        asked = {"attention_weights": attention_weights, "grid": grid, "key_mask": key_mask}
        if self.token_reduction is not None:
            x, token_map = x
            sizes = self.token_reduction.key_sizes(token_map)
            asked |= {"key_sizes": sizes, "projected": (projected := {})}
        attn = functools.partial(self.attn(name="attn"), context=context, train=train, **asked)
        mlp = functools.partial(self.mlp(name="mlp"), train=train)

        def branch(of: Callable[[Array], Array], x: Array, norm: nn.Module, scale: str) -> Array:
            y = of(norm(x) if self.norm_order == "pre" else x)
            y = norm(y) if self.norm_order == "branch" else y
            if self.layer_scale is not None:
                y = LayerScale(self.layer_scale, self.dtype, name=scale)(y)
            return DropPath(self.drop_path)(y, train=train, rate=drop_path)

        if self.parallel:
            x = x + branch(attn, x, norm1, "ls1") + branch(mlp, x, norm1, "ls2")
        else:
            for of, norm, scale in ((attn, norm1, "ls1"), (mlp, norm2, "ls2")):
                x = x + branch(of, x, norm, scale)
                x = norm(x) if self.norm_order == "post" else x
                if of is attn and self.token_reduction is not None:
                    with jax.named_scope("token_reduction"):  # a part of its own in costs
                        x, token_map = self.token_reduction(x, token_map, **projected)
        self.sow("intermediates", "out", x)
        if self.token_reduction is None:
            return x
        self.sow("intermediates", "source", token_map.source)
        return x, token_map

    def step(
        self,
        x: Float[Array, "batch *tokens width"],
        drop_path: Float[Array, ""] | None,
        train: bool,
        attention_weights: bool,
        grid: tuple[int, int] | None = None,
        key_mask: Bool[Array, "batch keys"] | None = None,
    ) -> tuple[Float[Array, "batch *tokens width"], None]:
        """Call the block in the form of `nn.scan` and `nn.remat`: a carry and no result."""
        asked = {"train": train, "attention_weights": attention_weights, "key_mask": key_mask}
        return self(x, drop_path=drop_path, grid=grid, **asked), None


def block_factory(
    source: Any = None,
    attention: type[nn.Module] = Attention,
    *,
    mlp_class: type[nn.Module] = Mlp,
    block: type[Block] = Block,
    **fields: Any,
) -> Factory:
    """Return the factory of a block: its attention, MLP and norms take what they know by name.

    >>> block_factory(heads=3, mlp_width=768, cross=True)(name="decoder")

    Args:
        source: a model with fields of the same names as those of the layers, or a mapping.
        attention, mlp_class: classes of the attention and the MLP.
        block: `Block` or a class of its kind, possibly in the form of `remat_block`.
        fields: further fields of the layers; they replace those of the source.

    Raises:
        ValueError: no layer has a field of that name, or a layer does not support its value.
    """
    layers = (attention, mlp_class, block)
    known = {field.name for layer in layers for field in dataclasses.fields(layer)}
    for field in fields:
        if field not in known:
            raise ValueError(f"a block has no field {field!r}; its fields are {sorted(known)}.")
    parts = {
        "attn": factory(attention, source, **fields_of(attention, fields)),
        "mlp": factory(mlp_class, source, **fields_of(mlp_class, fields)),
    }
    return factory(block, source, **{**fields_of(block, fields), **parts})


class Stage(nn.Module):
    """Stage of a pyramid: a downsampling, if any, blocks on the map, and a norm, if any."""

    blocks: tuple[Factory, ...]
    downsample: Factory | None = None
    norm: Factory | None = None

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Float[Array, "batch stage_height stage_width stage_channels"]:
        if self.downsample is not None:
            x = self.downsample(name="downsample")(x)
        blocks = [block(name=f"blocks_{j}") for j, block in enumerate(self.blocks)]
        x = run_blocks(blocks, x, (), train=train, attention_weights=attention_weights)
        return x if self.norm is None else self.norm(name="norm")(x)


def check_context(x: Array, context: Array | None) -> Array:
    """Return the context. Raises ValueError if there is none, or of another width than `x`."""
    if context is None:
        raise ValueError("Block: cross=True needs a context of keys and values, got none.")
    if context.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"Block: queries have a width of {x.shape[-1]}, but the context of "
            f"{context.shape[-1]}; project the context to {x.shape[-1]} first."
        )
    return context


def remat_block(block: type[Block], remat: str, in_loop: bool) -> type[Block]:
    """Return the block class with rematerialisation of activations in the backward pass.

    "full" stores only the inputs of a block. "dots" also stores the results of products with
    parameters and recomputes the rest: norms, GELU, and the products with a batch axis, that is the
    two of attention, a small part of the work with results of tokens x tokens.
    """
    if remat == "none":
        return block
    policies = {"dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable, "full": None}
    return nn.remat(
        block,
        policy=policies[remat],
        # In a loop the compiler cannot merge the second computation with the first.
        prevent_cse=not in_loop,
        static_argnums=(3, 4, 5),  # of `step`, counting self: train, attention_weights, grid
        methods=["step"],
    )


def make_blocks(blocks: Iterable[Factory], *, scan: bool = False) -> Any:
    """Return a list of blocks; with `scan` one block that is a loop over them.

    The layers of a loop have separate parameters, stacked along a leading axis, and separate rngs,
    and are equal but for their drop-path rates.
    """
    blocks = list(blocks)
    if not scan:
        return [block() for block in blocks]
    loop = nn.scan(
        blocks[-1].layer,  # the last one has the highest rate
        variable_axes={"params": 0, "intermediates": 0, "perturbations": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, *[nn.broadcast] * 4),
        length=len(blocks),
        methods=["step"],
    )
    return loop(**dict(blocks[-1].fields))


def run_blocks(
    blocks: Any,
    x: Float[Array, "batch *tokens width"],
    rates: Sequence[float],
    *,
    train: bool,
    attention_weights: bool = False,
    grid: tuple[int, int] | None = None,
    key_mask: Bool[Array, "batch keys"] | None = None,
    kept: dict[int, Array] | None = None,
) -> Float[Array, "batch *tokens width"]:
    """Return the output of the last of the blocks that `make_blocks` made.

    rates: drop-path rates of the blocks, for a loop over them.
    kept: its keys are numbers of blocks, whose outputs become its values.

    Raises:
        ValueError: there is no block of such a number, or the blocks are a loop, which gives the
            output of the last one only.
    """
    asked = (train, attention_weights, grid, key_mask)
    if not isinstance(blocks, Sequence):
        if kept:
            raise ValueError(
                "run_blocks: a loop over blocks gives no outputs of single ones; use "
                "scan_layers=False."
            )
        return blocks.step(x, jnp.array(rates), *asked)[0]
    for number in kept or ():
        if not 0 <= number < len(blocks):
            raise ValueError(
                f"run_blocks: there is no block {number}; their numbers are 0 to {len(blocks) - 1}."
            )
    for number, block in enumerate(blocks):
        x, _ = block.step(x, None, *asked)
        if kept is not None and number in kept:
            kept[number] = x
    return x
