"""Reading of files of `torch.save` without torch and without executing anything in the file.

Two formats are in use. Since torch 1.6 (2020) a file is a zip archive without compression:
`NAME/data.pkl` describes the tensors, `NAME/data/KEY` are the bytes of their storages. Before, it
was five consecutive pickles followed by the storages. In both, a tensor is a window on a storage:
an offset, a shape and strides, in elements; several tensors may share one storage.

The zip format has checksums, which are checked; the older one has none.

A TorchScript program, as OpenAI publishes CLIP, is a zip archive of the same kind with the code of
its modules beside it. Its `data.pkl` is the outermost module; the code is not read.
"""

import collections
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights.io.archive import Archive
from vit_jax.weights.io.pickles import REMEDY, read_pickle
from vit_jax.weights.io.safety import (
    MAX_HEADER_BYTES,
    byte_count,
    check_names,
    check_total,
    refuse_damage,
    refuse_duplicates,
    show,
)
from vit_jax.weights.io.torch_names import NAMES, Storage, TorchTensor, declared_storage
from vit_jax.weights.io.torch_programs import PROGRAM_NAMES, tensors_of_module

LEGACY_MAGIC = 0x1950A86A20F9469CFC6C  # torch.serialization.MAGIC_NUMBER


# Selects the tensors to read from the pickled value of a file.
Choose = Callable[[Any], dict[str, TorchTensor]]


def read_torch_zip(path: Path, choose: Choose) -> dict[str, np.ndarray]:
    """Read the chosen tensors of a file of torch 1.6 or later.

    Args:
      path: of the file.
      choose: from the pickled value, with a `TorchTensor` for each tensor, to the tensors to read.

    Raises:
      UserError: the file is damaged, needs code to run, or declares more bytes than it has.
    """
    with Archive(path) as archive:
        folder = _check_members(archive)
        swapped = _is_big_endian(archive, folder + "byteorder")
        description = io.BytesIO(archive.read(folder + "data.pkl"))
        if _is_program(archive):
            module = read_pickle(description, path, PROGRAM_NAMES, declared_storage)
            tensors = choose(tensors_of_module(path, module))
        else:
            tensors = choose(read_pickle(description, path, NAMES, declared_storage))
        prefix = folder + "data/"
        sizes = {
            name.removeprefix(prefix): size
            for name, size in archive.sizes.items()
            if name.startswith(prefix)
        }
        return _read_windows(path, tensors, sizes, lambda key: archive.read(prefix + key), swapped)


def read_torch_legacy(path: Path, choose: Choose) -> dict[str, np.ndarray]:
    """Read the chosen tensors of a file of torch before 1.6. See `read_torch_zip`."""
    storages: dict[str, Storage] = {}

    def keep_storage(identifier: Any) -> Storage:
        storage = declared_storage(identifier)
        known = storages.setdefault(storage.key, storage)
        if known != storage:
            raise ValueError(f"storage {storage.key!r} has two different declarations")
        return storage

    with path.open("rb") as file:
        description = io.BytesIO(file.read(MAX_HEADER_BYTES))
        if read_pickle(description, path, {}) != LEGACY_MAGIC:
            raise UserError(f"{path} is a pickle, but not one of torch; {REMEDY}")
        read_pickle(description, path, {})  # the version of the format, always 1001
        system = read_pickle(description, path, {})
        if not (isinstance(system, dict) and system.get("little_endian") is True):
            raise UserError(f"{path} was not written by a little-endian machine; {REMEDY}")
        tensors = choose(read_pickle(description, path, NAMES, keep_storage))
        keys = read_pickle(description, path, {})
        file.seek(description.tell())
        with refuse_damage(path):
            places = _find_storages(path, file, keys, storages)
        sizes = {key: length for key, (_, length) in places.items()}

        def read_storage(key: str) -> bytes:
            start, length = places[key]
            file.seek(start)
            return file.read(length)

        return _read_windows(path, tensors, sizes, read_storage, swapped=False)


def _check_members(archive: Archive) -> str:
    """Return the folder of `data.pkl` in the archive, such as "archive/"."""
    path = archive.path
    is_program = _is_program(archive)
    for name, size in archive.sizes.items():
        is_code = is_program and "/code/" in name
        if archive.is_compressed(name) and not is_code:
            raise UserError(
                f"{path}: its member {show(name)} is compressed, which torch never does; {REMEDY}"
            )
        if name.endswith(("data.pkl", "byteorder")) and size > MAX_HEADER_BYTES:
            raise UserError(
                f"{path}: its member {show(name)} has {size} bytes; at most {MAX_HEADER_BYTES} are"
                f" read; {REMEDY}"
            )
    pickles = [name for name in archive.sizes if name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise UserError(f"{path} must have one data.pkl, but has {len(pickles)}; {REMEDY}")
    return pickles[0].removesuffix("data.pkl")


def _is_program(archive: Archive) -> bool:
    """Return whether the archive is a TorchScript program."""
    return any(name.endswith("/constants.pkl") for name in archive.sizes)


def _is_big_endian(archive: Archive, name: str) -> bool:
    """Return whether the bytes are big-endian; files of torch before 2.1 do not specify it."""
    if name not in archive.sizes:
        return False
    order = archive.read(name)
    if order not in (b"little", b"big"):
        raise UserError(
            f"{archive.path} has the byte order {show(order)}; it must be 'little' or 'big'"
        )
    return order == b"big"


def _find_storages(
    path: Path, file: BinaryIO, keys: Any, storages: dict[str, Storage]
) -> dict[str, tuple[int, int]]:
    """Return the offset and the number of bytes of each storage.

    Each storage is its number of elements, 8 bytes, and then the elements.
    """
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("its list of storages is missing")
    refuse_duplicates(path, keys)
    size = path.stat().st_size
    places = {}
    for key in keys:
        if key not in storages:
            raise ValueError(f"storage {key!r} belongs to no tensor")
        declared = int.from_bytes(file.read(8), "little")
        if declared != storages[key].count:
            raise ValueError(
                f"storage {key!r} has {declared} elements, but {storages[key].count} are declared"
            )
        length = declared * storages[key].dtype.itemsize
        start = file.tell()
        if start + length > size:
            raise ValueError(
                f"storage {key!r} needs {length} bytes, the file ends after {max(size - start, 0)}"
            )
        places[key] = (start, length)
        file.seek(start + length)
    return places


def _read_windows(
    path: Path,
    tensors: dict[str, TorchTensor],
    sizes: dict[str, int],
    read_storage: Callable[[str], bytes],
    swapped: bool,
) -> dict[str, np.ndarray]:
    """Read the tensors' elements. `sizes` has the number of bytes of each storage in the file."""
    check_names(path, tensors)
    for name, tensor in tensors.items():
        _check_storage(path, name, tensor.storage, sizes.get(tensor.storage.key))
        _check_window(path, name, tensor)
    check_total(path, sum(_size(path, name, tensor) for name, tensor in tensors.items()))
    waiting = collections.Counter(tensor.storage.key for tensor in tensors.values())
    held: dict[str, bytes] = {}
    arrays = {}
    for name, tensor in tensors.items():
        key = tensor.storage.key
        if key not in held:
            held[key] = read_storage(key)
        arrays[name] = _window(held[key], tensor, swapped)
        waiting[key] -= 1
        if not waiting[key]:  # free the storage after its last tensor
            del held[key]
    return arrays


def _check_storage(path: Path, name: str, storage: Storage, held: int | None) -> None:
    declared = storage.count * storage.dtype.itemsize
    if held is None:
        raise UserError(
            f"{path}: the storage {show(storage.key)} of {show(name)} is missing; the file is"
            " damaged: download it again"
        )
    if held != declared:
        raise UserError(
            f"{path}: the storage {show(storage.key)} of {show(name)} declares {declared} bytes,"
            f" but the file has {held}; the file is damaged: download it again"
        )


def _check_window(path: Path, name: str, tensor: TorchTensor) -> None:
    size = _size(path, name, tensor)
    shape, strides = tensor.shape, tensor.strides
    valid = len(shape) == len(strides) and all(
        type(stride) is int and stride >= 0 for stride in strides
    )
    if not valid:
        raise UserError(
            f"{path}: {show(name)} of shape {show(shape)} has the strides {show(strides)}, which no"
            " tensor can have; the file is damaged or hostile"
        )
    steps = ((side - 1) * stride for side, stride in zip(shape, strides, strict=True))
    end = tensor.offset + (1 + sum(steps) if size else 0)
    held = tensor.storage.count * tensor.storage.dtype.itemsize // tensor.dtype.itemsize
    if tensor.offset < 0 or end > held:
        raise UserError(
            f"{path}: {show(name)} of shape {show(shape)}, strides {show(strides)} and offset"
            f" {show(tensor.offset)} ends at element {show(end)} of a storage of {held}; the"
            " file is damaged or hostile"
        )


def _size(path: Path, name: str, tensor: TorchTensor) -> int:
    return byte_count(path, name, tensor.shape, tensor.dtype.itemsize)


def _window(stored: bytes, tensor: TorchTensor, swapped: bool) -> np.ndarray:
    """Return the elements of a tensor and access no others, since many may share one storage."""
    dtype, shape = tensor.dtype, tensor.shape
    item = dtype.itemsize
    raw = np.frombuffer(stored, np.uint8)[tensor.offset * item :]
    # With at most one element, a stride may be any number.
    steps = zip(shape, tensor.strides, strict=True)
    strides = [stride * item if side > 1 and 0 not in shape else 0 for side, stride in steps]
    if swapped:  # swap bytes, as numpy's bfloat16 has no byte order; complex numbers are two parts
        unit = item // (2 if dtype.kind == "c" else 1)
        numbers = np.lib.stride_tricks.as_strided(
            raw, (*shape, item // unit, unit), (*strides, unit, 1), writeable=False
        )
        return np.ascontiguousarray(numbers[..., ::-1]).reshape(-1).view(dtype).reshape(shape)
    elements = raw[: len(raw) // item * item].view(dtype)
    view = np.lib.stride_tricks.as_strided(elements, shape, strides, writeable=False)
    whole = view.flags.c_contiguous and view.nbytes == len(stored)
    return view if whole else view.copy(order="C")
