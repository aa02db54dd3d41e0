"""Random damage to files of weights, and what reading them comes to."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.support.stored import GOLDEN, stored
from vit_jax.errors import UserError
from vit_jax.weights.convert import make_record
from vit_jax.weights.formats import Hints
from vit_jax.weights.io import files
from vit_jax.weights.recognition import find_model

# Values that a configuration should not have, in place of any of its own.
ODD = (
    *(None, True, False, 0, -1, 1, 3, 10**9, 10**30, 0.5, -0.0, 1e400, float("nan"), "", "x"),
    *([], {}, [0], [-1, 2, 3], {"a": 1}, "token", [[1]], [3, 10**9, 10**9], "9" * 300),
)


def base_folders(folder: Path) -> list[Path]:
    """Tiny files of every format, each in a folder of its own, some with a config.json."""
    folders = []
    for name in ("timm_vit", "hf_vit", "swin_timm", "resnet_timm", "convnext_hf", "pvt_hf"):
        case = stored(name)
        tensors = {key: np.ascontiguousarray(array) for key, array in case.tensors.items()}
        folders.append(_folder(folder, name))
        save_file(tensors, folders[-1] / "model.safetensors")
        (folders[-1] / "config.json").write_text(json.dumps(case.config or {}))
    for name, file in (("zip", "windows.pt"), ("legacy", "legacy.pth"), ("train", "training.pth")):
        folders.append(_folder(folder, name))
        (folders[-1] / "model.pth").write_bytes((GOLDEN / file).read_bytes())
    with np.load(GOLDEN / "google_linen.npz") as file:
        google = {name[5:]: file[name] for name in file if name.startswith("file/")}
    for name, save in (("npz", np.savez), ("npz_small", np.savez_compressed)):
        folders.append(_folder(folder, name))
        save(folders[-1] / "model.npz", **google)
    return folders


def mutated(folders: list[Path], target: Path, count: int, seed: int) -> Iterator[Path]:
    """The folder `target` with damaged copies of the others, one after the other."""
    random = np.random.default_rng(seed)
    contents = [{file.name: file.read_bytes() for file in f.iterdir()} for f in folders]
    target.mkdir(exist_ok=True)
    for _ in range(count):
        chosen = dict(contents[random.integers(len(contents))])
        name = str(random.choice(list(chosen)))
        damage = _odd_value if name.endswith(".json") and random.random() < 0.8 else _odd_bytes
        chosen[name] = damage(random, chosen[name])
        for file in target.iterdir():
            file.unlink()
        for file, content in chosen.items():
            (target / file).write_bytes(content)
        yield target


def outcomes(folders: Iterator[Path]) -> tuple[Counter, float]:
    """How often reading was refused and went through, and the longest time in seconds."""
    found, longest = Counter(), 0.0
    for folder in folders:
        start = time.perf_counter()
        found[_outcome(folder)] += 1
        longest = max(longest, time.perf_counter() - start)
    return found, longest


def _outcome(folder: Path) -> str:
    try:
        tensors = files.read_tensors(folder)
        config = files.read_config(folder)
        file_format, tensors = find_model(tensors, config)
        tensors = file_format.normalize_names(tensors)
        origin = "google" if file_format.name == "google" else None
        record = make_record(
            file_format.describe(tensors, config, Hints(origin)), file_format.architecture
        )
        record.create_model()
    except UserError as error:
        assert len(str(error)) < 3000, str(error)[:500]
        return "refused"
    return "read"


def _folder(parent: Path, name: str) -> Path:
    folder = parent / name
    folder.mkdir()
    return folder


def _odd_bytes(random: np.random.Generator, content: bytes) -> bytes:
    """Cut off, turned bits, other bytes near the beginning or the end, or a part twice."""
    kind, length = random.integers(5), len(content)
    if kind == 0:
        return content[: random.integers(length)]
    changed = bytearray(content)
    if kind == 1:
        for place in random.integers(8 * length, size=random.integers(1, 9)):
            changed[place // 8] ^= 1 << (place % 8)
    elif kind in (2, 3):  # where names and sizes stand
        places = random.integers(min(length, 4000), size=random.integers(1, 9))
        for place in places if kind == 2 else length - 1 - places:
            changed[place] = random.choice([0, 1, 0x28, 0x7F, 0x80, 0xFF, random.integers(256)])
    else:
        start, end = sorted(random.integers(length, size=2))
        changed[start:start] = content[start : min(end, start + 2000)]
    return bytes(changed)


def _odd_value(random: np.random.Generator, content: bytes) -> bytes:
    """JSON with one value somewhere in it taken out or put in another's place."""
    tree = json.loads(content)
    inner = tree
    while isinstance(inner, dict) and inner:
        name = str(random.choice(list(inner)))
        if not isinstance(inner[name], dict) or random.random() < 0.2:
            break
        inner = inner[name]
    if not isinstance(inner, dict) or not inner:
        return b"[]"
    if random.random() < 0.1:
        del inner[name]
    else:
        inner[name] = ODD[random.integers(len(ODD))]
    return json.dumps(tree).encode()
