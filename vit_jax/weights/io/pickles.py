"""Reading of the pickles inside torch files without executing anything in them.

A pickle is a program for a small stack machine, and Python's own machine executes it: it imports
and calls any name, and allocates any declared size. This machine has only the instructions for
data. Names in the file are replaced by entries of the reader's own table, and a name outside the
table is an error. Strings are slices of the file's bytes, so that memory is proportional to the
file.
"""

import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vit_jax.errors import UserError
from vit_jax.weights.io.safety import MAX_NAME, refuse_damage, show

# A checkpoint of 1,000 tensors with the state of its optimizer has some 200,000 instructions.
MAX_INSTRUCTIONS = 2_000_000
# Arguments of a call. A tuple may be shared, and every call copies it.
_MAX_ARGUMENTS = 1000

REMEDY = (
    "open it with the program that made it, in a trusted process, and save only the tensors:"
    " torch.save(model.state_dict(), FILE), or as .safetensors"
)

_MARK = object()


@dataclass(frozen=True)
class Builder:
    """Safe replacement of a callable in a file: a function of ours that gets the arguments.

    The function raises ValueError for arguments that it does not expect.
    """

    name: str
    build: Callable[..., Any]


class Record(dict):
    """Object in a file whose attributes are kept, by their names; nothing else is known of it."""


@dataclass(frozen=True)
class Opaque:
    """Value that weights do not need; only its type is stored, not its content."""

    kind: str


def read_pickle(
    file: BinaryIO,
    path: Path,
    names: Mapping[str, Any],
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """Read the pickle at the file's position; the position afterwards is after the pickle.

    Args:
      file: a file in memory, such as `io.BytesIO`: no read returns more than its content.
      path: path of the pickle's file, for messages.
      names: replacements of the file's globals, by "module.name": a `Builder` if the file calls
        it, or any value. No other global is looked up.
      persistent: converts persistent identifiers to values; torch uses them for storages.

    Returns:
      Plain containers and numbers, and values of `names` and `persistent`.

    Raises:
      UserError: the pickle has another global or instruction, is damaged or too long.
    """
    machine = _Machine(path, names, persistent)
    with refuse_damage(path):
        for count, (instruction, argument, _) in enumerate(pickletools.genops(file)):
            if count >= MAX_INSTRUCTIONS:
                raise UserError(
                    f"{path} has more than {MAX_INSTRUCTIONS} pickle instructions, too many for a"
                    f" list of tensors; {REMEDY}"
                )
            try:
                machine.run(instruction.name, argument)
            except (IndexError, TypeError) as error:  # an empty stack, an item of the wrong type
                raise ValueError(f"pickle instruction {instruction.name} out of place") from error
        if len(machine.stack) != 1 or machine.stack[0] is _MARK:
            raise ValueError("a pickle without a value")
        return machine.pop()


class _Machine:
    """Stack machine: the stack, the memo, and the instructions."""

    def __init__(
        self,
        path: Path,
        names: Mapping[str, Any],
        persistent: Callable[[Any], Any] | None,
    ):
        self.path = path
        self.names = names
        self.persistent = persistent
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, instruction: str, argument: Any) -> None:
        push = self.stack.append
        match instruction:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "MARK":
                push(_MARK)
            case "NONE":
                push(None)
            case "NEWTRUE" | "NEWFALSE":
                push(instruction == "NEWTRUE")
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT":
                push(argument)
            case "BINUNICODE" | "SHORT_BINUNICODE" | "BINUNICODE8":
                push(argument)
            case "BINSTRING" | "SHORT_BINSTRING":  # text of Python 2
                push(argument)
            case "BINBYTES" | "SHORT_BINBYTES" | "BINBYTES8":
                push(argument)
            case "EMPTY_DICT":
                push({})
            case "EMPTY_LIST":
                push([])
            case "EMPTY_TUPLE":
                push(())
            case "EMPTY_SET":
                push(Opaque("set"))
            case "TUPLE":
                push(tuple(self.pop_to_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = [self.pop() for _ in range(int(instruction[-1]))]
                push(tuple(reversed(items)))
            case "APPEND":
                self.extend([self.pop()])
            case "APPENDS" | "ADDITEMS":
                self.extend(self.pop_to_mark())
            case "SETITEM":
                value, key = self.pop(), self.pop()
                self.set_items([key, value])
            case "SETITEMS":
                self.set_items(self.pop_to_mark())
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.top()
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.top()
            case "BINGET" | "LONG_BINGET":
                push(self.memo[argument])
            case "GLOBAL":
                push(self.look_up(argument.replace(" ", ".", 1)))
            case "STACK_GLOBAL":
                name, module = self.pop(), self.pop()
                push(self.look_up(f"{module}.{name}"))
            case "REDUCE" | "NEWOBJ":
                arguments, builder = self.pop(), self.pop()
                called = isinstance(builder, Builder) and isinstance(arguments, tuple)
                if not called or len(arguments) > _MAX_ARGUMENTS:
                    raise ValueError(f"pickle instruction {instruction} out of place")
                push(builder.build(*arguments))
            case "BUILD":  # attributes of an object, such as `_metadata` of a state dict
                attributes, target = self.pop(), self.top()
                if isinstance(target, list | tuple | str | int | float):
                    raise ValueError("pickle instruction BUILD out of place")
                if isinstance(target, Record):
                    if not isinstance(attributes, dict):
                        raise ValueError("an object without names of its attributes")
                    target.update(attributes)
            case "BINPERSID":
                if self.persistent is None:
                    raise ValueError("a persistent identifier out of place")
                push(self.persistent(self.pop()))
            case _:
                raise UserError(
                    f"{self.path} uses the pickle instruction {instruction}, which tensors do not"
                    f" need; {REMEDY}"
                )

    def top(self) -> Any:
        if self.stack[-1] is _MARK:
            raise IndexError
        return self.stack[-1]

    def pop(self) -> Any:
        item = self.stack.pop()
        if item is _MARK:
            raise IndexError
        return item

    def pop_to_mark(self) -> list[Any]:
        items = []
        while (item := self.stack.pop()) is not _MARK:
            items.append(item)
        return items[::-1]

    def extend(self, items: list[Any]) -> None:
        target = self.top()
        if isinstance(target, Opaque):
            return
        if not isinstance(target, list):
            raise TypeError
        target.extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.top()
        if isinstance(target, Opaque):
            return
        if not isinstance(target, dict) or len(items) % 2:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            # Hashing nested tuples, or whole numbers chosen to collide, could take for ever.
            if not (isinstance(key, str) or (isinstance(key, int) and abs(key) < 2**62)):
                raise UserError(
                    f"{self.path} has a dictionary with a key that is neither a string nor a"
                    f" number; {REMEDY}"
                )
            if isinstance(key, str) and len(key) > MAX_NAME:  # many entries may share it
                raise UserError(
                    f"{self.path} has a dictionary with a key of {len(key)} letters, too long for "
                    f"a tensor's name; {REMEDY}"
                )
            if key in target:
                raise UserError(
                    f"{self.path} has {show(key)} twice; the file is damaged or hostile: download"
                    " it again"
                )
            target[key] = value

    def look_up(self, name: str) -> Any:
        if name not in self.names:
            raise UserError(
                f"{self.path} needs {show(name)}, which is not allowed: only tensors and plain"
                f" values are read, and no code is executed; {REMEDY}"
            )
        return self.names[name]
