"""Tensors of a TorchScript program: the attributes of its modules, without their code.

In the pickle of a program every module is an object of a class `__torch__.NAME`, whose code is in
other members of the archive. Here such an object is a `Record` of its attributes; parameters and
buffers are among them, under the names of a state dict: `visual.conv1.weight`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError
from vit_jax.weights.io.pickles import REMEDY, Builder, Record
from vit_jax.weights.io.safety import show
from vit_jax.weights.io.torch_names import NAMES, TorchTensor

_CLASSES = "__torch__."
_MOST_MODULES, _DEEPEST = 20_000, 32


def _record(*arguments: Any) -> Record:
    if arguments:
        raise ValueError("a module is declared in an unknown way")
    return Record()


def _first(*arguments: Any) -> Any:
    if not arguments:
        raise ValueError("a list is declared in an unknown way")
    return arguments[0]


_MODULE = Builder("module", _record)
_TYPED = (
    *("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist"),
    "restore_type_tag",
)
_KNOWN = {**NAMES, **{f"torch.jit._pickle.{name}": Builder(name, _first) for name in _TYPED}}


class _ProgramNames(Mapping):
    """The names of torch files, the typed lists of programs, and every class of a module."""

    def __getitem__(self, name: str) -> Any:
        return _MODULE if name.startswith(_CLASSES) else _KNOWN[name]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and (name.startswith(_CLASSES) or name in _KNOWN)

    def __iter__(self) -> Iterator[str]:
        return iter(_KNOWN)

    def __len__(self) -> int:
        return len(_KNOWN)


PROGRAM_NAMES = _ProgramNames()


def tensors_of_module(path: Path, module: Any) -> dict[str, TorchTensor]:
    """Return the tensors of a module and of those in it, by their names.

    Raises:
        UserError: it is no module, or has too many modules in it.
    """
    if not isinstance(module, Record):
        raise UserError(f"{path} is a TorchScript program without a module; {REMEDY}")
    found: dict[str, TorchTensor] = {}
    waiting, seen = [((), module)], 0
    while waiting:
        parts, inner = waiting.pop()
        seen += 1
        # Modules may be shared, and even hold themselves.
        if seen > _MOST_MODULES or len(parts) > _DEEPEST:
            where = show(".".join(parts[:3]))
            raise UserError(f"{path} has too many modules in each other, as in {where}; {REMEDY}")
        for name, value in inner.items():
            if not isinstance(name, str):
                continue
            if isinstance(value, Record):
                waiting.append(((*parts, name), value))
            elif isinstance(value, TorchTensor):
                found[".".join((*parts, name))] = value
    return found
