"""House size of tests of models: small, and one for all, so that programs are compiled once.

Parameters are drawn by NumPy: to compile an initialization takes longer than most tests.
"""

import math

import jax
import numpy as np

SIDE, PATCH, WIDTH, DEPTH, HEADS, CLASSES = 16, 4, 16, 2, 2, 3
IMAGES = (2, SIDE, SIDE, 3)
VIT = {
    "image_size": SIDE,
    "patch_size": PATCH,
    "width": WIDTH,
    "depth": DEPTH,
    "heads": HEADS,
    "num_classes": CLASSES,
}


def random_images(*shape: int) -> np.ndarray:
    """Return float32 images of a shape, or of the house size."""
    return np.random.default_rng(1).normal(size=shape or IMAGES).astype(np.float32)


def random_variables(module, *arguments, seed: int = 0, method=None, **keywords):
    """Return variables of a module for a call, all of them away from 0 and from 1.

    Kernels have the deviation 1 / sqrt(fan in); scales and variances are positive.
    """
    shapes = jax.eval_shape(
        lambda: module.init(jax.random.key(0), *arguments, method=method, **keywords)
    )
    return random_tree({k: v for k, v in shapes.items() if k != "intermediates"}, seed)


def random_tree(shapes, seed: int = 0):
    """Return float32 arrays of these shapes, drawn by what their names say they are."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        drawn = rng.normal(size=leaf.shape)
        name = str(path[-1].key)
        if name in ("scale", "var"):
            drawn = np.exp(0.3 * drawn)
        elif name == "kernel":
            drawn = drawn / math.sqrt(math.prod(leaf.shape[:-1]))
        else:
            drawn = 0.3 * drawn
        return drawn.astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


def relative_difference(ours, theirs) -> float:
    """Return the largest difference as a part of the largest number, which is 1 at least."""
    return np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max())


def assert_same_trees(ours, theirs, tolerance: float) -> None:
    """Fail where two trees of arrays differ by more than a tolerance, and name the leaf."""
    theirs = dict(jax.tree_util.tree_leaves_with_path(theirs))
    ours = dict(jax.tree_util.tree_leaves_with_path(ours))
    assert ours.keys() == theirs.keys()
    for path, leaf in ours.items():
        found = relative_difference(leaf, theirs[path])
        assert found <= tolerance, (jax.tree_util.keystr(path), found)
