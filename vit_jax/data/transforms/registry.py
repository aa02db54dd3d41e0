"""Transforms: functions of an example and a random generator, built in or registered by a user.

    def invert(example, rng):
        return {**example, "image": 255 - example["image"]}

    register_transform("invert", lambda: invert)      # --config.augment.transforms=invert

- An example is a dictionary of numpy arrays (`vit_jax.data.features`), with the image at the size
  of the model. A transform returns another dictionary and does not write into the arrays it got:
  they may be cached.
- All random numbers come from `rng`, which is keyed by seed, epoch and example, so that a run
  resumes with the same bits on any number of workers.
- A transform that adds features, or changes their shapes, may say so to checks by a method
  `features(features)`, which returns those of its result.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from vit_jax.data.features import Example, Features
from vit_jax.errors import UserError, nearest
from vit_jax.registry import is_plain_name


class Transform(Protocol):
    """Random or fixed change of an example."""

    def __call__(self, example: Example, rng: np.random.Generator) -> Example: ...


_FACTORIES: dict[str, Callable[[], Transform]] = {}


def register_transform(name: str, factory: Callable[[], Transform]) -> None:
    """Add a name to those of `augment.transforms`; a known name is replaced.

    Args:
      name: letters, digits, `_` and `-`.
      factory: returns the transform. Worker processes get it pickled, so it must be a function or
        an instance of a class of an importable module.

    Raises:
      UserError: the name or the factory is invalid.
    """
    if not is_plain_name(name):
        raise UserError(
            f"{name!r} cannot be the name of a transform; use letters, digits, '_' and '-'"
        )
    if not callable(factory):
        raise UserError(f"the transform {name!r} needs a function that returns it")
    _FACTORIES[name] = factory


def list_transforms() -> list[str]:
    """Return the registered names."""
    return sorted(_FACTORIES)


def open_transform(name: str) -> Transform:
    """Return the transform of a name. Raises UserError for an unknown one."""
    check_transforms([name])
    return _FACTORIES[name]()


def check_transforms(names: Iterable[str]) -> None:
    """Raise UserError for an unknown name."""
    for name in names:
        if name not in _FACTORIES:
            there = ", ".join(list_transforms()) or "none yet"
            raise UserError(
                f"augment.transforms: there is no transform {name!r}{nearest(name, _FACTORIES)};"
                f" registered are {there}; a module of --config.plugins registers its own by"
                " vit_jax.data.register_transform"
            )


def features_after(transform: Transform, features: Features) -> Features:
    """Return the features of examples after a transform."""
    declared = getattr(transform, "features", None)
    return features if declared is None else declared(features)
