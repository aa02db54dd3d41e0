"""Make each mistake of `table.py` in a copy of the tree, and see whether the nearest tests notice.

    python -m tests.mutations.run
    python -m tests.mutations.run --only late-warm-up --only exif-ignored

Prints a line for each, and fails where a mistake survives. Tests that fail anyway
notice everything, so run them first.
"""

import argparse
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.folders import ROOT
from tests.mutations.table import MUTATIONS, Mutation

SECONDS = 600


def copy_tree(target: Path) -> None:
    """Copy every file that git knows or would add, as it is now."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def mutated(source: str, mutation: Mutation) -> str:
    """Return the text of a file with the mistake in it.

    Raises ValueError where the line is not there, or not once.
    """
    count = source.count(mutation.old)
    if count != 1:
        raise ValueError(f"{mutation.name}: {mutation.old!r} is {count} times in {mutation.file}")
    return source.replace(mutation.old, mutation.new)


def fails(tree: Path, tests: str) -> bool:
    """Return whether any of some tests fails in a tree.

    Raises RuntimeError where they could not be run, and TimeoutExpired where they do not end.
    """
    arguments = [
        f"tests/{word}" if word.partition("::")[0].endswith(".py") else word
        for word in shlex.split(tests)
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    command += ["--any-duration", *arguments]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode > 1:
        raise RuntimeError(f"{shlex.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode == 1


def is_caught(mutation: Mutation, tree: Path) -> bool:
    """Return whether the nearest tests notice a mistake, which is in the tree meanwhile."""
    file = tree / "vit_jax" / mutation.file
    source = file.read_text()
    file.write_text(mutated(source, mutation))
    try:
        return fails(tree, mutation.tests)
    finally:
        file.write_text(source)


def survivors(mutations: Sequence[Mutation] = MUTATIONS) -> list[str]:
    """Return the names of the mistakes that no test notices; print a line for each mistake."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_tree(tree)
        for mutation in mutations:
            begun = time.perf_counter()
            caught = is_caught(mutation, tree)
            seconds = time.perf_counter() - begun
            verdict = "caught  " if caught else "SURVIVED"
            print(f"{verdict} {seconds:5.1f} s  {mutation.name}: {mutation.breaks}", flush=True)
            if not caught:
                found.append(mutation.name)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; 1 says that a mistake survives."""
    names = [mutation.name for mutation in MUTATIONS]
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.run")
    parser.add_argument("--only", metavar="NAME", action="append", choices=names, default=[])
    only = parser.parse_args(arguments).only
    return 1 if survivors([m for m in MUTATIONS if not only or m.name in only]) else 0


if __name__ == "__main__":
    sys.exit(main())
