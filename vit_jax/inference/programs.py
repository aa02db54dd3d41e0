"""Cache of classifiers' compiled programs on disk.

Tracing and compiling a model takes seconds, and needs the code of all architectures. A compiled
program is therefore stored, with a key of everything that it depends on.

It is stored in a folder of the user and never in a run folder: it is machine code, and loading a
run of another person must not execute that person's code.

    VIT_JAX_CACHE   another folder than ~/.cache/vit_jax; "none": no cache
"""

import contextlib
import functools
import hashlib
import json
import os
import platform
import stat
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

VARIABLE = "VIT_JAX_CACHE"

_PACKAGE = Path(__file__).parents[1]
# All code that a program depends on.
_CODE = (
    "models/**/*.py",
    "data/images/preprocess.py",
    "inference/classifier.py",
    "inference/predictor.py",
    "inference/programs.py",
)

_folder: Path | None = None


def keep_programs() -> None:
    """Enable the compilation cache: keep compiled programs on disk and reuse those found there.

    It is for commands: a program that imports the package may not want files in the home folder. A
    folder that cannot be written is not used; the results are the same, and the start is slower.
    """
    global _folder
    hints = os.environ.get(VARIABLE, "")
    if hints.lower() == "none":
        return
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = Path(hints or os.path.join(cache, "vit_jax")).expanduser().absolute() / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if _is_mine(folder):
            _folder = folder
    except OSError:
        pass


def program(
    description: Mapping[str, Any],
    make: Callable[[], Callable[..., jax.Array]],
    arguments: tuple[Any, ...],
    may_keep: Callable[[], bool] = lambda: True,
) -> Callable[..., jax.Array]:
    """Return a compiled function of arguments of these shapes, from disk if it is cached.

    Args:
        description: JSON of everything that the function depends on, except the package's own code,
            JAX and the devices, which are added here.
        make: returns the function to compile if it is not cached; the function returns one array.
        arguments: trees of arrays with the shapes and types of the later arguments.
        may_keep: returns whether a new program may be stored.
    """
    if _folder is None:
        return jax.jit(make())
    file = _folder / _key(description, arguments)
    if (kept := _read(file, arguments)) is not None:
        return kept
    function = jax.jit(make())
    if may_keep():
        with _without_jax_cache():
            function = function.lower(*arguments).compile()
        _write(file, function, arguments)
    return function


@contextlib.contextmanager
def _without_jax_cache() -> Iterator[None]:
    """Compile anew: a program from JAX's own compilation cache cannot be serialised again."""
    from jax.experimental.compilation_cache import compilation_cache

    enabled = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX reads the setting only once, at the first program
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        compilation_cache.reset_cache()


def _key(description: Mapping[str, Any], arguments: Any) -> str:
    leaves, _ = jax.tree_util.tree_flatten_with_path(arguments)
    device = jax.devices()[0]
    parts = {
        "what": description,
        "arguments": [(jax.tree_util.keystr(p), x.shape, str(x.dtype)) for p, x in leaves],
        "code": _code_digest(),
        "device": (device.platform, device.device_kind, device.client.platform_version),
        "processor": _processor(),
        "settings": (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision),
        "flags": [os.environ.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


@functools.cache
def _code_digest() -> str:
    """Return a digest of the code that programs depend on: an edit compiles them again."""
    from importlib.metadata import version

    versions = [version(name) for name in ("jax", "jaxlib", "flax")]
    content = hashlib.sha256(" ".join(versions).encode())
    for pattern in _CODE:
        for file in sorted(_PACKAGE.glob(pattern)):
            content.update(file.name.encode() + b"\0" + file.read_bytes())
    return content.hexdigest()


@functools.cache
def _processor() -> str:
    """Return the machine code features of this processor: its disks may be shared with others."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        flags = next(line for line in lines if line.lower().startswith(("flags", "features")))
    except (OSError, StopIteration):
        flags = platform.processor()
    return f"{platform.machine()} {flags}"


def _is_mine(path: Path) -> bool:
    """Return whether only this user can have written to a file or folder."""
    if not hasattr(os, "getuid"):
        return True
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _read(file: Path, arguments: tuple[Any, ...]) -> Callable[..., jax.Array] | None:
    """Return the program in a file; None if it is missing or incomplete."""
    try:
        content = file.read_bytes()
        if not _is_mine(file):
            return None
    except OSError:
        return None
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        return None
    try:
        return _load(body, arguments)
    except Exception:  # XLA raises various types for code that does not fit this machine
        return None


def _load(body: bytes, arguments: tuple[Any, ...]) -> Callable[..., jax.Array]:
    from jax.experimental.serialize_executable import deserialize_and_load

    inputs, output = jax.tree.structure((arguments, {})), jax.tree.structure(0)
    return deserialize_and_load(body, inputs, output, execution_devices=jax.devices()[:1])


def _write(file: Path, compiled: jax.stages.Compiled, arguments: tuple[Any, ...]) -> None:
    """Write a program atomically, if it computes the same after reading it again."""
    from jax.experimental.serialize_executable import serialize

    draft = file.with_suffix(f".{os.getpid()}")
    try:
        body = serialize(compiled)[0]
        # A serialised program may lack some of its machine code.
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), arguments)
        found, expected = _load(body, arguments)(*zeros), compiled(*zeros)
        if not np.array_equal(found, expected, equal_nan=True):
            return
        draft.write_bytes(hashlib.sha256(body).digest() + body)
        draft.chmod(0o600)
        os.replace(draft, file)
    except Exception:  # the disk is full, or programs of this device cannot be serialised
        draft.unlink(missing_ok=True)
