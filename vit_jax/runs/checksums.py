"""Checksums of arrays and of small JSON records, for the detection of damage on a disk.

The checksum of an array is a sum over its elements, so it does not depend on the sharding over
devices and processes: each process sums its own pieces. A CRC, which depends on the order of all
bytes, could not be compared after a change of the mesh.
"""

import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MODULUS = 2**64

_BLOCK = 2**16  # elements at a time: their 64-bit copies fit in the processor's cache
_COUNT = np.arange(_BLOCK, dtype=np.uint64)
_SEAL = "crc32"


def checksum(
    piece: np.ndarray, start: Sequence[int] = (), shape: Sequence[int] | None = None
) -> int:
    """Return the checksum of an array, or the share of a rectangular piece.

    It is the sum of bits * (2 * index + 1) modulo 2**64 over the elements, where the bits of an
    element are read as an integer, and its index counts from 0 in the flattened array. The factors
    are odd, so damage to any single bit changes the sum, and damage to any two bits changes it in
    arrays of less than 2**31 elements.

    Args:
        piece: elements of 1, 2, 4 or 8 bytes.
        start: index of the piece's first element in the array; by default the piece is the array.
        shape: shape of the array.
    """
    piece = np.asarray(piece)
    shape = list(piece.shape if shape is None else shape)
    start = list(start or [0] * len(shape))
    bits = piece.view(f"u{piece.dtype.itemsize}")
    while bits.ndim > 1 and bits.shape[-1] == shape[-1]:  # merge axes that are not sharded
        bits = bits.reshape(*bits.shape[:-2], -1)
        width = shape.pop()
        shape[-1] *= width
        start.pop()
        start[-1] *= width
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    return _sum(bits, start, strides) % MODULUS


def _sum(bits: np.ndarray, start: list[int], strides: list[int]) -> int:
    """Return the sum over a piece, computed in blocks."""
    if bits.size > _BLOCK:
        axis = next(axis for axis, size in enumerate(bits.shape) if size > 1)
        half = bits.shape[axis] // 2
        first, second = np.split(bits, [half], axis)
        moved = [place + half * (number == axis) for number, place in enumerate(start)]
        return _sum(first, start, strides) + _sum(second, moved, strides)
    plain = bits.astype(np.uint64)[np.newaxis]  # keep an axis: arrays wrap around without a warning
    weighted = np.zeros_like(plain)
    for axis in reversed(range(bits.ndim)):
        total = plain.sum(-1)
        placed = plain @ _COUNT[: bits.shape[axis]] + total * np.uint64(start[axis])
        weighted = weighted.sum(-1) + placed * np.uint64(strides[axis])
        plain = total
    return 2 * int(weighted[0]) + int(plain[0])


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its checksum, as read back from JSON."""
    record = json.loads(json.dumps(record))
    return {**record, _SEAL: _crc32(record)}


def unsealed(record: Any) -> dict[str, Any]:
    """Return the record inside the result of `sealed`.

    Raises ValueError if its content was changed, or if it has no checksum.
    """
    if not isinstance(record, dict) or _SEAL not in record:
        raise ValueError("it has no checksum")
    content = {name: value for name, value in record.items() if name != _SEAL}
    if record[_SEAL] != _crc32(content):
        raise ValueError("its content does not match its checksum")
    return content


def _crc32(record: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())
