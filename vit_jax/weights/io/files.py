"""Reading of weights files: `.npz`, `.safetensors` and torch's, single or in shards.

    read_tensors("ViT-B_16.npz")                       # arrays by the names in the file
    read_tensors("checkpoint.pth", part="model_ema")   # one of several sets of weights
    read_tensors("downloads/vit-base/")                # the one weights file in a folder

The type is detected from the first bytes of a file and never from its name. No code in a file is
executed, no declared size is trusted, and an unreadable file is a UserError of one sentence.
"""

import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.weights.io.archive import Archive
from vit_jax.weights.io.npz_file import read_npz
from vit_jax.weights.io.safetensors_file import read_safetensors, write_safetensors
from vit_jax.weights.io.safety import check_names, read_json_object, show
from vit_jax.weights.io.torch_file import read_torch_legacy, read_torch_zip
from vit_jax.weights.io.unwrap import unwrap

__all__ = ["read_config", "read_tensors", "weights_file", "write_safetensors"]

SUFFIXES = (".safetensors", ".npz", ".bin", ".pt", ".pth", ".ckpt", ".pth.tar", ".index.json")
# Files that Hugging Face's trainers write beside weights.
_NO_WEIGHTS = ("training_args", "optimizer", "scheduler", "scaler", "rng_state", "random_states")

# First bytes of files that are mistaken for weights.
_OTHERS = {
    b"version https://git-lfs": "a Git LFS pointer and not the file itself; run git lfs pull",
    b"<": "a web page and not a weights file; download the file itself",
    b"\x93NUMPY": "a single array (.npy); save the arrays of a model with numpy.savez",
    b"\x89HDF": "an HDF5 file (Keras, TensorFlow), which is not supported",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"BZh": "compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "compressed with xz; unpack it first",
}


def read_tensors(path: str | os.PathLike, part: str | None = None) -> dict[str, np.ndarray]:
    """Read all tensors of one set of weights, by their names in the file.

    Args:
      path: a file, or a folder with one weights file in it.
      part: name of the set, if the file has several, such as "model_ema" or "teacher"; or a prefix
        of tensor names, which is removed. See `unwrap.unwrap`.

    Returns:
      Arrays in the dtype of the file, bfloat16 included; they may be read-only. Prefixes of
      training wrappers (`module.`, `_orig_mod.`, `backbone.`) are removed.

    Raises:
      UserError: there is no readable file, or a choice is needed.
    """
    file = weights_file(path)
    try:
        return _read(file, functools.partial(unwrap, part=part, path=file))
    except OSError as error:
        raise UserError(f"{file} cannot be read ({error.strerror or error})") from error


def read_config(path: str | os.PathLike, name: str = "config.json") -> dict[str, Any] | None:
    """Read the `config.json` in a folder, or beside a file; return None if there is none.

    Args:
      path: the folder or the file.
      name: name of another JSON file to read, such as "preprocessor_config.json".

    Raises:
      UserError: it is not a JSON object, or larger than `safety.MAX_HEADER_BYTES`.
    """
    path = Path(path).expanduser()
    config = (path if path.is_dir() else path.parent) / name
    return read_json_object(config) if config.is_file() else None


def weights_file(path: str | os.PathLike) -> Path:
    """Return the file itself, or the one weights file in a folder (the index if it is in shards).

    Raises:
      UserError: there is none, or there are several, which are listed.
    """
    path = Path(path).expanduser()
    if not path.is_dir():
        if not path.exists():
            raise UserError(f"there is no weights file {path}")
        if not path.is_file():
            raise UserError(f"{path} is neither a file nor a folder")
        return path
    candidates = choose_weights([file.name for file in path.iterdir() if file.is_file()])
    if not candidates:
        hint = (
            "; it is a run of vit_jax: use `vit_jax.load`"
            if (path / "model.json").is_file()
            else f"; their names end in {', '.join(SUFFIXES)}"
        )
        raise UserError(f"there is no weights file in {path}{hint}")
    if len(candidates) > 1:
        raise UserError(
            f"{path} has several weights files: {', '.join(candidates)}; use the path of one"
        )
    return path / candidates[0]


def choose_weights(names: list[str]) -> list[str]:
    """Return the files of one folder that may be weights; of shards, only their index."""
    weights = sorted(
        name
        for name in names
        if name.lower().endswith(SUFFIXES) and not name.startswith((".", *_NO_WEIGHTS))
    )
    indices = [name for name in weights if name.endswith(".index.json")]
    # "model.safetensors.index.json" replaces "model-00001-of-00002.safetensors" and the others.
    stems = tuple(name.split(".", 1)[0] + "-" for name in indices)
    return [name for name in weights if not (name.startswith(stems) and "-of-" in name)]


def _read(path: Path, choose) -> dict[str, np.ndarray]:
    """Read one file of any type; `choose` selects the tensors to read."""
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        raise UserError(f"{path} is empty; download it again")
    if _is_safetensors(head):  # first, since a length may begin with any bytes, even "PK"
        return choose(read_safetensors(path))
    if head[:2] == b"PK":
        return _read_zip(path, choose)
    if head[:1] == b"\x80":
        return read_torch_legacy(path, choose)
    if head.lstrip()[:1] == b"{":
        return choose(_read_shards(path))
    if head[257:262] == b"ustar":
        raise UserError(
            f"{path} is a tar archive; unpack it, or, if torch before 0.1.10 wrote it, save it"
            " again with a newer torch"
        )
    for beginning, what in _OTHERS.items():
        if head.lstrip().startswith(beginning):
            raise UserError(f"{path} is {what}")
    raise UserError(
        f"{path} is not a supported weights file (.npz, .safetensors, or of torch): it begins"
        f" with {head[:16]!r}"
    )


def _is_safetensors(head: bytes) -> bool:
    # The length of the header, and the header. In other file types with a brace at this place, the
    # first 8 bytes would be an impossible length.
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 2**40


def _read_zip(path: Path, choose) -> dict[str, np.ndarray]:
    with Archive(path) as archive:
        names = list(archive.sizes)
    if any(name.endswith("/data.pkl") for name in names):
        return read_torch_zip(path, choose)
    if names and all(name.endswith(".npy") for name in names):
        return choose(read_npz(path))
    raise UserError(
        f"{path} is a zip archive, but neither .npz nor of torch; it contains {show(names)}"
    )


def _read_shards(path: Path) -> dict[str, np.ndarray]:
    """Read all tensors of an index from its shards."""
    index = read_json_object(path).get("weight_map")
    if not isinstance(index, dict) or not all(isinstance(name, str) for name in index.values()):
        raise UserError(
            f"{path} is JSON, but not an index of shards (with 'weight_map', a shard for each"
            " tensor); use the weights file itself"
        )
    check_names(path, index)
    tensors = {}
    for shard in sorted(set(index.values())):
        expected = {name for name, where in index.items() if where == shard}
        for name, array in _read_shard(path, shard).items():
            if name not in expected:
                raise UserError(
                    f"{path.parent / shard} has {show(name)}, which {path.name} places in"
                    f" {show(index.get(name))}; the files do not match: download them again"
                )
            tensors[name] = array
            expected.discard(name)
        if expected:
            raise UserError(
                f"{path.parent / shard} has no {show(min(expected))}, which {path.name} places"
                " there; the files do not match: download them again"
            )
    return {name: tensors[name] for name in index}


def _read_shard(index: Path, shard: str) -> dict[str, np.ndarray]:
    # An external name must not lead out of the folder.
    if shard in ("", ".", "..") or any(letter in shard for letter in "/\\:\0"):
        raise UserError(
            f"{index} names the shard {show(shard)}; a shard must be a file in the same folder"
        )
    path = index.parent / shard
    if not path.is_file():
        raise UserError(f"{index} names the shard {show(shard)}, which is missing: download it too")
    with path.open("rb") as file:
        head = file.read(9)
    if head[:1] == b"{" and not _is_safetensors(head):
        raise UserError(f"{index} names the shard {show(shard)}, which is an index itself")
    return _read(path, lambda tree: _flat(path, tree))


def _flat(path: Path, tree: Any) -> dict[str, Any]:
    """Return the tensors of a shard, which has no wrappers."""
    if not isinstance(tree, dict) or not all(hasattr(value, "ndim") for value in tree.values()):
        raise UserError(f"{path} is a shard, but contains more than tensors by name")
    return tree
