"""Writing of files of `torch.save` without torch: a dictionary of float32 tensors by name.

The file is a zip archive without compression, as `torch_file` describes it. Each tensor has a
storage of its own. `torch.load(path, weights_only=True)` opens it.

Source: torch 2.13, `serialization.py` and `_utils.py`, by reading its files; the opcodes are those
of Python's module `pickle`, protocol 2.
"""

import os
import pickle
import struct
import zipfile
from collections.abc import Iterator, Mapping

import numpy as np

from vit_jax.weights.io.whole import written_whole

_FOLDER = "archive"


def write_torch(path: str | os.PathLike, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors by name as float32; a crash leaves the previous file.

    Raises:
      UserError: the file cannot be written.
    """
    arrays = {name: np.asarray(x, dtype="<f4", order="C") for name, x in tensors.items()}
    with written_whole(path) as draft, zipfile.ZipFile(draft, "w") as archive:
        archive.writestr(f"{_FOLDER}/data.pkl", b"".join(_pickled(arrays)))
        archive.writestr(f"{_FOLDER}/byteorder", "little")
        for key, array in enumerate(arrays.values()):
            archive.writestr(f"{_FOLDER}/data/{key}", array.tobytes())
        archive.writestr(f"{_FOLDER}/version", "3\n")


def _pickled(arrays: Mapping[str, np.ndarray]) -> Iterator[bytes]:
    """Yield the pickle of an ordered dictionary of tensors, in parts."""
    yield pickle.PROTO + b"\x02" + _EMPTY_DICTIONARY + pickle.MARK
    for key, (name, array) in enumerate(arrays.items()):
        yield _text(name)
        yield _global("torch._utils", "_rebuild_tensor_v2") + pickle.MARK
        storage = (_text("storage"), _global("torch", "FloatStorage"), _text(str(key)))
        yield _tuple(*storage, _text("cpu"), _whole(array.size)) + pickle.BINPERSID
        strides = [stride // array.itemsize for stride in array.strides]
        yield _whole(0) + _tuple(*map(_whole, array.shape)) + _tuple(*map(_whole, strides))
        yield pickle.NEWFALSE + _EMPTY_DICTIONARY + pickle.TUPLE + pickle.REDUCE
    yield pickle.SETITEMS + pickle.STOP


def _global(module: str, name: str) -> bytes:
    return pickle.GLOBAL + f"{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    encoded = text.encode()
    return pickle.BINUNICODE + struct.pack("<I", len(encoded)) + encoded


def _whole(number: int) -> bytes:
    if number < 2**31:
        return pickle.BININT + struct.pack("<i", number)
    return pickle.LONG1 + bytes([8]) + number.to_bytes(8, "little", signed=True)


def _tuple(*items: bytes) -> bytes:
    return pickle.MARK + b"".join(items) + pickle.TUPLE


_EMPTY_DICTIONARY = _global("collections", "OrderedDict") + pickle.EMPTY_TUPLE + pickle.REDUCE
