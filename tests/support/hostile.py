"""Files that mean harm or are broken, for several tests: made by hand, byte for byte."""

import pickle
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from vit_jax.errors import UserError

MEGABYTE = 2**20


def write_torch_zip(
    path: Path, tree, storages: dict[str, bytes] | None = None, folder: str = "archive", **more
) -> Path:
    """A torch file around a pickle (bytes, or a value to pickle) and the bytes of its storages."""
    description = tree if isinstance(tree, bytes) else pickle_as_torch(tree)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{folder}/data.pkl", description)
        for key, content in (storages or {}).items():
            archive.writestr(f"{folder}/data/{key}", content)
        for name, content in more.items():
            archive.writestr(f"{folder}/{name}", content)
    return path


def float_tensor(key: str, count, offset, shape, strides) -> "Call":
    """A tensor of float32 as torch pickles it, with whatever numbers."""
    storage = Storage("FloatStorage", key, count)
    return Call("torch._utils _rebuild_tensor_v2", (storage, offset, shape, strides, False, {}))


class Call:
    """In a pickle, the result of calling a global: `Call("os system", ("ls",))`."""

    def __init__(self, name: str, arguments: tuple):
        self.name = name
        self.arguments = arguments


class Storage:
    """In a pickle, a storage of torch."""

    def __init__(self, kind: str, key: str, count):
        self.identifier = ("storage", Name(f"torch {kind}"), key, "cpu", count)


class Name:
    """In a pickle, a global that is not called."""

    def __init__(self, name: str):
        self.name = name


def pickle_as_torch(value) -> bytes:
    """A pickle of protocol 2, written without the objects that its globals are names of."""
    return b"\x80\x02" + _instructions(value) + b"."


def _instructions(value) -> bytes:
    match value:
        case Name():
            module, name = value.name.split(" ")
            return f"c{module}\n{name}\n".encode()
        case Call():
            return _instructions(Name(value.name)) + _instructions(value.arguments) + b"R"
        case Storage():
            return _instructions(value.identifier) + b"Q"
        case dict():
            items = b"".join(
                _instructions(key) + _instructions(item) for key, item in value.items()
            )
            return b"}(" + items + b"u"
        case tuple():
            return b"(" + b"".join(map(_instructions, value)) + b"t"
        case list():
            return b"](" + b"".join(map(_instructions, value)) + b"e"
    return pickle.dumps(value, protocol=2)[2:-1].split(b"q\x00")[0]


def outcome(read: Callable[[Path], dict], path: Path) -> dict | None:
    """What reading gives, None where it is refused; fails where it takes more than 100 MB."""
    tracemalloc.start()
    try:
        return read(path)
    except UserError as error:
        assert len(str(error)) < 2000
        assert path.name in str(error)
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100 * MEGABYTE


def broken_copies(path: Path, folder: Path, flips: int = 150):
    """Copies of a file cut off at many points, and copies with one bit turned."""
    content = path.read_bytes()
    copy = folder / "broken"
    for length in range(0, len(content), max(1, len(content) // 80)):
        copy.write_bytes(content[:length])
        yield copy
    random = np.random.default_rng(0)
    for place in random.integers(8 * len(content), size=flips):
        turned = bytearray(content)
        turned[place // 8] ^= 1 << (place % 8)
        copy.write_bytes(turned)
        yield copy


def equal(first: dict[str, np.ndarray], second: dict[str, np.ndarray]) -> bool:
    """Whether two sets of tensors are the same in names, dtypes, shapes and bits."""
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and first[name].tobytes() == second[name].tobytes()
        for name in first
    )
