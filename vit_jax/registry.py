"""Registry of classes by name: the package's own, imported when asked for, and a user's."""

import dataclasses
import importlib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from vit_jax.errors import UserError, nearest, shown

Class = TypeVar("Class")


class Registry(dict[str, type[Class]]):
    """Classes by name; those of the package are added when their modules are imported.

    noun: of a class, for messages. base: the class from which all inherit. first_field: the first
    field of each, which is a dataclass. own: modules of the package's classes by name.
    """

    def __init__(self, noun: str, base: type, first_field: str, own: Mapping[str, str]):
        super().__init__()
        self.noun = noun
        self.base = base
        self.first_field = first_field
        self.own = own

    def add(self, name: str, added: type[Class]) -> type[Class]:
        """Add a class under a name and return it.

        A class with the same module and name replaces the older one, as when a notebook's cell is
        run again.

        Raises:
            ValueError: it is no dataclass that inherits from the base, or the name is taken.
        """
        if not (isinstance(added, type) and issubclass(added, self.base)):
            base = f"{self.base.__module__}.{self.base.__qualname__}"
            raise ValueError(f"the {self.noun} {name!r} must be a subclass of {base}")
        if not dataclasses.is_dataclass(added) or not dataclasses.fields(added):
            raise ValueError(
                f"the {self.noun} {name!r}: put @dataclass(frozen=True) on its class, whose first "
                f"field is `{self.first_field}`"
            )
        is_own = self.own.get(name, added.__module__) == added.__module__
        if not is_own or (name in self and not same_place(self[name], added)):
            raise ValueError(f"the {self.noun} name {name!r} is taken already")
        self[name] = added
        return added

    def names(self) -> list[str]:
        """Return the names of all classes, imported or not."""
        return sorted({*self.own, *self})

    def find(self, name: str, asked_by: str) -> type[Class]:
        """Return a class. Raises UserError with the nearest names if there is none.

        asked_by: the key or option that names it, for the message.
        """
        if name in self.own:
            importlib.import_module(self.own[name])
        if name not in self:
            raise UserError(
                f"{asked_by} = {shown(name)} is unknown{nearest(name, self.names())}; use one of "
                f"{', '.join(self.names())}, or name the module of your own with --config.plugins"
            )
        return self[name]

    def outside_modules(self, names: Iterable[str], asked_by: str) -> tuple[str, ...]:
        """Return the modules outside this package that another process imports to know names."""
        return outside(self.find(name, asked_by).__module__ for name in names)


def same_place(one: type, other: type) -> bool:
    """Return whether two classes have the same module and name."""
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)


def outside(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the modules that are not of this package, each once."""
    return tuple(name for name in dict.fromkeys(modules) if name.split(".")[0] != "vit_jax")


def is_plain_name(text: str) -> bool:
    """Return whether a text has letters, digits, `_` and `-` only, and not just the last two."""
    return text.replace("_", "").replace("-", "").isalnum()
