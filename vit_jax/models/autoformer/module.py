"""The ViT of AutoFormer (Chen et al. 2021): a ViT with relative positions in its blocks.

Besides the learned table of all tokens, every block has vectors for distances, of keys and of
values (`positions`). The mean of the patches is classified; the class token takes part in attention
only. It is a supernet, or a subnet that a search found.
"""

from typing import ClassVar

from vit_jax.errors import shown
from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.autoformer.positions import KEYS, VALUES, RelativeAttention, RelativeVectors
from vit_jax.models.fields import Count, PerBlock, Positive
from vit_jax.models.initializers import SchemeName
from vit_jax.models.positions.tables import ResizeMethod
from vit_jax.models.positions.types import POSITION_KINDS
from vit_jax.models.vit.module import Pool, ViT

# Values of fields of ViT that it may have, and the reason.
_NEEDED = {
    "positions": (
        tuple(name for name in POSITION_KINDS if name not in ("relative", "rotary")),
        "those are positions inside attention too",
    ),
    "rotary": ("none", "those are positions inside attention too"),
    "attention_type": ("softmax", "distances enter its logits"),
    "attention_impl": (("auto", "xla"), "the others do not give the weights"),
    "scan_layers": (False, "blocks may have different sizes"),
    "tome_r": (0, "merged tokens have no distances"),
    "keep_ratio": (1.0, "the patches that are left are no grid"),
    "patch_dropout": (0.0, "the patches that are left are no grid"),
}


class AutoFormer(ViT):
    """ViT with relative positions of keys and values; the defaults are the supernet of the base.

    Its fields are those of `ViT` and `relative_clip`. Parameters beside those of a ViT:
    `blocks_{i}/attn/relative_{key,value}_{rows,columns} (2 relative_clip + 2, head_dim)`. They are
    for distances of patches, so that images of any size need no others.

    Raises:
        ValueError: at construction or at the call, as `ViT`; also for fields that it cannot have.
    """

    width: Count = 640
    depth: Count = 16
    heads: PerBlock = 10
    head_dim: Count | None = 64
    relative_clip: Count = 14  # patches; longer distances count as it
    pool: Pool = "mean"
    class_token: bool | None = True
    norm_eps: Positive = 1e-5
    init_scheme: SchemeName = "trunc02"
    pos_resize: ResizeMethod = "torch-bicubic"

    attention_class: ClassVar[type[Attention]] = RelativeAttention

    def __post_init__(self):
        for field, (value, reason) in _NEEDED.items():
            given = getattr(self, field)
            values = value if isinstance(value, tuple) else (value,)
            if given not in values:
                raise ValueError(
                    f"{type(self).__name__}: {field}={shown(given)} does not go with relative "
                    f"positions of values: {reason}; use {field}={values[0]!r}."
                )
        super().__post_init__()

    @property
    def attention_positions(self) -> RelativeVectors:
        """Position settings of the attention layers."""
        return RelativeVectors(prefix=self.prefix, clip=self.relative_clip)

    def starts_from(self) -> dict[str, str | None]:
        """Return where parameters begin that weights of a ViT lack, by path: at zero (None)."""
        names = (*KEYS, *VALUES)
        return {f"blocks_{i}/attn/{name}": None for i in range(self.depth) for name in names}
