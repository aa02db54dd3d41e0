"""Which part of a checkpoint are the weights: out of their wrappers, without wrappers' prefixes.

A training script saves more than weights: `{"model": ..., "optimizer": ..., "epoch": ...}`, often
two sets of weights (the raw and the averaged ones, a student and its teacher). One set is taken as
it is; between several the person chooses.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from vit_jax.errors import UserError, nearest
from vit_jax.weights.limits import show
from vit_jax.weights.pickles import Opaque
from vit_jax.weights.torch_file import TorchTensor

# Words in the names of what trains weights and is none.
_TRAINING = ("optim", "sched", "scaler", "loss", "criterion", "rng", "callback")
# What wrappers put before every name: DistributedDataParallel, torch.compile, and DINO's training,
# which joins a backbone and a head.
_PREFIXES = ("module.", "_orig_mod.", "backbone.")
_MAX_DEPTH = 4


def unwrap(tree: Any, part: str | None, path: Any) -> dict[str, Any]:
    """The one set of weights in what a file holds.

    Args:
      tree: nested dictionaries, with tensors (arrays or `TorchTensor`) at some of their leaves.
      part: which set, where there are several: its keys joined by "/", such as "model_ema" or
        "teacher/backbone". It may also be the beginning of tensors' names, such as "visual" or
        "params/img"; the names come without it.
      path: of the file, for messages.

    Returns:
      Tensors by name, without `module.`, `_orig_mod.` and `backbone.` where all names begin so.

    Raises:
      UserError: there is no such part, or there are several and `part` is None.
    """
    parts = dict(_parts(tree))
    if not parts:
        raise UserError(f"{path} holds no tensors by name, only {_describe(tree)}")
    if part is not None:
        chosen = _select(parts, part, path)
    elif len(parts) == 1:
        (chosen,) = parts.values()
    else:
        raise UserError(
            f"{path} holds several sets of tensors: {_list(parts)}; choose one with --part=NAME"
            f" (in Python: part=NAME)"
        )
    tensors = {name: value for name, value in chosen.items() if _is_tensor(value)}
    for name, value in chosen.items():
        if isinstance(value, Opaque):
            raise UserError(f"{path}: {show(name)} is a {value.kind} and not a tensor of torch")
    return _without_prefixes(tensors)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray | TorchTensor)


def _parts(tree: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every dictionary that has tensors of its own, with its place; the outermost is ""."""
    if not isinstance(tree, dict) or len(keys) > _MAX_DEPTH:
        return
    named = {
        key: value
        for key, value in tree.items()
        if isinstance(key, str) and not any(word in key.lower() for word in _TRAINING)
    }
    # A lone number is a counter (epochs, averages), and makes no set of weights.
    if any(_is_tensor(value) and value.ndim > 0 for value in named.values()):
        yield "/".join(keys), tree
    for key, value in named.items():
        yield from _parts(value, (*keys, key))


def _select(parts: dict[str, dict[str, Any]], part: str, path: Any) -> dict[str, Any]:
    if part in parts:
        return parts[part]
    found = []
    for name, tensors in parts.items():
        if name and part.startswith(name + "/"):
            found.append(_below(tensors, part.removeprefix(name + "/")))
        elif len(parts) == 1:
            found.append(_below(tensors, part))
    found = [tensors for tensors in found if tensors]
    if len(found) != 1:
        raise UserError(
            f"{path} has no part {part!r}; it holds {_list(parts)}" + nearest(part, parts)
        )
    return found[0]


def _below(tensors: dict[str, Any], beginning: str) -> dict[str, Any]:
    """Those whose names begin so, up to a "." or "/", without the beginning."""
    beginning = beginning.rstrip("./")
    return {
        name[len(beginning) + 1 :]: value
        for name, value in tensors.items()
        if isinstance(name, str) and name.startswith((beginning + ".", beginning + "/"))
    }


def _without_prefixes(tensors: dict[str, Any]) -> dict[str, Any]:
    averaged = tensors.keys() - {"n_averaged"}  # the counter of torch's AveragedModel
    while averaged:
        prefix = next((p for p in _PREFIXES if all(name.startswith(p) for name in averaged)), None)
        if prefix is None:
            break
        tensors = {
            name.removeprefix(prefix): value for name, value in tensors.items() if name in averaged
        }
        averaged = tensors.keys()
    return tensors


def _list(parts: dict[str, dict[str, Any]]) -> str:
    counts = {name: sum(map(_is_tensor, tensors.values())) for name, tensors in parts.items()}
    return ", ".join(
        f"{show(name) if name else 'outside of them'} ({count} tensor{'s'[: count != 1]})"
        for name, count in counts.items()
    )


def _describe(tree: Any) -> str:
    if isinstance(tree, dict) and tree:
        return "the keys " + ", ".join(show(key) for key in list(tree)[:20])
    return f"a {type(tree).__name__}"
