"""Text tower of CLIP, SigLIP and their relatives: token ids to one vector for each text.

- The blocks are those of a ViT. The defaults are the text tower of CLIP's ViT-B; what SigLIP has
  otherwise is in the table.

| field | CLIP (Radford et al. 2021, section 2.4) | SigLIP (Zhai et al. 2023) |
|---|---|---|
| `causal` | True | False |
| `pool` | "end": at the end-of-text token | "last": at the last token, padding or not |
| `output_bias` | False | True |
| `activation`, `norm_eps` | "quick_gelu", 1e-5 | "gelu_tanh", 1e-6 |
| `init_scheme` | "clip" | "vit" |

- Texts may be shorter than `length`; they take the first positions. Longer ones are an error, they
  are cut by the tokenizer.
- The vector is not normalised: that belongs to the comparison with images.
"""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import jax.numpy as jnp
from flax import linen as nn
from flax import struct
from flax.linen.initializers import Initializer
from jaxtyping import Array, Bool, Float, Int

from vit_jax.errors import shown
from vit_jax.models.attention.implementations import Implementation
from vit_jax.models.block import Block, Remat, block_factory, remat_block, run_blocks
from vit_jax.models.description.roles import Blocks, Role, Roles, kernel_and_bias
from vit_jax.models.fields import (
    LARGEST_WHOLE,
    Checked,
    Choice,
    Count,
    Depth,
    DtypeName,
    Factory,
    Hidden,
    Positive,
    Whole,
    factory,
)
from vit_jax.models.initializers import INIT_SCHEMES, SchemeName, by_width
from vit_jax.models.layers.mlp import Activation
from vit_jax.models.layers.norm import LayerNorm, NormType, make_norm
from vit_jax.models.layers.pooling import AttentionPooling
from vit_jax.models.layers.residual import drop_path_rates
from vit_jax.models.validation import check_multiple

Pool = Annotated[str, Choice("end", "last", "map")]
TokenId = Annotated[int, Whole(0, LARGEST_WHOLE)]
LARGEST_VOCABULARY = 2**22  # of words; the largest in use have 2**18


@struct.dataclass
class TextFeatures:
    """Features of a batch of texts.

    Attributes:
        tokens: `(batch, length, width)` past the last norm.
        pooled: `(batch, width)`, one of them or what "map" makes of all, before the projection.
    """

    tokens: Float[Array, "batch length width"]
    pooled: Float[Array, "batch width"]


class TextTower(Checked):
    """Transformer of the tokens of a text; `(batch, length)` ids give `(batch, output_width)`.

    Parameters: `token_embed (vocabulary, width)`, `pos_embed (1, length, width)`, `blocks_{i}` as a
    ViT's, `norm`, with `pool="map"` `map_head`, and `projection/{kernel (width, output_width)}`.

    Raises:
        ValueError: at construction if fields do not fit each other, at the call for anything but
            ids `(batch, length)` of a length up to that of the tower.
    """

    vocabulary: Annotated[int, Whole(most=LARGEST_VOCABULARY)] = 49_408  # number of tokens
    length: Count = 77  # most tokens of a text, with start and end
    width: Count = 512
    depth: Depth = 12
    heads: Count = 8
    head_dim: Count | None = None  # None: width / heads
    mlp_ratio: Positive = 4.0
    mlp_width: Hidden | None = None  # the same as a number
    causal: bool = True  # a token attends only to itself and those before it
    pool: Pool = "end"  # or "last", or "map": by attention to all tokens
    end_token: TokenId | None = None  # "end" is where it stands first; None: at the largest id
    output_width: Annotated[int, Whole(0)] = 512  # 0: the pooled token itself
    output_bias: bool = False
    activation: Activation = "quick_gelu"
    norm_type: NormType = "layer"
    norm_eps: Positive = 1e-5
    final_norm: bool = True
    attention_dropout: float = 0.0
    projection_dropout: float = 0.0
    mlp_dropout: float = 0.0
    drop_path: float = 0.0  # rate of the last block, from 0 linearly over depth
    layer_scale: Positive | None = None
    init_scheme: SchemeName = "clip"
    dtype: DtypeName = "float32"  # of the blocks; the vector is always float32
    attention_impl: Implementation = "auto"
    remat: Remat = "none"

    def __post_init__(self):
        super().__post_init__()
        if self.head_dim is None:
            check_multiple("TextTower", "width", self.width, "heads", self.heads)
        if self.end_token is not None and self.end_token >= self.vocabulary:
            raise ValueError(
                f"TextTower: end_token={self.end_token} is no token of a vocabulary of "
                f"{self.vocabulary:,}; ids begin at 0."
            )
        self._block(0)  # checks its fields

    def setup(self):
        init = text_inits(self.init_scheme)
        self.token_embed = self.param("token_embed", init.tokens, (self.vocabulary, self.width))
        self.pos_embed = self.param("pos_embed", init.positions, (1, self.length, self.width))
        self.blocks = [self._block(i)() for i in range(self.depth)]
        self.norm = make_norm(self) if self.final_norm else lambda x: x
        if self.pool == "map":
            self.map_head = factory(AttentionPooling, self, mlp_width=self.hidden_width)()
        if self.output_width:
            self.projection = nn.Dense(
                self.output_width, use_bias=self.output_bias, kernel_init=init.projection
            )

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        *,
        train: bool = False,
        attention_weights: bool = False,
        key_mask: Bool[Array, "batch length"] | None = None,
    ) -> Float[Array, "batch output_width"]:
        """Return one vector for each text in float32, not normalised."""
        asked = {"train": train, "attention_weights": attention_weights, "key_mask": key_mask}
        x = self.features(tokens, **asked).pooled.astype(jnp.float32)
        return self.projection(x) if self.output_width else x

    def features(
        self,
        tokens: Int[Array, "batch length"],
        *,
        train: bool = False,
        attention_weights: bool = False,
        key_mask: Bool[Array, "batch length"] | None = None,
    ) -> TextFeatures:
        """Return all tokens past the last norm, and the pooled one, in the compute type.

        key_mask: False for padding, which no token attends to; CLIP and SigLIP have no mask.
        """
        check_tokens(tokens, self.length)
        asked = {"train": train, "attention_weights": attention_weights, "key_mask": key_mask}
        # An id outside of the vocabulary gives NaN, and not the vector of another token.
        x = jnp.take(self.token_embed, tokens, axis=0, mode="fill")
        x = (x + self.pos_embed[:, : tokens.shape[1]]).astype(self.dtype)
        x = self.norm(run_blocks(self.blocks, x, (), **asked))
        return TextFeatures(x, self._pool(x, tokens, **asked))

    def _pool(self, x: Array, tokens: Array, **asked: bool | Array | None) -> Array:
        if self.pool == "map":
            return self.map_head(x, **asked)
        if self.pool == "last":
            return x[:, -1]
        return jnp.take_along_axis(x, end_positions(tokens, self.end_token)[:, None, None], 1)[:, 0]

    def _block(self, number: int) -> Factory:
        return block_factory(
            self,
            block=remat_block(Block, self.remat, in_loop=False),
            mlp_width=self.hidden_width,
            drop_path=drop_path_rates(self.drop_path, self.depth)[number],
        )

    @property
    def hidden_width(self) -> int:
        """Width of the hidden layer of the MLPs."""
        return self.mlp_width or int(self.width * self.mlp_ratio)

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        return {
            "token_embed": Role.TOKEN_TABLE,
            "pos_embed": Role.POSITION_TABLE,
            "blocks_*": Blocks(Block.ROLES),
            "norm": LayerNorm.ROLES,
            "map_head": AttentionPooling.ROLES,
            "projection": kernel_and_bias(Role.LINEAR),
        }


def usual_layers(pool: str) -> dict[str, Any]:
    """Return activation and epsilon that a task takes with a pooling: CLIP's or SigLIP's."""
    if pool == "end":
        return {"text_activation": "quick_gelu", "text_norm_eps": 1e-5}
    return {"text_activation": "gelu_tanh", "text_norm_eps": 1e-6}


def text_tower(options: Mapping[str, Any], dtype: str = "float32") -> TextTower:
    """Return the text tower of fields of the task `contrastive`, such as `text_width`.

    Attention is causal with the pooling "end". None for an activation or epsilon: the usual one.
    """
    causal = options["text_pool"] == "end"
    usual = usual_layers(options["text_pool"])
    return TextTower(
        vocabulary=options["vocabulary"],
        length=options["length"],
        width=options["text_width"],
        depth=options["text_depth"],
        heads=options["text_heads"],
        mlp_width=options["text_mlp_width"],
        pool=options["text_pool"],
        causal=causal,
        end_token=options["text_end_token"],
        output_width=options["embed_width"],
        output_bias=not causal,
        activation=options["text_activation"] or usual["text_activation"],
        norm_eps=options["text_norm_eps"] or usual["text_norm_eps"],
        dtype=dtype,
    )


class TextInits(NamedTuple):
    """Initialisers of what a text tower has besides its blocks."""

    tokens: Initializer
    positions: Initializer
    projection: Initializer


def text_inits(init_scheme: str) -> TextInits:
    """Return the initialisers of a scheme: CLIP's, big_vision's for "vit", or the scheme's own."""
    if init_scheme == "vit":
        return TextInits(nn.linear.default_embed_init, by_width, nn.initializers.lecun_normal())
    scheme, normal = INIT_SCHEMES[init_scheme], nn.initializers.normal
    if init_scheme == "clip":
        return TextInits(normal(0.02), normal(0.01), scheme.kernel)
    return TextInits(scheme.registers, scheme.positions, scheme.kernel)


def end_positions(
    tokens: Int[Array, "batch length"], end_token: int | None = None
) -> Int[Array, " batch"]:
    """Return where each text ends: at the first `end_token`, or without one at the largest id.

    CLIP's end-of-text token is the largest. A text without the token ends at its last one.
    """
    if end_token is None:
        return jnp.argmax(tokens, axis=1)
    found = tokens == end_token
    return jnp.where(found.any(axis=1), jnp.argmax(found, axis=1), tokens.shape[1] - 1)


def check_tokens(tokens: Array, length: int) -> None:
    """Raise ValueError for anything but whole numbers `(batch, length)` of at most that length."""
    shape, dtype = jnp.shape(tokens), jnp.result_type(tokens)
    if len(shape) != 2 or not jnp.issubdtype(dtype, jnp.integer):
        raise ValueError(
            f"TextTower: texts are whole numbers (batch, length), got {dtype} of the shape "
            f"{shown(shape)}; a tokenizer makes them of text."
        )
    if not 1 <= shape[1] <= length:
        raise ValueError(
            f"TextTower: a text has from 1 to {length} tokens, got {shape[1]}; let the tokenizer "
            "cut them."
        )
