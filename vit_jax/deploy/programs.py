"""Programs of classifiers, kept on disk from one process to the next.

To trace a model takes a second or more, and needs the code of all architectures. So a program that
was traced once is kept as StableHLO (`jax.export`), and what XLA compiles of it in JAX's own cache.

Both lie in a folder of the person's own and never in a run folder: they are code, and to load a run
that somebody else has sent must not run any of his.

    VIT_JAX_CACHE   another folder than ~/.cache/vit_jax; "none": nothing is kept
"""

import functools
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
from jax import export

VARIABLE = "VIT_JAX_CACHE"

_PACKAGE = Path(__file__).parents[1]
# All the code that a program is traced from.
_CODE = ("models/**/*.py", "data/preprocess.py", "deploy/classifier.py", "deploy/programs.py")

_folder: Path | None = None


def keep_programs() -> None:
    """From here on, keep programs on disk and use those that are there.

    It changes settings of JAX for the whole process, so it is for commands and not for libraries. A
    folder that the person has given to JAX (`JAX_COMPILATION_CACHE_DIR`) is used for all of it. One
    that cannot be written is not: the results are the same, and the start is slower.
    """
    global _folder
    given, asked = jax.config.jax_compilation_cache_dir, os.environ.get(VARIABLE, "")
    if asked.lower() == "none":
        return
    if given:
        folder = Path(given)
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = Path(asked or os.path.join(cache, "vit_jax")).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return
    _folder = folder / "programs"
    if not given:
        # Machine code of one processor may be none of another that shares the home folder.
        compiled = folder / f"compiled-{_processor()}"
        jax.config.update("jax_compilation_cache_dir", os.fspath(compiled))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


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
        make: makes the function, to be traced where it is not kept.
        arguments: trees of arrays of the shapes and types that it will be called with.
        may_keep: asked where it is not kept yet.
    """
    if _folder is None:
        return jax.jit(make())
    file = _folder / f"{_key(description, arguments)}.stablehlo"
    kept = _read(file)
    if kept is None:
        function = jax.jit(make())
        if not may_keep():
            return function
        try:
            kept = export.export(function)(*arguments)
            _write(file, kept.serialize())
        # A program that JAX does not promise to read again, or a full disk: nothing is kept.
        except (ValueError, NotImplementedError, OSError):
            return function
    return jax.jit(kept.call)


def _key(description: Mapping[str, Any], arguments: Any) -> str:
    leaves, _ = jax.tree_util.tree_flatten_with_path(arguments)
    device = jax.devices()[0]
    parts = {
        "what": description,
        "arguments": [(jax.tree_util.keystr(p), x.shape, str(x.dtype)) for p, x in leaves],
        "code": _code_digest(),
        "jax": jax.__version__,
        "device": (device.platform, device.device_kind),
        "settings": (jax.config.jax_enable_x64, jax.config.jax_default_matmul_precision),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


@functools.cache
def _code_digest() -> str:
    """Return a digest of the code that programs are traced from: an edit makes new ones."""
    from importlib.metadata import version  # what linen makes of a model is code as well

    content = hashlib.sha256(version("flax").encode())
    for pattern in _CODE:
        for file in sorted(_PACKAGE.glob(pattern)):
            content.update(file.name.encode() + b"\0" + file.read_bytes())
    return content.hexdigest()


def _processor() -> str:
    """Return a short name for what machine code this processor can run."""
    kind = platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        kind += next(line for line in lines if line.lower().startswith(("flags", "features")))
    except (OSError, StopIteration):
        pass
    return hashlib.sha256(kind.encode()).hexdigest()[:8]


def _read(file: Path) -> export.Exported | None:
    """Return the program in a file; None where there is none, or none that is whole."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        return None
    try:
        return export.deserialize(bytearray(body))
    except Exception:  # whatever a reader of flat buffers says of a form that it does not know
        return None


def _write(file: Path, body: bytes | bytearray) -> None:
    """Write all or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_bytes(hashlib.sha256(body).digest() + body)
    os.replace(draft, file)
