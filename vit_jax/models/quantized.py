"""Kernels of few bits: whole numbers, and a scale for each output channel.

A `Quantized` takes the place of an array in a tree of parameters. Linen unboxes it where a layer
reads its parameter, so that every model computes with it as it is: the whole numbers stay in memory
and become float32 inside the program. The layers of this package that multiply tokens (`Dense`,
`QueryKeyValue`) may also multiply them as whole numbers, see `Quantized.product`.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from flax.core import meta
from jaxtyping import Array, Float, Int8, Shaped

BITS = (8, 4)
ACTIVATIONS = ("float", "int8")
_SCALE, _SHAPE = "scale", "shape"  # names in a file, beside `int8` or `int4`


@struct.dataclass
class Quantized(meta.AxisMetadata):
    """Kernel of whole numbers, `values * scale`.

    values: int8, in the shape of the kernel, from -(2**(bits - 1) - 1) to 2**(bits - 1) - 1.
    scale: float32, of the same rank, with 1 in place of each contracted axis.
    bits: of the values: 8 or 4.
    activations: "int8" if tokens are rounded to 8 bits as well, where a layer can multiply these.
    """

    values: Int8[Array, "..."]
    scale: Float[Array, "..."]
    bits: int = struct.field(pytree_node=False, default=8)
    activations: str = struct.field(pytree_node=False, default="float")

    @classmethod
    def of(
        cls, kernel: np.ndarray, inputs: tuple[int, ...], bits: int, activations: str = "float"
    ) -> "Quantized":
        """Return a kernel rounded to the nearest multiples of its scales.

        The largest number of each channel gets the largest whole one, so that 0 stays 0.

        Args:
            inputs: the contracted axes. bits, activations: as of the class.
        """
        kernel = np.asarray(kernel, np.float32)
        highest = 2 ** (bits - 1) - 1
        largest = np.abs(kernel).max(axis=inputs, keepdims=True)
        scale = np.where(largest == 0, 1, largest).astype(np.float32) / np.float32(highest)
        with np.errstate(invalid="ignore"):  # the scale of what is not finite is not finite either
            values = np.clip(np.round(kernel / scale), -highest, highest).astype(np.int8)
        return cls(values, scale, bits, activations)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays in memory."""
        return self.values.nbytes + self.scale.nbytes

    def unbox(self) -> Float[Array, "..."]:
        """Return the kernel in float32."""
        return self.values.astype("float32") * self.scale

    def replace_boxed(self, val: Any) -> Any:
        """Return a new value as it is: only `Quantized.of` rounds."""
        return val

    def add_axis(self, index: int, params: dict[Any, Any]) -> "Quantized":
        """Return itself; linen calls it for blocks that are scanned."""
        return self

    def remove_axis(self, index: int, params: dict[Any, Any]) -> "Quantized":
        """Return itself; linen calls it for blocks that are scanned."""
        return self

    def product(
        self, x: Float[Array, "tokens contracted"], contracted: int
    ) -> Float[Array, "tokens features"]:
        """Return the product of rounded tokens with the flat kernel, in float32.

        Each token is scaled by its largest number (dynamic quantization). The products of whole
        numbers are summed exactly, in int32.

        Args:
            contracted: the size of the contracted axes, which come first.
        """
        x = x.astype(jnp.float32)
        largest = jnp.abs(x).max(axis=-1, keepdims=True)
        scale = jnp.where(largest == 0, 1.0, largest) / 127
        tokens = jnp.round(x / scale).astype(jnp.int8)
        sums = jax.lax.dot_general(
            tokens,
            self.values.reshape(contracted, -1),
            (((1,), (0,)), ((), ())),
            preferred_element_type=jnp.int32,
        )
        return sums.astype(jnp.float32) * scale * self.scale.reshape(1, -1)


def is_quantized(node: Any) -> bool:
    """Return whether a node of a tree is a kernel of few bits."""
    return isinstance(node, Quantized)


def dequantized(tree: Any) -> Any:
    """Return a tree with all its kernels in float32."""
    return meta.unbox(tree)


# ----------------------------------------------------------------------------------------- in files


def packed(tree: Any) -> Any:
    """Return a tree with plain arrays in place of its kernels, for a file.

    A kernel becomes `{"int8": values, "scale": scale}`. Two values of 4 bits share a byte, the
    first in its lower half: `{"int4": bytes, "shape": shape, "scale": scale}`.
    """
    return jax.tree.map(
        lambda leaf: _packed(leaf) if is_quantized(leaf) else leaf, tree, is_leaf=is_quantized
    )


def unpacked(tree: Any, activations: str = "float") -> Any:
    """Return the tree of `packed`, whose arrays were read from a file.

    activations: of all its kernels, see `Quantized`.

    Raises ValueError for arrays that do not belong together.
    """
    if not isinstance(tree, Mapping):
        return tree
    if tree.keys() == {"int8", _SCALE}:
        return Quantized(tree["int8"], tree[_SCALE], 8, activations)
    if tree.keys() == {"int4", _SHAPE, _SCALE}:
        shape = tuple(map(int, tree[_SHAPE]))
        return Quantized(_from_nibbles(tree["int4"], shape), tree[_SCALE], 4, activations)
    return {name: unpacked(node, activations) for name, node in tree.items()}


def _packed(kernel: Quantized) -> dict[str, np.ndarray]:
    if kernel.bits == 8:
        return {"int8": kernel.values, _SCALE: kernel.scale}
    shape = np.asarray(kernel.values.shape, np.int32)
    return {"int4": _to_nibbles(kernel.values), _SHAPE: shape, _SCALE: kernel.scale}


def _to_nibbles(values: Int8[np.ndarray, "..."]) -> Shaped[np.ndarray, " bytes"]:
    flat = np.asarray(values).reshape(-1)
    flat = np.append(flat, np.zeros(flat.size % 2, np.int8)).view(np.uint8) & 15
    return flat[::2] | flat[1::2] << 4


def _from_nibbles(
    pairs: Shaped[np.ndarray, " bytes"], shape: tuple[int, ...]
) -> Int8[np.ndarray, "..."]:
    count = math.prod(shape)
    if pairs.size != (count + 1) // 2:
        raise ValueError(f"{pairs.size:,} bytes are not those of {count:,} numbers of 4 bits")
    flat = np.stack([pairs << 4, pairs & 240], axis=-1).reshape(-1)[:count].view(np.int8)
    return (flat >> 4).reshape(shape)
