"""ViT for any aspect ratio: positions of each grid, padding that nothing sees, and refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support import architectures, shapes
from tests.support.shapes import VIT, random_images, random_variables
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.models.layers.patch_embed import patchify
from vit_jax.models.naflex.module import NaFlexViT, mask_of_grids, positions_of_grids
from vit_jax.models.positions.tables import resize_positions

TINY = architectures.TINY["NaFlexViT"]
FIELDS = {**VIT, "pool": "cls+mean", "registers": 1, "pos_on_cls": True}
BUDGET, PIXELS = 12, 48


def packed(grids, *, fill=0.0, budget=BUDGET, pixels=PIXELS, seed=0):
    rng = np.random.default_rng(seed)
    patches = rng.normal(size=(len(grids), budget, pixels)).astype(np.float32)
    grid = np.array(grids, np.int32)
    padding = ~np.asarray(mask_of_grids(grid, budget))
    patches[padding] = fill
    return {"patches": patches, "grid": grid}


def test_parameters_are_those_of_the_image_tower():
    model = create_model("NaFlexViT-B/16", num_classes=0)
    images = jax.ShapeDtypeStruct((1, 256, 256, 3), jnp.float32)
    params = trace_init(model, images)["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 92_930_304


def test_a_table_is_resized_to_each_grid_as_to_one():
    grids = [(1, 1), (4, 5), (3, 7), (20, 1), (2, 9), (1, 20)]
    table = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    found = positions_of_grids(table, (4, 5), np.array(grids), 21)
    assert np.isfinite(found).all()
    for grid, ours in zip(grids, found, strict=True):
        whole = resize_positions(table[None], (4, 5), grid, kernel="bilinear")[0]
        np.testing.assert_allclose(ours[: len(whole)], whole, atol=2e-6)


def test_images_in_one_batch_are_as_they_are_alone():
    """Every image against its plain call: padding, its pixels and other grids change nothing."""
    model = NaFlexViT(**FIELDS)
    variables = random_variables(model, random_images())
    images = [random_images(1, 4 * rows, 4 * columns, 3) for rows, columns in ((2, 5), (3, 4))]
    batch = packed([(2, 5), (3, 4)], fill=7.0)
    for place, image in enumerate(images):
        cut = patchify(image, (4, 4)).reshape(-1, PIXELS)
        batch["patches"][place, : len(cut)] = cut
    together = shapes.run(model, variables, batch)
    for place, image in enumerate(images):
        alone = shapes.run(model, variables, image)[0]
        np.testing.assert_allclose(together[place], alone, atol=2e-5)


@pytest.mark.parametrize("fields", [{"scan_layers": True}, {"remat": "full"}, {"pool": "map"}])
def test_one_program_serves_all_grids_and_has_finite_gradients(fields):
    model = NaFlexViT(**{**VIT, "pool": "mean", **fields})
    variables = random_variables(model, random_images())

    @jax.jit
    def gradient(variables, batch):
        return jax.grad(lambda v: jnp.square(model.apply(v, batch, train=True)).sum())(variables)

    for grids in ([(3, 4), (1, 1)], [(12, 1), (2, 2)]):
        one, other = (gradient(variables, packed(grids, fill=fill)) for fill in (0.0, 9.0))
        for ours, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert np.isfinite(ours).all()
            np.testing.assert_allclose(ours, theirs, atol=2e-5 * max(1.0, np.abs(ours).max()))
    assert gradient._cache_size() == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"positions": "sincos2d"}, "positions='sincos2d' does not support a grid .* 'learned' or"),
        ({"pos_resize": "cubic"}, "pos_resize='cubic' .* use 'bilinear'"),
        ({"rotary": "dinov3"}, "rotary='dinov3' .* use 'none'"),
        ({"attention_type": "local"}, "attention_type='local' .* use 'softmax'"),
    ],
)
def test_fields_that_need_one_grid_for_all_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        NaFlexViT(**VIT, **fields)


def part(**changed):
    return {**packed([(3, 4)]), **changed}


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (part(grid=np.array([[3, 5]])), "grid of image 0 is 3 x 5 patches, .* at most 12 of them"),
        (part(grid=np.array([[0, 5]])), "grid of image 0 is 0 x 5 patches"),
        (part(grid=np.array([3, 4])), r"of the shape \(1, 2\), rows and columns, got int64 of"),
        (part(grid=np.array([[3.0, 4.0]])), "are whole numbers of the shape"),
        (part(patches=np.zeros((1, 12, 47), np.float32)), r"\(batch, budget, 48\), got \(1, 12, 4"),
        (part(patches=np.zeros((1, 0, 48), np.float32)), "have a budget of 0 tokens"),
        (
            part(patches=np.zeros((1, 12, 48), np.uint8)),
            "float32 and already normalised, got uint8",
        ),
        ({"patches": packed([(3, 4)])["patches"]}, "a mapping of 'patches' and 'grid', got 'patch"),
    ],
)
def test_patches_that_do_not_fit_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(lambda: TINY.init(jax.random.key(0), images))
