"""Read the pickles inside torch files without running anything in them.

A pickle is a program for a small stack machine, and Python's own machine does as the program says:
it imports and calls what is named, and allots what is declared. This machine knows only the
instructions that data need. A name in the file stands for what the reader's own table says, and a
name that is not in the table ends the reading. Texts are cut out of the file's bytes, so that
memory stays in proportion to the file.
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
# Of a call. A tuple may be shared, and is copied with every call that gets it.
_MAX_ARGUMENTS = 1000

REMEDY = (
    "open it where it was made, in a process you trust, and save the tensors alone:"
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


@dataclass(frozen=True)
class Opaque:
    """A value that weights do not need. Only its kind is known, its content was not kept."""

    kind: str


def read_pickle(
    file: BinaryIO,
    path: Path,
    names: Mapping[str, Any],
    persistent: Callable[[Any], Any] | None = None,
) -> Any:
    """The value of the pickle that begins at the file's position; leaves the position behind it.

    Args:
      file: a file in memory, such as `io.BytesIO`: no read gives more than it holds.
      path: the file that the pickle is in, for messages.
      names: what the globals of the file stand for, by "module.name": a `Builder` where the file
        calls it, or any value. Nothing else is looked up.
      persistent: makes values of persistent identifiers, as torch uses them for storages.

    Returns:
      Plain containers and numbers, and what `names` and `persistent` gave.

    Raises:
      UserError: the pickle names something else, uses another instruction, is damaged or too long.
    """
    machine = _Machine(path, names, persistent)
    with refuse_damage(path):
        for count, (instruction, argument, _) in enumerate(pickletools.genops(file)):
            if count >= MAX_INSTRUCTIONS:
                raise UserError(
                    f"{path} has more than {MAX_INSTRUCTIONS} pickle instructions, which is no"
                    f" list of tensors; {REMEDY}"
                )
            try:
                machine.run(instruction.name, argument)
            except (IndexError, TypeError) as error:  # an empty stack, an item of the wrong kind
                raise ValueError(f"pickle instruction {instruction.name} out of place") from error
        if len(machine.stack) != 1 or machine.stack[0] is _MARK:
            raise ValueError("a pickle without a value")
        return machine.pop()


class _Machine:
    """The stack, the memo, and what each instruction does with them."""

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
                self.pop()
                if isinstance(self.top(), list | tuple | str | int | float):
                    raise ValueError("pickle instruction BUILD out of place")
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
            # Hashing nested tuples, or whole numbers made to collide, could take for ever.
            if not (isinstance(key, str) or (isinstance(key, int) and abs(key) < 2**62)):
                raise UserError(
                    f"{self.path} has a dictionary with a key that is no text and no number;"
                    f" {REMEDY}"
                )
            if isinstance(key, str) and len(key) > MAX_NAME:  # it may be the key of many
                raise UserError(
                    f"{self.path} has a dictionary with a key of {len(key)} letters, which no name "
                    f"of a tensor has; {REMEDY}"
                )
            if key in target:
                raise UserError(
                    f"{self.path} holds {show(key)} twice; the file is damaged or hostile: fetch it"
                    " again"
                )
            target[key] = value

    def look_up(self, name: str) -> Any:
        if name not in self.names:
            raise UserError(
                f"{self.path} asks for {show(name)}, which was refused: a weights file holds"
                f" tensors and plain values, and nothing in it is run; {REMEDY}"
            )
        return self.names[name]
