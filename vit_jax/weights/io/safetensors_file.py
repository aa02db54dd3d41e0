"""Reading and writing of `.safetensors`: a JSON header with names and shapes, then the numbers.

The format has no checksum. All properties of the header are checked here, so that messages can name
the tensor; the format's own library reads and writes.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

from vit_jax.errors import UserError
from vit_jax.weights.io.safety import (
    MAX_HEADER_BYTES,
    byte_count,
    check_names,
    parse_json_object,
    refuse_damage,
    show,
)
from vit_jax.weights.io.whole import written_whole

DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "C64": np.complex64,
}
_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Read tensors by name, in the order of the header.

    Raises:
      UserError: the header is damaged, or does not fit the size of the file.
    """
    header = _read_header(path)
    with refuse_damage(path):
        try:
            with safetensors.safe_open(path, framework="np") as file:
                return {name: file.get_tensor(name) for name in header}
        except safetensors.SafetensorError as error:
            raise ValueError(str(error)) from error


def write_safetensors(
    path: str | os.PathLike, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write tensors atomically: a crash leaves the previous file.

    Args:
      path: of the file; an existing file is replaced.
      tensors: arrays by name, of a dtype in `DTYPES`, in any memory order.
      metadata: additional strings; transformers needs {"format": "pt"}.

    Raises:
      UserError: the format does not support a dtype, or the file cannot be written.
    """
    arrays = {}
    for name, tensor in tensors.items():
        array = np.asarray(tensor)
        native = array.dtype.newbyteorder("=")
        if native not in _NAMES:
            raise UserError(
                f"{show(name)} has the dtype {array.dtype}; .safetensors supports"
                f" {', '.join(map(str, _NAMES))}"
            )
        arrays[name] = np.require(array, native, "C")
    with written_whole(path) as draft:
        safetensors.numpy.save_file(arrays, draft, dict(metadata))


def _read_header(path: Path) -> dict[str, dict[str, Any]]:
    """Return names, dtypes and offsets of the tensors, checked against the size of the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise UserError(
                f"{path} has {size} bytes and declares a header of {length} (at most"
                f" {MAX_HEADER_BYTES} are read); it is damaged or truncated: download it again"
            )
        header = parse_json_object(path, file.read(length))
    header.pop("__metadata__", None)
    check_names(path, header)
    end = 0
    for name, entry in header.items():
        stop = _check_entry(path, name, entry)
        if stop > size - 8 - length:
            raise UserError(
                f"{path}: {show(name)} ends at byte {stop} of the {size - 8 - length} in the"
                " file; it is truncated: download it again"
            )
        end = max(end, stop)
    if 8 + length + end != size:
        raise UserError(
            f"{path} has {size} bytes, but its tensors end after {8 + length + end}; it is damaged:"
            " download it again"
        )
    return header


def _check_entry(path: Path, name: str, entry: Any) -> int:
    """End of the tensor in bytes, counted from the end of the header."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(start), int(stop)]}:
            pass
        case _:
            raise UserError(
                f"{path}: {show(name)} is declared as {show(entry)}, without dtype, shape and"
                " data_offsets; the file is damaged: download it again"
            )
    if dtype not in DTYPES:
        raise UserError(
            f"{path}: {show(name)} has the dtype {show(dtype)}; use one of {', '.join(DTYPES)}"
        )
    declared = byte_count(path, name, tuple(shape), np.dtype(DTYPES[dtype]).itemsize)
    if start < 0 or stop - start != declared:
        raise UserError(
            f"{path}: {show(name)} declares the shape {tuple(shape)} of {dtype}, {declared} bytes,"
            f" but has {show(stop - start)} (from {show(start)} to {show(stop)}); the file is"
            " damaged: download it again"
        )
    return stop
