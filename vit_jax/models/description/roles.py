"""Roles of parameters: what each one is for, and what follows from it.

A layer says the roles of its own parameters, in a table beside it; an architecture puts the tables
of its layers together in its method `roles`:

    {
        "patch_embed": PatchEmbed.ROLES,
        "cls_token": Role.TOKEN,
        "blocks_*": Blocks(Block.ROLES),
        "norm": LayerNorm.ROLES,
        "head": kernel_and_bias(Role.HEAD),
    }

- Names are those of the tree of parameters; `*` stands for a number. An entry may name a parameter
  that only some settings of a model have.
- The order of the entries is that of the forward pass: what stands before the blocks belongs to the
  first layer, what stands behind them to the last.
- Optimizers, sharding, adaptation and analysis ask for roles and never read a path.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Union


class Role(StrEnum):
    """Purpose of a parameter. Every parameter of a model has exactly one."""

    # Matrices of the products with tokens or pixels.
    QKV = "qkv"  # (width, 3, heads, head_dim)
    QUERY = "query"  # (width, heads, head_dim)
    KEY = "key"
    VALUE = "value"
    ATTENTION_OUT = "attention_out"  # (heads, head_dim, width)
    MLP_IN = "mlp_in"  # (width, hidden)
    MLP_OUT = "mlp_out"  # (hidden, width)
    CONVOLUTION = "convolution"  # (height, width, channels, features)
    DEPTHWISE = "depthwise"  # (height, width, 1, channels): a filter for each channel, no matrix
    PATCH_EMBEDDING = "patch_embedding"  # (height, width, channels, features)
    DOWNSAMPLE = "downsample"  # between stages, dense or a convolution
    LINEAR = "linear"  # another dense layer, (inputs, outputs)
    HEAD = "head"  # (width, classes)
    KERNEL = "kernel"  # of a layer that is not declared, see `by_names`

    # Added to the results of those.
    QKV_BIAS = "qkv_bias"  # (3, heads, head_dim)
    MLP_IN_BIAS = "mlp_in_bias"  # (hidden,)
    BIAS = "bias"

    # Everything else.
    NORM = "norm"  # scale and shift
    LAYER_SCALE = "layer_scale"  # a factor per channel of a residual branch
    TOKEN = "token"  # class, distillation and mask token, registers, probe
    # (1, positions, width) of tokens, or (offsets, head_dim) of vectors inside attention.
    POSITION_TABLE = "position_table"
    TOKEN_TABLE = "token_table"  # (vocabulary, width) of a text tower
    # Of attention logits by relative position, (offsets, heads); or kernels that compute it.
    BIAS_TABLE = "bias_table"
    ATTENTION_MIXTURE = "attention_mixture"  # of tokens or of heads, inside attention
    LOW_RANK_DOWN = "low_rank_down"  # (width, rank) of a low-rank update
    LOW_RANK_UP = "low_rank_up"  # (rank, *features)
    OTHER = "other"  # a parameter that is not declared

    @property
    def is_decayed(self) -> bool:
        """True for what weight decay shrinks: kernels, and the vectors of the words of a text."""
        return self in _DECAYED

    @property
    def matrix(self) -> "Matrix | None":
        """The axes of its matrix, which Muon makes orthogonal; None if it is none."""
        return _MATRICES.get(self)

    @property
    def sharding(self) -> tuple[str | None, ...] | None:
        """Mesh axes of its own axes, or None: the longest axis is sharded along `fsdp`."""
        return _SHARDING.get(self)


class Matrix(NamedTuple):
    """Axes of a kernel as those of a matrix: inputs first, outputs last.

    inputs, outputs: their numbers; inputs None: all but the outputs. separate: number of axes
    between them, along which lie separate matrices.
    """

    inputs: int | None = 1
    outputs: int = 1
    separate: int = 0

    def axes(self, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return the axes of inputs and of outputs, counted from the end (-1 is the last).

        Args:
            rank: number of axes of one kernel. None is returned if there are too few.
        """
        inputs = rank - self.outputs - self.separate if self.inputs is None else self.inputs
        first = inputs + self.separate + self.outputs
        if inputs < 1 or rank < first:
            return None
        return tuple(range(-first, inputs - first)), tuple(range(-self.outputs, 0))


@dataclass(frozen=True)
class Blocks:
    """Entry of a table for residual blocks, such as `"blocks_*"`.

    Blocks that are stacked along a leading axis have the same name without a number, `blocks`.

    roles: of the parameters of one block.
    are_layers: whether layer decay counts them; not those of a stem, which belongs to the
        embedding.
    """

    roles: "Roles"
    are_layers: bool = True


# None in place of a table: roles follow from the names, see `by_names`.
Roles = Mapping[str, Union[Role, Blocks, "Roles", None]]


def kernel_and_bias(role: Role, bias: Role = Role.BIAS) -> Roles:
    """Return the table of a dense layer or convolution, whose kernel has this role."""
    return {"kernel": role, "bias": bias}


def model_roles(model: Any) -> Roles | None:
    """Return the table of a model's method `roles`; None if it has none, or `roles = None`."""
    own = getattr(type(model), "roles", None)
    return None if own is None else own(model)


_DENSE = Matrix()
_CONVOLUTION = Matrix(inputs=None)

_MATRICES = {
    Role.QKV: Matrix(inputs=1, separate=1, outputs=2),
    **dict.fromkeys((Role.QUERY, Role.KEY, Role.VALUE), Matrix(inputs=1, outputs=2)),
    Role.ATTENTION_OUT: Matrix(inputs=2, outputs=1),
    **dict.fromkeys((Role.MLP_IN, Role.MLP_OUT, Role.LINEAR, Role.HEAD), _DENSE),
    **dict.fromkeys((Role.CONVOLUTION, Role.PATCH_EMBEDDING), _CONVOLUTION),
    **dict.fromkeys((Role.DOWNSAMPLE, Role.KERNEL), _CONVOLUTION),
}

_DECAYED = {*_MATRICES, Role.DEPTHWISE, Role.TOKEN_TABLE}

# Axes of the mesh. What one product sends to the next lies along `tensor` in both: heads, and
# hidden units of an MLP.
_SHARDING = {
    Role.QKV: ("fsdp", None, "tensor", None),
    Role.QKV_BIAS: (None, "tensor", None),
    Role.ATTENTION_OUT: ("tensor", None, "fsdp"),
    Role.MLP_IN: ("fsdp", "tensor"),
    Role.MLP_IN_BIAS: ("tensor",),
    Role.MLP_OUT: ("tensor", "fsdp"),
    Role.PATCH_EMBEDDING: (None, None, None, "fsdp"),
    Role.POSITION_TABLE: (None, "fsdp"),
    Role.TOKEN_TABLE: (None, "fsdp"),  # every device has a part of every row: look-ups stay local
    Role.HEAD: ("fsdp", None),
}
