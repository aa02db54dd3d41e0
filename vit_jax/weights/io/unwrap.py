"""Unwrapping of checkpoints: the weights without wrapper dictionaries and prefixes.

A training script saves more than weights: `{"model": ..., "optimizer": ..., "epoch": ...}`, often
two sets of weights (the raw and the averaged ones, a student and its teacher). A single set is used
directly; of several the user chooses one.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np

from vit_jax.errors import UserError, nearest
from vit_jax.weights.io.pickles import Opaque
from vit_jax.weights.io.safety import show
from vit_jax.weights.io.torch_names import TorchTensor

# Words in the names of training state that is not weights.
TRAINING = (
    *("optim", "sched", "scaler", "loss", "criterion", "metric", "rng", "callback"),
    *("hyper_param", "hparam"),
)
# Prefixes of wrappers: DistributedDataParallel, torch.compile, and DINO's training, which joins a
# backbone and a head.
_PREFIXES = ("module.", "_orig_mod.", "backbone.")
_MAX_DEPTH = 4
_LISTED = 12  # sets in a message


def unwrap(tree: Any, part: str | None, path: Any) -> dict[str, Any]:
    """Return the single or chosen set of weights in the content of a file.

    Args:
      tree: nested dictionaries, with tensors (arrays or `TorchTensor`) at some of their leaves.
      part: name of one of several sets: its keys joined by "/", such as "model_ema" or
        "teacher/backbone", or of tensors of training, such as "dino_loss". It may also be a prefix
        of tensor names, such as "visual" or "params/img", which is removed.
      path: of the file, for messages.

    Returns:
      Tensors by name, without prefixes `module.`, `_orig_mod.` and `backbone.` of all names.

    Raises:
      UserError: there is no such part, or there are several and `part` is None.
    """
    parts = dict(_parts(tree))
    if not parts:
        raise UserError(f"{path} has no tensors by name, only {_describe(tree)}")
    if part is not None:
        chosen = _select(tree, parts, part, path)
    elif len(parts) == 1:
        (chosen,) = parts.values()
    else:
        raise UserError(
            f"{path} has several sets of tensors: {_list(parts)}; choose one with --part=NAME"
            f" (in Python: part=NAME)"
        )
    tensors = {name: value for name, value in chosen.items() if _is_tensor(value)}
    for name, value in chosen.items():
        if isinstance(value, Opaque):
            raise UserError(f"{path}: {show(name)} is a {value.kind}, not a tensor of torch")
    return _without_prefixes(tensors)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, np.ndarray | TorchTensor)


def _parts(tree: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every dictionary with tensors of its own, with its path; the outermost is "".

    A dictionary with several paths is yielded once, with the shortest: pickles share objects, and
    walking every path to them would take breadth to the power of depth.
    """
    waiting, seen = deque([((), tree)]), {id(tree)}
    while waiting:
        keys, inner = waiting.popleft()
        if not isinstance(inner, dict):
            continue
        named = {
            key: value
            for key, value in inner.items()
            if isinstance(key, str) and not is_of_training(key)
        }
        # A single number is a counter (epochs, averages), and not a set of weights.
        if any(_is_tensor(value) and value.ndim > 0 for value in named.values()):
            yield "/".join(keys), inner
        for key, value in named.items():
            if isinstance(value, dict) and id(value) not in seen and len(keys) < _MAX_DEPTH:
                seen.add(id(value))
                waiting.append(((*keys, key), value))


def is_of_training(key: str) -> bool:
    """Return whether a name belongs to training, such as an optimizer or a loss."""
    return any(word in key.lower() for word in TRAINING)


def _select(tree: Any, parts: dict[str, dict[str, Any]], part: str, path: Any) -> dict[str, Any]:
    if part in parts:
        return parts[part]
    named = _at(tree, part)  # by another path, or the state of a loss
    if isinstance(named, dict) and any(map(_is_tensor, named.values())):
        return named
    found = []
    for name, tensors in parts.items():
        if name and part.startswith(name + "/"):
            found.append(_below(tensors, part.removeprefix(name + "/")))
        elif len(parts) == 1:
            found.append(_below(tensors, part))
    found = [tensors for tensors in found if tensors]
    if len(found) != 1:
        raise UserError(
            f"{path} has no part {show(part)}; use one of {_list(parts)}"
            + nearest(part, [*parts][:_LISTED])
        )
    return found[0]


def _at(tree: Any, part: str) -> Any:
    """Return the value at a path of keys; None if it does not exist."""
    for key in part.split("/"):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _below(tensors: dict[str, Any], beginning: str) -> dict[str, Any]:
    """Return the tensors with a name prefix, up to a "." or "/", without the prefix."""
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
        for name, count in [*counts.items()][:_LISTED]
    ) + (f" and {len(counts) - _LISTED} more" if len(counts) > _LISTED else "")


def _describe(tree: Any) -> str:
    if isinstance(tree, dict) and tree:
        return "the keys " + ", ".join(show(key) for key in list(tree)[:20])
    return f"a {type(tree).__name__}"
