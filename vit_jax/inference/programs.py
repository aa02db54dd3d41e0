"""Compiled programs of classifiers, kept on disk from one process to the next.

To trace and compile a model takes seconds, and needs the code of all architectures. A program that
was compiled once is therefore kept, and found again by all that it depends on.

It lies in a folder of the person's own and never in a run folder: it is machine code, and to load a
run that somebody else has sent must not run any of his.

    VIT_JAX_CACHE   another folder than ~/.cache/vit_jax; "none": nothing is kept
"""

import functools
import hashlib
import json
import os
import platform
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

VARIABLE = "VIT_JAX_CACHE"

_PACKAGE = Path(__file__).parents[1]
# All the code that a program is made of.
_CODE = ("models/**/*.py", "data/preprocess.py", "deploy/classifier.py", "deploy/programs.py")

_folder: Path | None = None


def keep_programs() -> None:
    """Enable the compilation cache: keep compiled programs on disk and reuse those found there.

    It is for commands: whoever imports the package may not want files in his home folder. A folder
    that cannot be written is not used; the results are the same, and the start is slower.
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
    """Return a compiled function of arguments of these shapes, from disk where it is kept.

    Args:
        description: JSON of all that the function depends on, apart from the package's own code,
            JAX and the devices, which are seen to here.
        make: makes the function, to be compiled where it is not kept; it returns one array.
        arguments: trees of arrays of the shapes and types that it will be called with.
        may_keep: asked where it is not kept yet.
    """
    if _folder is None:
        return jax.jit(make())
    file = _folder / _key(description, arguments)
    if (kept := _read(file, arguments)) is not None:
        return kept
    function = jax.jit(make())
    if may_keep():
        function = function.lower(*arguments).compile()
        _write(file, function, arguments)
    return function


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
    """Return a digest of the code that programs are made of: an edit makes new ones."""
    from importlib.metadata import version

    versions = [version(name) for name in ("jax", "jaxlib", "flax")]
    content = hashlib.sha256(" ".join(versions).encode())
    for pattern in _CODE:
        for file in sorted(_PACKAGE.glob(pattern)):
            content.update(file.name.encode() + b"\0" + file.read_bytes())
    return content.hexdigest()


@functools.cache
def _processor() -> str:
    """Return what machine code this processor can run: it may share its disks with others."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        flags = next(line for line in lines if line.lower().startswith(("flags", "features")))
    except (OSError, StopIteration):
        flags = platform.processor()
    return f"{platform.machine()} {flags}"


def _is_mine(path: Path) -> bool:
    """Return whether nobody else can have written to a file or folder."""
    if not hasattr(os, "getuid"):
        return True
    status = path.stat()
    return status.st_uid == os.getuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _read(file: Path, arguments: tuple[Any, ...]) -> Callable[..., jax.Array] | None:
    """Return the program in a file; None where there is none, or none that is whole."""
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
    except Exception:  # XLA raises nearly anything for code that does not fit this machine
        return None


def _load(body: bytes, arguments: tuple[Any, ...]) -> Callable[..., jax.Array]:
    from jax.experimental.serialize_executable import deserialize_and_load

    inputs, output = jax.tree.structure((arguments, {})), jax.tree.structure(0)
    return deserialize_and_load(body, inputs, output, execution_devices=jax.devices()[:1])


def _write(file: Path, compiled: jax.stages.Compiled, arguments: tuple[Any, ...]) -> None:
    """Write a program that gives the same when it is read again, all of it or nothing."""
    from jax.experimental.serialize_executable import serialize

    draft = file.with_suffix(f".{os.getpid()}")
    try:
        body = serialize(compiled)[0]
        # What JAX has from its own cache of compiled programs may lack its machine code.
        zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), arguments)
        found, expected = _load(body, arguments)(*zeros), compiled(*zeros)
        if not np.array_equal(found, expected, equal_nan=True):
            return
        draft.write_bytes(hashlib.sha256(body).digest() + body)
        draft.chmod(0o600)
        os.replace(draft, file)
    except Exception:  # the disk is full, or the code of this device cannot be kept
        draft.unlink(missing_ok=True)
