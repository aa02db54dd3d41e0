"""DPT: its neck on maps of any size, what its output is, and its errors.

That it computes what transformers computes is in `test_weights.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.architectures import DENSE
from tests.support.shapes import abstract_variables, random_images, random_variables
from vit_jax.models import create_model
from vit_jax.models.depth import DPT
from vit_jax.models.layers.resize import Enlarge, resize_map

MODEL = DENSE["DPT"]
IMAGES = random_images(2, 16, 16, 3)


def normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def test_corners_stay_where_they_are_and_places_between_are_linear():
    x = normal(1, 3, 4, 2)
    found = resize_map(jnp.asarray(x), (5, 9))
    rows = np.stack([np.interp(np.linspace(0, 2, 5), np.arange(3), x[0, :, 1, c]) for c in (0, 1)])
    np.testing.assert_allclose(found[0, :, 0], resize_map(x, (5, 4))[0, :, 0], atol=1e-6)
    np.testing.assert_allclose(resize_map(x, (5, 4))[0, :, 1].T, rows, atol=1e-6)
    np.testing.assert_array_equal(resize_map(x, (3, 4)), x)


def test_a_transposed_convolution_writes_each_place_into_a_square_of_its_own():
    x, params = normal(1, 2, 3, 4), {"kernel": normal(2, 2, 4, 5), "bias": normal(5)}
    found = Enlarge(5, 2).apply({"params": params}, x)
    for i, j in np.ndindex(4, 6):
        expected = x[0, i // 2, j // 2] @ params["kernel"][i % 2, j % 2] + params["bias"]
        np.testing.assert_allclose(found[0, i, j], expected, atol=1e-5)


def test_the_three_kinds_of_output_are_one_number_seen_in_three_ways():
    kinds = (MODEL, MODEL.clone(scale_shift=(0.5, 0.25)), MODEL.clone(max_depth=80))
    found = jax.jit(lambda variables: [kind.apply(variables, IMAGES) for kind in kinds])(
        random_variables(MODEL, IMAGES)
    )
    inverse, depth, metric = map(np.asarray, found)
    assert inverse.shape == (2, 16, 16) and (inverse >= 0).all() and np.ptp(inverse) > 0
    np.testing.assert_allclose(depth, 1 / (0.5 * inverse + 0.25), rtol=1e-5)
    seen = inverse > 0
    np.testing.assert_allclose(
        metric[seen], 80 / (1 + np.exp(-inverse[seen])), rtol=1e-5, atol=1e-5
    )
    assert (metric[~seen] <= 40).all()
    assert MODEL.is_relative and not MODEL.clone(max_depth=80).is_relative


def test_any_size_that_fits_the_backbone_gives_a_map_of_that_size():
    """Also grids with odd sides, whose coarsest map is rounded up."""
    images = jax.ShapeDtypeStruct((2, 20, 12, 3), jnp.float32)
    shapes = jax.eval_shape(MODEL.apply, abstract_variables(MODEL, IMAGES), images)
    assert shapes.shape == (2, 20, 12)


def test_depth_anything_reads_normed_blocks_without_the_class_token():
    model = create_model("DepthAnythingV2-S")
    assert model.make_backbone() == create_model("DINOv2-S/14")
    assert (model.normed, model.readout, model.image_size) == (True, "ignore", 518)
    tokens = abstract_variables(MODEL.clone(readout="ignore"), IMAGES)["params"]["neck"]
    assert "readout" not in tokens["reassemble_0"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"backbone_name": "Swin-T", "backbone_fields": {}}, "Swin-T gives no outputs of blocks"),
        ({"blocks": (0, 1)}, r"blocks=\(0, 1\) must be 4 numbers"),
        ({"blocks": (0, 1, 1, 2)}, r"blocks\[3\]=2 is no block of ViT, whose numbers are 0 to 1"),
        ({"scale_shift": (1.0,)}, "must be two numbers"),
        ({"scale_shift": (1.0, 0.0), "max_depth": 1.0}, "two ways to a depth in metres"),
        ({"readout": "sum"}, "use one of 'project', 'add', 'ignore'"),
    ],
)
def test_wrong_fields_are_one_sentence(fields, said):
    with pytest.raises(ValueError, match=said):
        MODEL.clone(**fields)


@pytest.mark.parametrize(
    ("field", "said"),
    [({"scan_layers": True}, "use scan_layers=False"), ({"pool": "mean"}, "needs a class token")],
)
def test_wrong_backbones_are_one_sentence(field, said):
    with pytest.raises(ValueError, match=said):
        DPT(backbone_fields=field)
