"""Provenance of a run besides its configuration: the command, the time, the libraries."""

import os
import shlex
import sys
from datetime import UTC, datetime

from vit_jax.data.images.decoding import opencv

DATE = "%Y-%m-%d %H:%M UTC"


def process_origin() -> dict[str, str]:
    """Return the `command` of this process, quoted for a shell, and when it `begun`."""
    program, *arguments = sys.orig_argv
    command = shlex.join([os.path.basename(program), *arguments])
    return {"command": command, "begun": datetime.now(UTC).strftime(DATE)}


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that affect results."""
    from importlib.metadata import version

    names = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "pillow")
    decoder = {"opencv": opencv().__version__} if opencv() else {}  # training images depend on it
    return {**{name: version(name) for name in names}, **decoder}
