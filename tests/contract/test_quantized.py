"""Every architecture computes with quantized kernels, which linen hands to its layers."""

import jax
import numpy as np
import pytest

from tests.support.architectures import DENSE, TINY, images_of
from tests.support.shapes import abstract_variables
from vit_jax.compress.quantize import contracted_axes
from vit_jax.models.description import model_roles
from vit_jax.models.quantized import Quantized


@pytest.mark.parametrize("name", [*TINY, "DETR", "DPT", "Segmentation upernet"])
def test_every_architecture_takes_quantized_kernels(name):
    model = {**TINY, **DENSE}[name]
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
    expected = jax.eval_shape(model.apply, variables, images)
    found = jax.eval_shape(model.apply, {**variables, "params": params}, images)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), found) == jax.tree.map(
        lambda x: (x.shape, x.dtype), expected
    )
    kernels = sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(params) if leaf.dtype == np.int8)
    assert kernels > 0.5 * sum(np.prod(x.shape) for x in jax.tree.leaves(variables["params"]))
