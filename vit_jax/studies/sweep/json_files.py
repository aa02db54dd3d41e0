"""JSON files of a sweep, which several processes read and write."""

import os
from pathlib import Path
from typing import Any

from vit_jax.errors import writing
from vit_jax.text import to_json


def write_json(path: Path, content: Any) -> None:
    """Write a file atomically, so that no process reads half of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with writing(draft):
        draft.write_text(to_json(content, indent=2) + "\n", encoding="utf-8")
    os.replace(draft, path)
