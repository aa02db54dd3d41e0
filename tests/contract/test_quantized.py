"""Every architecture computes with quantized kernels, which linen hands to its layers."""

import jax
import numpy as np
import pytest

from tests.support.architectures import TINY, images_of
from tests.support.shapes import CLASSES, abstract_variables
from vit_jax.compress.quantize import contracted_axes
from vit_jax.models.description import model_roles
from vit_jax.models.quantized import Quantized

FAST = ("ViT", "ConvNeXt")
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TINY]


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_takes_quantized_kernels(name):
    model = TINY[name]
    images = images_of(model)
    variables = dict(abstract_variables(model, images))
    axes = contracted_axes(variables["params"], model_roles(model))

    def change(path, leaf):
        contracted = axes.get(jax.tree_util.keystr(path, simple=True, separator="/"))
        if contracted is None:
            return leaf
        shape = [1 if i - leaf.ndim in contracted else n for i, n in enumerate(leaf.shape)]
        values = jax.ShapeDtypeStruct(leaf.shape, np.int8)
        return Quantized(values, jax.ShapeDtypeStruct(shape, np.float32), 8, "int8")

    params = jax.tree_util.tree_map_with_path(change, variables["params"])
    logits = jax.eval_shape(model.apply, {**variables, "params": params}, images)
    assert logits.shape == (len(images), CLASSES) and logits.dtype == np.float32
    kernels = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(params) if leaf.dtype == np.int8)
    assert kernels > 0.5 * sum(np.prod(x.shape) for x in jax.tree.leaves(variables["params"]))
