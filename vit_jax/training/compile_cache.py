"""Compiled programs are kept on disk, so that a run that goes on does not compile them again."""

import os
import sys
import tempfile
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh


def use_compile_cache(where: str, workdir: Path) -> None:
    """Makes JAX keep what takes it more than a second to compile.

    A folder that the person has given to JAX itself (`JAX_COMPILATION_CACHE_DIR`) stays. One that
    cannot be written is warned of and not used: the run is the same, its start slower.

    Args:
        where: "auto" is `.jax_cache` beside the run folder, for all runs there; "none" is none;
            else a folder.
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
            f"warning: compiled programs are not kept, since {folder} cannot be written "
            f"({error.strerror}); name another folder with --config.compile_cache",
            file=sys.stderr,
        )
        return
    jax.config.update("jax_compilation_cache_dir", os.fspath(folder))


def compile_anew_where_unsafe(mesh: Mesh) -> None:
    """Makes JAX neither keep programs nor read kept ones, if the mesh has several CPU devices.

    A program for the CPU that is read from the disk has lost the order of its collectives: the
    devices enter them in different order and wait for each other until XLA ends the process (JAX
    0.10 to 0.12). Whoever gave JAX the folder, it is not used in this process any more.
    """
    if mesh.size > 1 and mesh.devices.flat[0].platform == "cpu":
        jax.config.update("jax_enable_compilation_cache", False)
        compilation_cache.reset_cache()  # JAX asks for the setting once, at the first program
