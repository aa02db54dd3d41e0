"""SimMIM: masks of parts, the loss on masked pixels, and every architecture that it trains."""

import jax
import numpy as np
import pytest

from tests.support.shapes import VIT, abstract_variables, random_images, random_tree
from vit_jax.errors import UserError
from vit_jax.models import ViT, create_model
from vit_jax.tasks.masked.simmim import SimMIM, masked_error
from vit_jax.training.setup.build import build

KEY = jax.random.key(0)
IMAGES = random_images(2, 16, 16, 3)
TASK = SimMIM(ViT(**{**VIT, "num_classes": 0}), mask_unit=8)


@pytest.fixture(scope="module")
def variables():
    return random_of(TASK)


def random_of(task):
    """Random variables of a task, without a compiled initialization."""
    return random_tree(jax.eval_shape(lambda image: task.init(KEY, {"image": image}), IMAGES[:1]))


def test_only_masked_pixels_count():
    images, masked = np.zeros((1, 2, 2, 2)), np.array([1.0, 0, 0, 1]).reshape(1, 2, 2, 1)
    predicted = np.array([[[[1, 3], [9, 9]], [[9, 9], [-5, 1]]]])
    assert masked_error(predicted, images, masked) == pytest.approx((2 + 3) / 2)


def test_the_number_of_masked_parts_is_rounded_up():
    vit = create_model("ViT-B/16", num_classes=0, image_size=192)
    assert (SimMIM(vit).parts, SimMIM(vit).masked) == (36, 22)


def test_pixels_of_masked_parts_are_not_seen(variables):
    noise = np.array([[0.0, 1.0, 2.0, 3.0]] * 2)  # the last three of four parts are masked
    changed = IMAGES.copy()
    changed[:, 8:] += 1
    predict = jax.jit(
        lambda images: TASK.predict(variables, {"image": images, "noise": noise}, KEY)
    )
    found = [predict(images) for images in (IMAGES, changed)]
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1][0, ::8, ::8, 0], [[0, 1], [1, 1]])


def test_every_parameter_is_learned(variables):
    def loss(variables):
        return TASK.loss(variables, {"image": IMAGES}, KEY, train=True).total

    gradient = jax.device_get(jax.jit(jax.grad(loss))(variables))
    flat = jax.tree_util.tree_leaves_with_path(gradient)
    assert [jax.tree_util.keystr(path) for path, leaf in flat if not np.any(leaf)] == []


SHALLOW = {"depths": (1, 1, 1, 1)}


# The decoders of the paper: 16^2 x 3 outputs of 768 for a ViT, 32^2 x 3 of 1024 for Swin-B.
@pytest.mark.parametrize(
    ("name", "fields", "decoder", "token"),
    [
        ("ViT-B/16", {"depth": 1}, 768 * 768 + 768, 768),
        ("Swin-B", SHALLOW, 1024 * 3072 + 3072, 128),
        ("PVT-Tiny", SHALLOW, 512 * 3072 + 3072, 64),
        ("ConvNeXt-T", SHALLOW, 768 * 3072 + 3072, 96),
    ],
)
def test_the_decoder_is_one_layer_for_every_architecture(name, fields, decoder, token):
    task = SimMIM(create_model(name, num_classes=0, **fields))
    image = jax.ShapeDtypeStruct((1, 224, 224, 3), np.float32)
    params = jax.eval_shape(lambda x: task.init(KEY, {"image": x}), image)["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params["decoder"])) == decoder
    assert params["mask_token"].shape == (token,)
    assert params["encoder"] == abstract_variables(task.model, image)["params"]


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("Swin-T", {"width": 8, "depths": (2, 2), "heads": (1, 2), "patch_size": 4, "window": 2}),
        ("ConvNeXt-T", {"widths": (4, 8), "depths": (1, 1)}),
    ],
)
def test_a_pyramid_sees_the_token_in_place_of_pixels(name, fields):
    """The gradient of the token shows that it enters, and masked pixels do not."""
    task = SimMIM(create_model(name, num_classes=0, image_size=16, **fields), mask_unit=8)
    variables = random_of(task)

    def total(token, images):
        params = {**variables["params"], "mask_token": token}
        noise = np.array([[0.0, 1.0, 2.0, 3.0]] * 2)
        return task.predict({"params": params}, {"image": images, "noise": noise}, KEY)[0].sum()

    gradient = jax.jit(jax.grad(total, (0, 1)))
    of_token, of_images = jax.device_get(gradient(variables["params"]["mask_token"], IMAGES))
    assert np.any(of_token) and np.any(of_images[:, :8, :8])
    assert not np.any(of_images[:, 8:]) and not np.any(of_images[:, :8, 8:])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objective.mask_unit": "12"}, "mask_unit = 12 must divide the image of 16 x 16 pixels"),
        ({"objective.mask_unit": "4"}, "be a multiple of the patch of 8 x 8"),
        ({"objective.mask_ratio": "0.9"}, "mask_ratio = 0.9 masks 4 of 4 parts"),
        ({"objective.mask_ratio": "0.0"}, "mask_ratio = 0.0 masks 0 of 4 parts"),
    ],
)
def test_a_mistake_is_one_sentence(tiny_config, changes, message):
    with pytest.raises(UserError, match=message):
        build(tiny_config({"task": "simmim", "objective.mask_unit": "8", **changes}))


def test_a_model_without_patches_is_refused():
    with pytest.raises(ValueError, match="ResNet has no embeddings of separate patches"):
        SimMIM(create_model("ResNet-50"))
