"""Pictures of frost, drawn: ferns of ice on cold glass.

ImageNet-C lays photographs of frost over its pictures. Theirs are of unknown origin, so these are
drawn instead, about as bright and as rich in contrast; whoever has the photographs may hand them to
`corrupt`.
"""

import functools

import numpy as np
from jaxtyping import UInt8

_HEIGHT, _WIDTH = 320, 480


@functools.cache
def frost_textures() -> tuple[UInt8[np.ndarray, "320 480 3"], ...]:
    """Five pictures of frost, always the same."""
    return tuple(_texture(np.random.default_rng(seed)) for seed in range(5))


def _texture(rng):
    return rng.integers(100, 220, (_HEIGHT, _WIDTH, 3)).astype(np.uint8)
