"""The Python blocks of the guides: each has all the names it uses, and imports what is there."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = ("looking_inside.md", "robustness.md")
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    )
]


def test_every_block_defines_what_it_uses():
    for parameters in BLOCKS:
        [block] = parameters.values
        checked = subprocess.run(
            [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F821,E9", "-"],
            input=block,
            capture_output=True,
            text=True,
        )
        assert checked.returncode == 0, f"{parameters.id}:\n{checked.stdout}"


@pytest.mark.parametrize("block", BLOCKS)
def test_every_import_of_a_block_is_there(block):
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module.startswith("vit_jax"):
            module = importlib.import_module(node.module)
            for alias in node.names:
                assert hasattr(module, alias.name), f"{node.module} has no {alias.name}"
