"""Decoders of segmentation: from the features of a backbone to logits of a grid of places.

- "linear": a dense layer of every patch (Strudel et al. 2021, "Segmenter", section 3.2).
- "mask": the mask transformer of the same paper: patches and learned tokens of the classes go
  through further blocks; the logit of a class is the cosine of its token and the patch, normed over
  the classes.
- "mlp": the decoder of SegFormer (Xie et al. 2021, section 3.2), which joins the maps of a pyramid.
- "upernet": pyramid pooling and a pyramid of features from the top down (Xiao et al. 2018,
  "Unified Perceptual Parsing", section 3), and the auxiliary head of mmsegmentation's models.

Maps are enlarged as torch does it, `align_corners=False`. Logits are float32.
"""

from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.models.block import Block, block_factory
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.features import Features
from vit_jax.models.fields import Checked, Choice, Classes, Count, DtypeName, Positive, Rate
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.layers.convolutions import ConvNorm, torch_linear
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.residual import stage_drop_path_rates
from vit_jax.models.layers.resize import resize_map

DecoderName = Annotated[str, Choice("linear", "mask", "mlp", "upernet")]
Map = Float[Array, "batch height width channels"]
Maps = tuple[Map, ...]

BILINEAR = "torch-bilinear"  # the method of resizing maps
POOLED_SIDES = (1, 2, 3, 6)  # of the maps of pyramid pooling
_SCHEME = INIT_SCHEMES["trunc02"]
_CLASSIFIER_INIT = nn.initializers.normal(0.01)  # mmsegmentation's, of convolutional decoders
_TOKEN_HEAD = 64  # channels of a head of the mask transformer


class LinearDecoder(Checked):
    """Dense layer `classifier` of every patch."""

    ROLES: ClassVar[Roles] = {"classifier": kernel_and_bias(Role.HEAD)}

    classes: Classes

    @nn.compact
    def __call__(self, features: Features, maps: Maps, *, train: bool = False) -> Map:
        classifier = nn.Dense(self.classes, kernel_init=_SCHEME.head, name="classifier")
        return classifier(patches_of(features).astype(jnp.float32))


class MaskTransformer(Checked):
    """Segmenter's decoder: `depth` blocks of patches and class tokens, and their cosines.

    Parameters `input`, `class_tokens (1, classes, width)`, `blocks_{i}`, `norm`, the matrices
    `patch_projection` and `class_projection` `(width, width)`, and `mask_norm`, over the classes.

    width: of the blocks; None: the backbone's. heads: None: of 64 channels.
    """

    ROLES: ClassVar[Roles] = {
        "input": kernel_and_bias(Role.LINEAR),
        "class_tokens": Role.TOKEN,
        "blocks_*": Block.ROLES,
        "norm": LayerNorm.ROLES,
        "patch_projection": {"kernel": Role.LINEAR},
        "class_projection": {"kernel": Role.LINEAR},
        "mask_norm": LayerNorm.ROLES,
    }

    classes: Classes
    width: Count | None = None
    depth: Count = 2
    heads: Count | None = None
    dropout: Rate = 0.1
    drop_path: Rate = 0.0
    norm_eps: Positive = 1e-5
    dtype: DtypeName = "float32"

    @nn.compact
    def __call__(self, features: Features, maps: Maps, *, train: bool = False) -> Map:
        patches = patches_of(features)
        batch, height, columns, channels = patches.shape
        width = self.width or channels
        dense = nn.Dense(width, kernel_init=_SCHEME.kernel, dtype=self.dtype, name="input")
        x = dense(patches.reshape(batch, -1, channels))
        shape = (1, self.classes, width)
        tokens = self.param("class_tokens", _SCHEME.class_token, shape).astype(x.dtype)
        tokens = jnp.broadcast_to(tokens, (batch, *tokens.shape[1:]))
        x = jnp.concatenate([x, tokens], axis=1)
        for i, rate in enumerate(stage_drop_path_rates(self.drop_path, (self.depth,))[0]):
            x = self._block(width, rate)(name=f"blocks_{i}")(x, train=train)
        x = LayerNorm(self.norm_eps, name="norm")(x)  # float32 from here on
        patches, tokens = x[:, : -self.classes], x[:, -self.classes :]
        patches = _directions(self._project(patches, "patch_projection"))
        tokens = _directions(self._project(tokens, "class_projection"))
        cosines = jnp.einsum("bpw,bcw->bpc", patches, tokens, precision="float32")
        masks = LayerNorm(self.norm_eps, name="mask_norm")(cosines)
        return masks.reshape(batch, height, columns, self.classes)

    def _block(self, width: int, drop_path: float):
        return block_factory(
            heads=self.heads or max(1, width // _TOKEN_HEAD),
            mlp_width=4 * width,
            attention_dropout=self.dropout,
            projection_dropout=self.dropout,
            mlp_dropout=self.dropout,
            drop_path=drop_path,
            norm_eps=self.norm_eps,
            init_scheme="trunc02",
            dtype=self.dtype,
        )

    def _project(self, x: Array, name: str) -> Array:
        width = x.shape[-1]
        init = nn.initializers.normal(width**-0.5)
        return nn.Dense(width, use_bias=False, kernel_init=init, name=name)(x)


class MlpDecoder(Checked):
    """SegFormer's decoder: maps as wide as each other, joined, fused and classified.

    Parameters `inputs_{i}` of the maps, finest first, `fuse/{conv, norm}` and `classifier`. The
    kernel of `fuse` reads the coarsest map first.
    """

    ROLES: ClassVar[Roles] = {
        "inputs_*": kernel_and_bias(Role.LINEAR),
        "fuse": ConvNorm.ROLES,
        "classifier": kernel_and_bias(Role.HEAD),
    }

    classes: Classes
    width: Count = 256
    dropout: Rate = 0.1
    dtype: DtypeName = "float32"

    @nn.compact
    def __call__(self, features: Features, maps: Maps, *, train: bool = False) -> Map:
        joined = []
        for i, x in enumerate(maps):
            x = nn.Dense(
                self.width, kernel_init=torch_linear, dtype=self.dtype, name=f"inputs_{i}"
            )(x)
            joined.append(resize_map(x, maps[0].shape[1:3], BILINEAR))
        x = jnp.concatenate(joined[::-1], axis=-1)
        x = nn.relu(ConvNorm(self.width, dtype=self.dtype, name="fuse")(x, train=train))
        return _classified(x, self.classes, self.dropout, train)


class UperNet(Checked):
    """UPerNet's decoder.

    Parameters, each of a convolution and its norm: `pooled_{k}` of the pooled last map,
    `bottleneck` of those and the map, `lateral_{i}` and `output_{i}` of the other maps, `fuse` of
    all; and `classifier`.
    """

    ROLES: ClassVar[Roles] = {
        "pooled_*": ConvNorm.ROLES,
        "bottleneck": ConvNorm.ROLES,
        "lateral_*": ConvNorm.ROLES,
        "output_*": ConvNorm.ROLES,
        "fuse": ConvNorm.ROLES,
        "classifier": kernel_and_bias(Role.HEAD),
    }

    classes: Classes
    width: Count = 512
    dropout: Rate = 0.1
    dtype: DtypeName = "float32"

    @nn.compact
    def __call__(self, features: Features, maps: Maps, *, train: bool = False) -> Map:
        def layer(x: Map, kernel: int, name: str) -> Map:
            conv = ConvNorm(self.width, kernel, dtype=self.dtype, name=name)
            return nn.relu(conv(x, train=train))

        *finer, last = maps
        pooled = [last]
        for k, side in enumerate(POOLED_SIDES):
            x = layer(pool_to(last, side), 1, f"pooled_{k}")
            pooled.append(resize_map(x, last.shape[1:3], BILINEAR))
        top = layer(jnp.concatenate(pooled, axis=-1), 3, "bottleneck")
        pyramid = [top]
        for i in reversed(range(len(finer))):
            x = layer(finer[i], 1, f"lateral_{i}")
            pyramid.insert(0, x + resize_map(pyramid[0], x.shape[1:3], BILINEAR))
        outputs = [layer(x, 3, f"output_{i}") for i, x in enumerate(pyramid[:-1])]
        size = maps[0].shape[1:3]
        joined = [resize_map(x, size, BILINEAR) for x in (*outputs, top)]
        x = layer(jnp.concatenate(joined, axis=-1), 3, "fuse")
        return _classified(x, self.classes, self.dropout, train)


class AuxiliaryDecoder(Checked):
    """Convolution and classifier of the last map but one, for a second loss in training."""

    ROLES: ClassVar[Roles] = {
        "conv": ConvNorm.ROLES,
        "classifier": kernel_and_bias(Role.HEAD),
    }

    classes: Classes
    width: Count = 256
    dropout: Rate = 0.1
    dtype: DtypeName = "float32"

    @nn.compact
    def __call__(self, features: Features, maps: Maps, *, train: bool = False) -> Map:
        conv = ConvNorm(self.width, 3, dtype=self.dtype, name="conv")
        x = nn.relu(conv(maps[-2], train=train))
        return _classified(x, self.classes, self.dropout, train)


# ------------------------------------------------------------------------------------- on maps


def patches_of(features: Features) -> Map:
    """Return the tokens of patches as a map."""
    tokens = features.tokens[:, features.prefix :]
    return tokens.reshape(tokens.shape[0], *features.grid, tokens.shape[-1])


def pool_to(x: Map, side: int) -> Map:
    """Return the means of `side` x `side` parts, which overlap where they do not divide the map.

    As torch's adaptive average pooling.
    """
    rows, columns = (jnp.asarray(_parts(length, side), x.dtype) for length in x.shape[1:3])
    return jnp.einsum("ph,qw,bhwc->bpqc", rows, columns, x, precision="float32")


def _parts(length: int, parts: int) -> np.ndarray:
    """Return the matrix (parts, length) of the means of parts of a row."""
    starts = np.arange(parts) * length // parts
    ends = -(-(np.arange(parts) + 1) * length // parts)
    places = np.arange(length)
    inside = (places >= starts[:, None]) & (places < ends[:, None])
    return inside / inside.sum(axis=1, keepdims=True)


def _classified(x: Map, classes: int, dropout: float, train: bool) -> Map:
    """Return logits of every place; to be called in a compact method."""
    x = nn.Dropout(dropout)(x, deterministic=not train)
    classifier = nn.Dense(classes, kernel_init=_CLASSIFIER_INIT, name="classifier")
    return classifier(x.astype(jnp.float32))


def _directions(x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
    """Return vectors of length 1."""
    squares = jnp.square(x).sum(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, jnp.finfo(x.dtype).tiny))
