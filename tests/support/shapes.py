"""House size of tests of models: small, and one for all, so that programs are compiled once.

Parameters are drawn by NumPy: to compile an initialization takes longer than most tests.
"""

import functools
import math

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from vit_jax.models.inputs import trace_init

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


def apply(module, params, *arguments, **asked):
    """Return `module.apply` of parameters, compiled once for a module, shapes and words asked."""
    return run(module, {"params": params}, *arguments, **asked)


def run(module, variables, *arguments, **asked):
    """Return the same of variables, which may hold more than parameters."""
    frozen = {k: tuple(v) if isinstance(v, list) else v for k, v in asked.items()}
    return _run(module, variables, *arguments, **frozen)


@functools.partial(
    jax.jit,
    static_argnums=0,
    static_argnames=("train", "method", "mutable", "attention_weights", "grid"),
)
def _run(module, variables, *arguments, **asked):
    return module.apply(variables, *arguments, **asked)


def random_images(*shape: int) -> np.ndarray:
    """Return float32 images of a shape, or of the house size."""
    return np.random.default_rng(1).normal(size=shape or IMAGES).astype(np.float32)


def random_variables(module, *arguments, seed: int = 0):
    """Return variables of a module for a call, all of them away from 0 and from 1.

    Kernels have the deviation 1 / sqrt(fan in); scales and variances are positive.
    """
    shapes = abstract_variables(module, *arguments)
    return random_tree({k: v for k, v in shapes.items() if k != "intermediates"}, seed)


def abstract_variables(module, *arguments):
    """Return shapes and types of what `module.init` makes, traced once for a module and shapes."""
    return _abstract(module, *((one.shape, str(one.dtype)) for one in arguments))


@functools.cache
def _abstract(module, *arguments):
    arrays = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in arguments]
    return trace_init(module, *arrays)


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


def count_parameters(model):
    """Return the parameters of a ViT: one block is traced and counted `depth` times, quickly."""
    images = jax.ShapeDtypeStruct((1, model.image_size, model.image_size, 3), "float32")
    params = trace_init(model.clone(depth=1), images)["params"]

    def size(tree):
        return sum(leaf.size for leaf in jax.tree.leaves(tree))

    return size(params) + (model.depth - 1) * size(params["blocks_0"])


def relative_difference(ours, theirs) -> float:
    """Return the largest difference as a part of the largest number, which is 1 at least."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max())


def largest_difference(several, answers) -> float:
    """Return the largest difference of all arrays, by name, from those of golden files.

    These have them in other shapes, and beside them the images.
    """
    errors = []
    for found, expected in zip(several, answers, strict=True):
        assert {*found, "images"} == expected.keys()
        for name, array in found.items():
            theirs = expected[name]
            errors.append(relative_difference(np.reshape(np.asarray(array), theirs.shape), theirs))
    return max(errors)


def assert_bit_equal(ours, theirs) -> None:
    """Fail where two trees of arrays differ in a bit, and name the leaf."""
    ours, theirs = flatten_dict(ours, sep="/"), flatten_dict(theirs, sep="/")
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.shape == theirs[name].shape, name
        assert array.tobytes() == np.asarray(theirs[name]).tobytes(), name


def assert_same_trees(ours, theirs, tolerance: float) -> None:
    """Fail where two trees of arrays differ by more than a tolerance, and name the leaf."""
    theirs = dict(jax.tree_util.tree_leaves_with_path(theirs))
    ours = dict(jax.tree_util.tree_leaves_with_path(ours))
    assert ours.keys() == theirs.keys()
    for path, leaf in ours.items():
        found = relative_difference(leaf, theirs[path])
        assert found <= tolerance, (jax.tree_util.keystr(path), found)
