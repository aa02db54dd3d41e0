"""The parameter tree of every registered model: paths, shapes and types, as they were agreed on.

    python -m tests.goldens.trees write         keeps the trees of now in trees.json
    python -m tests.goldens.trees show NAME     prints one, to see what a change of its digest is

Every name has a digest of its whole tree, batch statistics included. The smallest model of each
architecture has a listing besides, in which blocks that are alike share a line, so that a change
can be read in a diff.
"""

import argparse
import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from jax.tree_util import keystr

from tests.support.architectures import DIFFERENT_BLOCKS
from vit_jax.models import create_model, list_models
from vit_jax.models.inputs import abstract_input, trace_init
from vit_jax.models.registry import get_preset
from vit_jax.models.summary.counts import table

FILE = Path(__file__).with_name("trees.json")


def leaves(name: str, stacked: bool = False) -> list[str]:
    """Return a line for each array that `create_model(name).init` makes; nothing is computed.

    stacked: trace blocks that can be stacked once, and take them apart here: a fraction of the
        time for the same lines.

    >>> leaves("ViT-B/16")[0]
    'params/blocks_0/attn/out/bias float32 768'
    """
    model = create_model(name)
    differ = type(model).__name__ in DIFFERENT_BLOCKS
    if stacked and hasattr(model, "scan_layers") and not differ:
        model = model.clone(scan_layers=True)
    variables = trace_init(model, abstract_input(model))
    variables.pop("intermediates", None)  # what a pass has left behind
    return [
        f"{apart} {leaf.dtype} " + "x".join(map(str, shape))
        for path, leaf in jax.tree_util.tree_leaves_with_path(variables)
        for apart, shape in _apart(keystr(path, simple=True, separator="/"), leaf.shape)
    ]


def _apart(path: str, shape: tuple[int, ...]) -> list[tuple[str, tuple[int, ...]]]:
    """Return path and shape of an array, or those of each block if it is of stacked ones."""
    if "/blocks/" not in path:
        return [(path, shape)]
    return [(path.replace("/blocks/", f"/blocks_{n}/"), shape[1:]) for n in range(shape[0])]


def digest(lines: Sequence[str]) -> str:
    """Return a short fingerprint of lines, whatever their order."""
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


def listing(lines: Sequence[str]) -> list[str]:
    """Return the lines with the numbers of blocks as `*`, each after how often it is there."""
    alike = Counter(re.sub(r"_\d+(?=[/ ])", "_*", line) for line in lines)
    return [f"{count} x {line}" for line, count in sorted(alike.items())]


def smallest_models() -> list[str]:
    """Return the registered name of the fewest parameters of each architecture."""
    chosen: dict[type, str] = {}
    for name in sorted(list_models(), key=lambda name: table()[name].parameters):
        chosen.setdefault(get_preset(name).architecture, name)
    return list(chosen.values())


def read() -> dict[str, dict[str, Any]]:
    """Return what is committed: `digests` and `listings`, by name."""
    return json.loads(FILE.read_text())


def write() -> None:
    """Keep the trees of now."""
    trees = {name: leaves(name) for name in list_models()}
    kept = {
        "digests": {name: digest(lines) for name, lines in trees.items()},
        "listings": {name: listing(trees[name]) for name in smallest_models()},
    }
    FILE.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.goldens.trees")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("write")
    commands.add_parser("show").add_argument("name")
    arguments = parser.parse_args()
    if arguments.command == "write":
        write()
    else:
        print(*leaves(arguments.name), sep="\n")
