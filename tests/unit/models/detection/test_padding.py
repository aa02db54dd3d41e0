"""Images beside padding: transformers' answers with a `pixel_mask`, and boxes by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.architectures import DENSE
from tests.support.stored import loaded
from vit_jax.data import Preprocessing
from vit_jax.models.detection.heads import Detections
from vit_jax.models.detection.padding import in_window, mask_of_padding, of_padded, windows_of
from vit_jax.models.detection.transformer import shrunk_mask
from vit_jax.tasks.detection.task import Detection

IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
INSIDE = (slice(2, 6), slice(0, 10))  # rows and columns of an image of 8 x 16 pixels


def padded_images(preprocessing):
    """Two images, the first with padding on three sides, and a row of its colour inside."""
    images = np.random.RandomState(0).randint(0, 256, (2, 8, 16, 3)).astype(np.uint8)
    blank, inner = preprocessing.blank(), images[0][INSIDE].copy()
    images[0] = blank
    images[0][INSIDE] = inner
    images[0, 4] = blank[4]  # a row within the image
    return preprocessing.normalize(images)


def test_detr_answers_padded_images_as_transformers_does():
    with np.load(GOLDENS / "weights" / "detection" / "detr_padded.npz") as file:
        images, mask, logits, boxes = (
            file[name] for name in ("images", "pixel_mask", "logits", "boxes")
        )
    record, variables = loaded("detection/detr")
    model = record.create_model()
    found, whole = jax.jit(
        lambda x: (model.apply(variables, x, pixel_mask=mask), model.apply(variables, x))
    )(images.astype(np.float32))
    for ours, theirs in ((found.logits, logits), (found.boxes, boxes)):
        assert np.abs(ours - theirs).max() <= 2e-5 * max(np.abs(theirs).max(), 1)
    # The first image has no padding, so that its answer is that without a mask.
    assert np.abs(whole.logits - logits)[0].max() < 1e-4 < np.abs(whole.logits - logits)[1].max()


def test_padding_is_told_by_its_colour_at_the_borders():
    preprocessing = Preprocessing((8, 16), 3, **IMAGENET)
    images = padded_images(preprocessing)
    level = preprocessing.normalize(preprocessing.blank()[0, 0])
    found = np.asarray(mask_of_padding(images, level))
    expected = np.ones((2, 8, 16), bool)
    expected[0] = False
    expected[0][INSIDE] = True
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_allclose(windows_of(found), [(0, 0.25, 0.625, 0.75), (0, 0, 1, 1)])
    alone = jnp.broadcast_to(level, (1, 4, 4, 3))
    assert np.asarray(mask_of_padding(alone, level)).all()


def test_a_thin_image_leaves_some_place_of_the_grid():
    mask = np.zeros((2, 8, 8), bool)
    mask[0, 2:6, 3] = True  # no first pixel of a place, which are in rows and columns 0 and 4
    mask[1, 2:6, 3:6] = True
    with jax.disable_jit():
        found = np.asarray(shrunk_mask(mask, (2, 2)))
    assert found.tolist() == [[[True, False], [True, False]], [[False, False], [False, True]]]


def test_boxes_go_into_the_image_and_back():
    mask = np.zeros((1, 8, 16), bool)
    mask[0][INSIDE] = True
    # Pixels 5 to 10 of the columns 0 to 10, and 3 to 5 of the rows 2 to 6.
    box = np.array([[[5 / 16, 3 / 8, 10 / 16, 5 / 8]]], np.float32)
    found = in_window(box, windows_of(mask))
    np.testing.assert_allclose(found, [[[0.5, 0.25, 1.0, 0.75]]], atol=1e-6)
    centred = np.array([[[0.75, 0.5, 0.5, 0.5]]], np.float32)
    one = Detections(np.zeros((1, 1, 2), np.float32), centred)
    back = of_padded(one.replace(aux=(one,)), mask)
    expected = [[[7.5 / 16, 4 / 8, 5 / 16, 2 / 8]]]
    np.testing.assert_allclose(back.boxes, expected, atol=1e-6)
    np.testing.assert_allclose(back.aux[0].boxes, expected, atol=1e-6)


@pytest.mark.slow
def test_the_loss_compares_boxes_as_shares_of_the_image():
    """A prediction of the object's place in the image has no box loss, though it is padded."""
    preprocessing = Preprocessing((8, 16), 3, **IMAGENET)
    task = Detection(DENSE["DETR"], padding=True, preprocessing=preprocessing)
    boxes = np.zeros((2, 1, 4), np.float32)
    boxes[0] = (5, 3, 10, 5)
    batch = {"image": padded_images(preprocessing), "boxes": boxes}
    batch["classes"] = np.zeros((2, 1), np.int32)
    place = np.broadcast_to(np.float32([0.75, 0.5, 0.5, 0.5]), (2, 1, 4))
    found = Detections(np.zeros((2, 1, 5), np.float32), place)
    sums = task.sums(found, batch)
    assert abs(float(sums["layer_0/box_loss"])) < 1e-6
    assert float(sums["layer_0/objects"]) == 1
    shown = task.shown(found, batch["image"])
    np.testing.assert_allclose(shown.boxes[0, 0], [7.5 / 16, 0.5, 5 / 16, 0.25], atol=1e-6)


def test_a_model_that_takes_no_mask_is_told():
    with pytest.raises(ValueError, match="padding = True is for a DETR, .* YOLOS takes none"):
        Detection(DENSE["YOLOS"], padding=True)
