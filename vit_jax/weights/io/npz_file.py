"""Reading and writing of numpy's `.npz`, the format of Google's checkpoints, without unpickling.

A `.npz` is a zip archive of `.npy` files. The header of each has dtype and shape; it is compared
with the size of the member before any allocation, and zip's checksums are checked.
"""

import io
import os
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights.io.archive import Archive
from vit_jax.weights.io.safety import (
    byte_count,
    check_names,
    check_total,
    refuse_damage,
    refuse_duplicates,
    show,
)
from vit_jax.weights.io.whole import written_whole


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """Read arrays by their names, such as "Transformer/encoder_norm/scale".

    Arrays may be read-only. bfloat16, which numpy stores as raw bytes, is restored.

    Raises:
      UserError: the file is damaged, has Python objects, or declares more bytes than it has.
    """
    with Archive(path) as archive:
        check_names(path, archive.sizes)
        refuse_duplicates(path, [member.removesuffix(".npy") for member in archive.sizes])
        check_total(path, sum(archive.sizes.values()))
        return {
            member.removesuffix(".npy"): _read_member(archive, member) for member in archive.sizes
        }


def write_npz(path: str | os.PathLike, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by their names, which may have slashes; a crash leaves the previous file.

    Raises:
      UserError: the file cannot be written.
    """
    with written_whole(path) as draft, draft.open("wb") as file:
        np.savez(file, **arrays)


def _read_member(archive: Archive, member: str) -> np.ndarray:
    path, name = archive.path, member.removesuffix(".npy")
    stored = archive.read(member)
    shape, fortran, dtype, start = _read_header(path, stored)
    if dtype.hasobject:
        raise UserError(
            f"{path}: {show(name)} has Python objects and not numbers, which are not read because"
            " they can run code; save it again as a plain array"
        )
    odd = dtype.itemsize == 0 or dtype.names or dtype.subdtype
    if odd or (dtype.kind == "V" and dtype.itemsize != 2):
        raise UserError(f"{path}: {show(name)} has the dtype {dtype}, which no weights have")
    declared = byte_count(path, name, shape, dtype.itemsize)
    held = len(stored) - start
    if declared != held:
        raise UserError(
            f"{path}: {show(name)} declares the shape {show(shape)} of {dtype}, {declared} bytes,"
            f" but the file has {held}; the file is damaged: download it again"
        )
    if dtype.kind == "V":
        dtype = np.dtype(ml_dtypes.bfloat16)
    array = np.frombuffer(stored, dtype, offset=start).reshape(shape, order="F" if fortran else "C")
    native = dtype.newbyteorder("=")
    return np.ascontiguousarray(array, native).reshape(shape)  # 0-d would become 1-d


def _read_header(path: Path, stored: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Return shape, whether the order is Fortran's, dtype, and the offset of the numbers."""
    file = io.BytesIO(stored)
    with refuse_damage(path):
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            header = np.lib.format.read_array_header_1_0(file)
        else:
            header = np.lib.format.read_array_header_2_0(file)
    return *header, file.tell()
