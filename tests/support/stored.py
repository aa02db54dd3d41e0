"""The golden files of other libraries, and writing them as these libraries do."""

import dataclasses
import functools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flax.traverse_util import unflatten_dict
from safetensors.numpy import save_file

from tests.folders import GOLDENS
from vit_jax.models import ViT
from vit_jax.weights.convert import read_pretrained
from vit_jax.weights.formats import Hints

GOLDEN = GOLDENS / "weights"


# Fields of the ViTs that the scripts beside the golden files make, where they say nothing else.
VIT_FIELDS = {"num_classes": 5, "image_size": 16, "patch_size": 4, "in_channels": 3}
VIT_FIELDS |= {"width": 16, "depth": 2, "heads": 2}
# What the same scripts write into a timm configuration.
TIMM_PREPROCESSING = {"mean": (0.1, 0.2, 0.3), "std": (0.4, 0.5, 0.6), "crop": 0.75}
TIMM_PREPROCESSING |= {"interpolation": "bicubic", "resize": "cover"}


def assert_vit_fields(spec, **others) -> None:
    """Fail where the fields of a spec are not those of the golden ViTs, and others as given."""
    expected = {**VIT_FIELDS, **others}
    assert {name: spec.fields[name] for name in expected} == expected


@dataclass(frozen=True)
class Stored:
    """One golden file; `tests/goldens/weights/make_golden.py` says what is what.

    tensors: float32, by the names that the library writes; memory: by those it has in memory.
    answers: images, blocks and logits at the model's own size; others: at another size.
    """

    tensors: dict[str, np.ndarray]
    memory: dict[str, np.ndarray]
    config: dict[str, Any] | None
    preprocessor: dict[str, Any] | None
    hints: Hints
    answers: dict[str, np.ndarray]
    others: dict[str, np.ndarray]


@functools.cache
def _read(name: str) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    """The texts and the arrays of a golden file, decoded once for all tests, which change none."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file}
    texts = {key: str(array) for key, array in arrays.items() if array.dtype.kind == "U"}
    arrays = {k: array.astype(np.float32) for k, array in arrays.items() if k not in texts}
    for array in arrays.values():
        array.setflags(write=False)
    return texts, arrays


def stored(name: str) -> Stored:
    texts, arrays = _read(name)
    texts = {key: json.loads(text) for key, text in texts.items()}

    def under(beginning):
        return {k.removeprefix(beginning): v for k, v in arrays.items() if k.startswith(beginning)}

    return Stored(
        under("tensors/"),
        under("memory/"),
        texts.get("config"),
        texts.get("preprocessor"),
        Hints(**texts["asked"]),
        {key: array for key, array in arrays.items() if "/" not in key},
        under("other/"),
    )


@functools.cache
def loaded(name: str, origin: str | None = None):
    """The record and the variables of a golden file, read once for all tests, which change none."""
    case = stored(name)
    hints = dataclasses.replace(case.hints, origin=origin) if origin else case.hints
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder), case.tensors, case.config, case.preprocessor)
        return read_pretrained(folder, hints)


def stored_vit(path: str, **changes):
    """A ViT, its parameters, and all arrays of a file of `tests/goldens/models`; changed fields."""
    with np.load(GOLDENS / "models" / f"{path}.npz") as file:
        fields = {**json.loads(str(file["fields"])), **changes}
        arrays = {key: file[key].astype(np.float32) for key in file if key != "fields"}
    flat = {key.removeprefix("params/"): value for key, value in arrays.items() if "/" in key}
    return ViT(**fields), unflatten_dict(flat, sep="/"), arrays


def write_files(folder: Path, tensors, config=None, preprocessor=None) -> Path:
    """A folder as other libraries publish weights."""
    folder.mkdir(parents=True, exist_ok=True)
    contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    save_file(contiguous, folder / "model.safetensors")
    for name, content in (("config", config), ("preprocessor_config", preprocessor)):
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content), "utf-8")
    return folder
