"""Persistent compilation cache, so that a resumed run does not compile its programs again."""

import os
import sys
import tempfile
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh


def use_compile_cache(where: str, workdir: Path) -> None:
    """Make JAX cache every program that takes it more than a second to compile.

    A folder set for JAX itself (`JAX_COMPILATION_CACHE_DIR`) takes precedence. A folder that cannot
    be written is not used, with a warning: the run is the same, only its start is slower.

    Args:
        where: "auto" is `.jax_cache` beside the run folder, shared by all runs there; "none"
            disables the cache; anything else is a folder.
        workdir: the run folder.
    """
    if where == "none" or jax.config.jax_compilation_cache_dir:
        return
    beside = Path(workdir).expanduser().resolve().parent / ".jax_cache"
    folder = beside if where == "auto" else Path(where).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        print(
            f"warning: compiled programs are not cached, since {folder} cannot be written "
            f"({error.strerror}); set another folder with --config.compile_cache",
            file=sys.stderr,
        )
        return
    jax.config.update("jax_compilation_cache_dir", os.fspath(folder))


def compile_anew_where_unsafe(mesh: Mesh) -> None:
    """Disable the compilation cache if the mesh has several CPU devices.

    A CPU program that is read from the cache has lost the order of its collectives: the devices
    enter them in different order and wait for each other until XLA aborts the process (JAX 0.10 to
    0.12). The cache is not used in this process any more, even if its folder was set for JAX.
    """
    if mesh.size > 1 and mesh.devices.flat[0].platform == "cpu":
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX reads the setting only once, at the first program
