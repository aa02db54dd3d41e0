"""FlexiViT: one set of parameters at any patch size, and the published sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.architectures import TINY
from tests.support.shapes import apply, random_images, random_variables
from vit_jax import create_model
from vit_jax.models.flexivit.module import FlexiViT
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.layers.patch_resize import resize_patch_kernel
from vit_jax.models.positions.tables import PositionTable
from vit_jax.models.vit.module import ViT
from vit_jax.weights.adapt import adapt

MODEL = TINY["FlexiViT"]


@pytest.fixture(scope="module")
def params():
    return random_variables(MODEL, random_images())["params"]


def count(model) -> int:
    return sum(np.prod(leaf.shape) for leaf in jax.tree.leaves(abstract_variables(model)["params"]))


# timm 1.0.31, `flexivit_*` with num_classes=0: kernels of 16 x 16, tables of 15 x 15. The published
# files of big_vision have (32^2 - 16^2) * 3 more numbers of the width, and 15^2 - 7^2 fewer.
TIMM = {"S": (21_676_416, 384), "B": (85_820_160, 768), "L": (303_330_304, 1024)}


@pytest.mark.parametrize("size", TIMM)
def test_counts_are_timms_and_those_of_the_published_files(size):
    timms, width = TIMM[size]
    model = create_model(f"FlexiViT-{size}", num_classes=0)
    assert count(model.clone(kernel_size=16, table_grid=15)) == timms
    assert count(model) == timms + width * ((32**2 - 16**2) * 3 - (15**2 - 7**2))


def test_every_patch_size_has_the_same_parameters_and_a_grid_of_its_own(params):
    shapes = abstract_variables(MODEL)["params"]
    assert shapes["patch_embed"]["kernel"].shape == (6, 6, 3, 16)
    assert shapes["pos_embed"].shape == (1, 9, 16)
    for patch, grid in ((2, (8, 8)), (8, (2, 2)), ((4, 8), (4, 2))):
        model = MODEL.clone(patch_size=patch)
        assert abstract_variables(model)["params"] == shapes
        assert model.block_infos()[0].grid == grid
        features = jax.eval_shape(
            lambda v, x, model=model: model.apply(v, x, method="features"),
            {"params": params},
            jnp.zeros((2, 16, 16, 3)),
        )
        assert (features.grid, features.tokens.shape) == (grid, (2, 1 + grid[0] * grid[1], 16))
    assert MODEL.position_tables == {"pos_embed": PositionTable((3, 3), 0, "bilinear")}


def test_it_is_the_vit_of_the_resized_kernel_and_table(params):
    fields = {name: getattr(MODEL, name) for name in ViT.__dataclass_fields__}
    plain = ViT(**{n: x for n, x in fields.items() if n not in ("parent", "name")})
    adapted = adapt(params, MODEL, plain)
    assert adapted.resized == ("patch_embed/kernel", "pos_embed")
    images = random_images()
    expected = apply(plain, adapted.params, images)
    np.testing.assert_allclose(apply(MODEL, params, images), expected, atol=2e-5)


def test_gradients_reach_the_whole_stored_kernel_and_table(params):
    """Also where patches shrink, as far as the resize of patches reads every pixel."""

    def loss(params):
        return jnp.sum(MODEL.apply({"params": params}, random_images()) ** 2)

    gradient = jax.jit(jax.grad(loss))(params)
    assert np.all(gradient["patch_embed"]["kernel"] != 0)
    assert np.all(gradient["pos_embed"] != 0)


def test_a_vit_becomes_a_flexible_one_with_the_same_numbers():
    """With its own kernel and table; of others, the kernel is resized once."""
    sizes = {name: getattr(MODEL, name) for name in ("width", "depth", "heads", "num_classes")}
    plain = ViT(**sizes, image_size=16, patch_size=4, pos_on_cls=False)
    trained = random_variables(plain, random_images())["params"]
    kept = FlexiViT(**sizes, image_size=16, patch_size=4, kernel_size=4, table_grid=4)
    assert adapt(trained, plain, kept).resized == ()
    other = kept.clone(kernel_size=8)
    found = adapt(trained, plain, other).params["patch_embed"]["kernel"]
    kernel = resize_patch_kernel(trained["patch_embed"]["kernel"], (8, 8))
    np.testing.assert_array_equal(found, kernel)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"patch_size": 5}, "16 x 16 pixels cannot be cut into patches of 5 x 5.*15 and 20"),
        ({"kernel_size": 0}, r"kernel_size=0 must be a positive whole number, or two"),
        ({"table_grid": (3, 3, 3)}, r"table_grid=\(3, 3, 3\) must be"),
        ({"attention_type": "linformer"}, "the number of tokens follows from the patch size"),
    ],
)
def test_what_does_not_fit_is_one_sentence(fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        MODEL.clone(**fields)
