"""Checkpoint on disk: a state, the checksums of its arrays, and a record.

    checkpoints/N/
      state/          the arrays, written by Orbax
      checksums/      of every array; one file from each process, for its pieces
      record/         small JSON: the position of the run at the checkpoint

Everything read is compared with its checksum. Checkpoints of earlier versions have no checksums:
they are read without a check, and a warning says so.
"""

import functools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from vit_jax.errors import UserError, is_disk_full, room_left
from vit_jax.runs.checksums import MODULUS, checksum, sealed, unsealed

if TYPE_CHECKING:  # the import takes half a second, and undamaged checkpoints do not need it
    import orbax.checkpoint as ocp

# Keys of a record without checksum; a record with other keys is a damaged new one.
_OLD_RECORD = {"data", "versions"}


class Damaged(ValueError):
    """Error for a checkpoint that differs from what was saved."""


class Leaf(NamedTuple):
    """Shape, type and checksum of a saved array."""

    shape: tuple[int, ...]
    dtype: str
    checksum: int


# ---------------------------------------------------------------------------------------- checksums


def leaves(tree: Any) -> dict[str, Any]:
    """Return the leaves of a tree by their paths, such as `params/head/kernel`."""
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in found}


@dataclass(frozen=True)
class LocalPieces:
    """Pieces of an array that this process saves; all processes together have each element once.

    pieces: pairs of the index of a piece's first element and its elements, on the host.
    """

    shape: tuple[int, ...]
    dtype: str
    pieces: list[tuple[tuple[int, ...], np.ndarray]]

    @classmethod
    def of(cls, leaf: Any) -> "LocalPieces":
        """Copy the pieces of an array from the devices of this process."""
        if not isinstance(leaf, jax.Array):
            array = np.asarray(leaf)
            mine = [((0,) * array.ndim, array)] if jax.process_index() == 0 else []
            return cls(array.shape, str(array.dtype), mine)
        mine = [
            (tuple(cut.start or 0 for cut in shard.index), np.asarray(shard.data))
            for shard in leaf.addressable_shards
            if shard.replica_id == 0
        ]
        return cls(leaf.shape, str(leaf.dtype), mine)

    def checksum(self) -> int:
        """Return the sum of the pieces' shares of the checksum."""
        return sum(checksum(piece, start, self.shape) for start, piece in self.pieces) % MODULUS


def local_pieces(state: Any) -> dict[str, LocalPieces]:
    """Copy the pieces of all arrays from the devices of this process."""
    found = leaves(state)
    for leaf in found.values():
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()  # all arrays in parallel
    return {path: LocalPieces.of(leaf) for path, leaf in found.items()}


def local_checksums(state: Any) -> dict[str, int]:
    """Return, for every array, this process's share of its checksum."""
    return {path: of.checksum() for path, of in local_pieces(state).items()}


def differing(saved: Mapping[str, Leaf], checksums: Mapping[str, int]) -> str:
    """Return a sentence on the first array that differs from the saved one; "" if none does."""
    for path, found in checksums.items():
        if path not in saved or saved[path].checksum != found % MODULUS:
            return f"{path} differs from what was saved: the checksums are not equal"
    return ""


def read_checksums(folder: Path) -> dict[str, Leaf] | None:
    """Return the checksums of a checkpoint; None for a checkpoint of an earlier version.

    Raises Damaged, or OSError, if they cannot be read.
    """
    files = sorted((folder / "checksums").glob("*.json"))
    if not files and not (folder / "checksums").exists() and _is_old(folder):
        return None
    parts = [_read_sealed(file) for file in files]
    if not parts or any(part["processes"] != len(parts) for part in parts):
        raise Damaged("some of its checksums are missing")
    total: dict[str, Leaf] = {}
    for part in parts:
        for path, leaf in part["leaves"].items():
            before = total[path].checksum if path in total else 0
            after = (before + leaf["checksum"]) % MODULUS
            total[path] = Leaf(tuple(leaf["shape"]), leaf["dtype"], after)
    return total


def _is_old(folder: Path) -> bool:
    """Return whether a checkpoint was written by a version without checksums."""
    try:
        record = json.loads((folder / "record" / "metadata").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True  # converted weights
    return isinstance(record, dict) and record.keys() <= _OLD_RECORD


def _read_sealed(file: Path) -> dict[str, Any]:
    try:
        return unsealed(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise Damaged(f"{file.parent.name}/{file.name} cannot be used: {error}") from error


def read_record(folder: Path) -> dict[str, Any]:
    """Return the record of a checkpoint; empty for weights converted by an earlier version.

    Raises Damaged, or OSError, if there is no valid record.
    """
    file = folder / "record" / "metadata"
    if _is_old(folder) and not (folder / "checksums").exists():
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return _read_sealed(file)


# Fields of a model that do not change the meaning of its parameters.
_HOW_IT_RUNS = ("dtype", "attention_impl", "remat", "scan_layers")


def model_changes(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences between two records of a model, such as `fields.depth 12 -> 24`.

    Only changes to the meaning of parameters count, neither class names nor versions.

    Args:
        saved, now: results of `ModelRecord.to_json`.
    """
    now = json.loads(json.dumps(now))  # tuples become lists
    names = ("name", "activation", "quantization")
    pairs = {name: (saved.get(name), now.get(name)) for name in names}
    for part in ("fields", "preprocessing"):
        for name in sorted(saved[part].keys() | now[part].keys()):
            if name not in _HOW_IT_RUNS:
                pairs[f"{part}.{name}"] = saved[part].get(name), now[part].get(name)
    return [f"{name} {one!r} -> {other!r}" for name, (one, other) in pairs.items() if one != other]


@functools.cache
def say_unchecked(folder: Path) -> None:
    """Warn once per folder of checkpoints that they have no checksums."""
    print(
        f"the checkpoints in {folder} were written by an earlier version, without checksums: "
        "damage in them cannot be detected",
        file=sys.stderr,
    )


# --------------------------------------------------------------------------------- state, variables


def save_args(state: Any, record: Mapping[str, Any]) -> "ocp.args.Composite":
    """Return the arguments of a CheckpointManager for a complete checkpoint."""
    import orbax.checkpoint as ocp

    from vit_jax.runs.checkpoint_handler import ChecksumSave

    return ocp.args.Composite(
        state=ocp.args.PyTreeSave(state),
        checksums=ChecksumSave(state),
        record=ocp.args.JsonSave(sealed(record)),
    )


def read_state(folder: Path, abstract: Any) -> Any:
    """Return the state of a checkpoint on the devices, not yet compared with its checksums.

    abstract: shapes, types and shardings to restore to.
    """
    import orbax.checkpoint as ocp

    restore_args = ocp.checkpoint_utils.construct_restore_args(abstract)
    return _read(folder, ocp.args.PyTreeRestore(item=abstract, restore_args=restore_args))


def read_variables(folder: Path, raw: bool) -> dict[str, Any]:
    """Return parameters and model state of a checkpoint as numpy arrays, with verified checksums.

    raw: the raw parameters, if there are averaged ones too.

    Raises Damaged, or any type that Orbax raises for a damaged file.
    """
    saved = read_checksums(folder)
    if saved is not None and (variables := _read_quickly(folder, raw, saved)) is not None:
        return variables
    import orbax.checkpoint as ocp

    tree = _tree(folder)
    if saved is None:
        say_unchecked(folder.parent)
    elif leaves(tree).keys() != saved.keys():
        raise Damaged("its list of arrays differs from what was saved")
    params = "params" if raw or not tree.get("ema_params") else "ema_params"
    wanted = {name: tree[name] for name in (params, "model_state") if tree.get(name)}
    restore_args = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), wanted)
    asked = ocp.args.PyTreeRestore(item=wanted, restore_args=restore_args, partial_restore=True)
    restored = _read(folder, asked)
    if saved is not None:
        found = {path: checksum(leaf) for path, leaf in leaves(restored).items()}
        if difference := differing(saved, found):
            raise Damaged(difference)
    return {"params": restored[params], **restored.get("model_state", {})}


def _read_quickly(folder: Path, raw: bool, saved: Mapping[str, Leaf]) -> dict[str, Any] | None:
    """Return the same variables without Orbax; None if they do not match the checksums."""
    averaged = any(path.startswith("ema_params/") for path in saved)
    params = "ema_params" if averaged and not raw else "params"
    wanted = [path for path in saved if path.split("/")[0] in (params, "model_state")]
    try:
        arrays = _read_arrays(folder / "state", {path: saved[path] for path in wanted})
    except Exception:  # TensorStore raises various types; reading again by Orbax explains the error
        return None
    variables: dict[str, Any] = {"params": {}}
    for path, array in arrays.items():
        if Leaf(array.shape, str(array.dtype), checksum(array)) != saved[path]:
            return None
        kind, *names, last = path.split("/")
        node = variables["params"] if kind == params else variables
        for name in names:
            node = node.setdefault(name, {})
        node[last] = array
    return variables


def _read_arrays(state: Path, saved: Mapping[str, Leaf]) -> dict[str, np.ndarray]:
    """Return arrays of a saved state by their paths.

    Orbax stores an array as Zarr under its path with dots, all in one store (OCDBT). Both are
    formats of TensorStore, whose import takes a hundredth of the time of Orbax's.

    Raises any type that TensorStore raises for a damaged file, or ValueError for another shape.
    """
    import tensorstore

    base = {"driver": "file", "path": f"{state.resolve()}/"}
    context = tensorstore.Context()
    opening = {}
    for path in saved:
        store = {"driver": "ocdbt", "base": base, "path": f"{path.replace('/', '.')}/"}
        spec = {"driver": "zarr", "kvstore": store}
        opening[path] = tensorstore.open(spec, open=True, read=True, context=context)
    reading = {}
    for path, store in opening.items():
        if store.result().shape != saved[path].shape:  # a damaged shape might exceed the memory
            raise ValueError(f"{path} has another shape than was saved")
        reading[path] = store.result().read()
    return {path: array.result() for path, array in reading.items()}


def write_variables(
    checkpoints: Path, variables: Mapping[str, Any], record: Mapping[str, Any]
) -> None:
    """Write variables that do not come from training as checkpoint 0 of a folder of checkpoints.

    Raises UserError if they cannot be written.
    """
    import orbax.checkpoint as ocp

    state = {"params": variables["params"]}
    if others := {name: tree for name, tree in variables.items() if name != "params"}:
        state["model_state"] = others
    try:
        with ocp.CheckpointManager(checkpoints.resolve()) as manager:
            manager.save(0, args=save_args(state, record))
    except Exception as error:  # Orbax raises various types for a full disk
        room = ""
        if is_disk_full(error):
            size = sum(leaf.nbytes for leaf in leaves(state).values())
            room = f"; {room_left(checkpoints, size)}"
        reason = str(error).strip().split("\n")[0][:300]
        raise UserError(
            f"the weights could not be written to {checkpoints} ({reason}{room}); make room or fix "
            "the permissions, and repeat the command with an empty folder"
        ) from error


def _tree(folder: Path) -> Any:
    """Return the tree of a saved state with Orbax's metadata as leaves."""
    import orbax.checkpoint as ocp

    handler = ocp.PyTreeCheckpointHandler()
    try:
        return handler.metadata((folder / "state").resolve()).tree
    finally:
        handler.close()


def _read(folder: Path, asked: "ocp.args.PyTreeRestore") -> Any:
    import orbax.checkpoint as ocp

    # A handler, not a Checkpointer, which warns about reading a single item of a checkpoint, and
    # makes processes wait for each other after one of them has found damage.
    handler = ocp.PyTreeCheckpointHandler()
    try:
        return handler.restore((folder / "state").resolve(), args=asked)
    finally:
        handler.close()
