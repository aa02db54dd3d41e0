"""Tar files as WebDataset has them."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def png(value: int, size: int = 4) -> bytes:
    """Return the file of a grey image of one value."""
    file = io.BytesIO()
    Image.fromarray(np.full((size, size), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def write_shard(path: Path, members: dict[str, bytes | str]) -> Path:
    """Write a tar file with these members."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            content = content.encode() if isinstance(content, str) else content
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path
