"""Names in a torch file, and the tensors and storages that they stand for."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from vit_jax.weights.io.pickles import Builder, Opaque


class Storage(NamedTuple):
    """Storage in a torch file: its key, its dtype and its number of elements."""

    key: str
    dtype: np.dtype
    count: int


@dataclass(frozen=True)
class TorchTensor:
    """Description of a tensor: a window on a storage, in elements."""

    storage: Storage
    dtype: np.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)


def declared_storage(identifier: Any) -> Storage:
    """Return the storage of a persistent identifier; raise ValueError for any other form."""
    match identifier:
        case ("storage", np.dtype() as dtype, str(key), str(), int(count)) if count >= 0:
            return Storage(key, dtype, count)
        case ("storage", np.dtype() as dtype, str(key), str(), int(count), None) if count >= 0:
            return Storage(key, dtype, count)  # the older format; None: no view of another storage
    raise ValueError("a storage is declared in an unknown way")


def _tensor(*arguments: Any) -> TorchTensor:
    match arguments:
        case (Storage() as storage, int(offset), tuple(shape), tuple(strides), *_):
            return TorchTensor(storage, storage.dtype, offset, shape, strides)
    raise ValueError("a tensor is declared in an unknown way")


def _tensor_v3(*arguments: Any) -> TorchTensor:
    """Rebuild a tensor of a dtype without a storage class of its own; the storage counts bytes."""
    match arguments:
        case (Storage() as storage, int(offset), tuple(shape), tuple(strides), _, _, dtype, *_):
            if isinstance(dtype, np.dtype):
                return TorchTensor(storage, dtype, offset, shape, strides)
    raise ValueError("a tensor is declared in an unknown way")


def _parameter(*arguments: Any) -> TorchTensor:
    match arguments:
        case (TorchTensor() as tensor, *_):
            return tensor
    raise ValueError("a parameter is declared in an unknown way")


def _subclass(*arguments: Any) -> Any:
    """Return only the tensor of a tensor subclass or a tensor with attributes."""
    match arguments:
        case (Builder() as builder, _, tuple(inner), *_):
            return builder.build(*inner)
    raise ValueError("a tensor is declared in an unknown way")


def _plain_dict(*arguments: Any) -> dict:
    match arguments:
        case () | ([],):
            return {}
    raise ValueError("a dictionary is declared in an unknown way")


def _shape(*arguments: Any) -> tuple:
    match arguments:
        case (tuple(sides),):
            return sides
    raise ValueError("a shape is declared in an unknown way")


_DTYPES = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "float8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "float8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint64": np.uint64,
    "uint32": np.uint32,
    "uint16": np.uint16,
    "uint8": np.uint8,
    "bool": np.bool_,
    "complex64": np.complex64,
    "complex128": np.complex128,
}


_STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "storage.UntypedStorage": "uint8",
    "UntypedStorage": "uint8",
}


# Values of training beside weights: the arguments of a run, counters, paths. Only their type is
# read.
_OPAQUE = (
    "argparse.Namespace",
    "builtins.set",
    "__builtin__.set",
    "collections.Counter",
    "collections.defaultdict",
    "datetime.datetime",
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.WindowsPath",
    "pathlib._local.PosixPath",  # Python 3.13
    "pathlib._local.WindowsPath",
    "torch.device",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "_codecs.encode",  # bytes in protocol 2
)


def _opaque(kind: str) -> Builder:
    return Builder(kind, lambda *_: Opaque(kind))


NAMES: dict[str, Any] = {
    **{f"torch.{name}": np.dtype(dtype) for name, dtype in _DTYPES.items()},
    **{f"torch.{name}": np.dtype(_DTYPES[dtype]) for name, dtype in _STORAGES.items()},
    **{kind: _opaque(kind) for kind in _OPAQUE},
    "builtins.dict": _opaque("builtins.dict"),  # the type, as an argument of defaultdict
    "builtins.int": _opaque("builtins.int"),
    "torch.Tensor": Opaque("torch.Tensor"),  # the class, as an argument of `_subclass`
    "torch.nn.parameter.Parameter": Opaque("torch.nn.parameter.Parameter"),
    "torch._utils._rebuild_tensor": Builder("tensor", _tensor),
    "torch._utils._rebuild_tensor_v2": Builder("tensor", _tensor),
    "torch._utils._rebuild_tensor_v3": Builder("tensor", _tensor_v3),
    "torch._utils._rebuild_parameter": Builder("parameter", _parameter),
    "torch._utils._rebuild_parameter_with_state": Builder("parameter", _parameter),
    "torch._tensor._rebuild_from_type_v2": Builder("tensor", _subclass),
    "torch.Size": Builder("shape", _shape),
    "collections.OrderedDict": Builder("dictionary", _plain_dict),
}
