"""Boxes in pixels of the original image, thresholds, and the files of what was found."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from PIL import Image
from pycocotools.coco import COCO

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.detector import Detector, Found, in_image, with_boxes
from vit_jax.models.detection import Detections

# Two sure queries and an unsure one, of two classes; the last output is no object.
LOGITS = [[9.0, 0, 0], [0, 1.0, 0], [0, 5.0, 0]]
BOXES = [[0.25, 0.25, 0.5, 0.5], [0.5, 0.5, 1, 1], [0.75, 0.5, 0.5, 1.5]]


class Known(nn.Module):
    """The same detections for every image."""

    queries = 3

    @nn.compact
    def __call__(self, images, *, train=False):
        shift = self.param("shift", nn.initializers.zeros_init(), (1,))
        shape = (images.shape[0], 1, 1)
        boxes = jnp.tile(jnp.array([BOXES]) + shift, shape)
        return Detections(jnp.tile(jnp.array([LOGITS]), shape), boxes)


@pytest.fixture(scope="module")
def detector():
    made = Detector(Known(), {"params": {"shift": jnp.zeros(1)}}, Preprocessing((8, 8)))
    made.class_names = ("cat", "dog")
    return made


@pytest.mark.parametrize(
    ("resize", "size", "expected"),
    [
        ("squash", (100, 200), [0, 0, 100, 50]),
        ("cover", (100, 200), [50, 0, 100, 50]),  # the middle square
        ("pad", (100, 200), [0, 0, 100, 50]),  # rows 2 to 6 of 8 show the image
        ("squash", (8, 8), [0, 0, 4, 4]),
    ],
)
def test_boxes_are_in_pixels_of_the_file(resize, size, expected):
    """The upper left quarter of the input; of a padded one its upper half is padding."""
    preprocessing = Preprocessing((8, 8), resize=resize)
    box = np.array([[0, 0, 0.5, 0.5]])
    np.testing.assert_allclose(in_image(box, preprocessing, size), [expected], atol=1e-6)


def test_what_is_above_the_threshold_is_found_the_surest_first(detector):
    images = [np.zeros((40, 80, 3), np.uint8), np.zeros((8, 8, 3), np.uint8)]
    first, second = detector.detect(images)
    assert [(one.class_name, one.label) for one in first] == [("cat", 0), ("dog", 1), ("dog", 1)]
    assert first[0].score > 0.99 > first[1].score > 0.9 > first[2].score > 0.5
    assert second[0].box == (0, 0, 4, 4)
    assert second[1].box == (4, 0, 8, 8)  # cut off where the image ends
    assert [len(found) for found in detector.detect(images, threshold=0.9)] == [2, 2]
    assert detector(images) == [first, second]
    assert detector.detect(images, threshold=1.0) == [[], []]
    with pytest.raises(UserError, match="threshold = 2 must be a number from 0 to 1"):
        detector.detect(images, threshold=2)


def test_outputs_that_are_not_finite_are_no_objects(detector):
    outputs = {
        "boxes": np.array([[0, 0, 1, 1], [0, 0, np.nan, 1]]),
        "probabilities": np.array([[np.nan] * 3, [0.9, 0, 0.1]]),
    }
    assert detector.objects(outputs, (8, 8), 0.5) == []


def test_files_are_those_of_coco_and_pictures(detector, tmp_path):
    image = np.zeros((40, 80, 3), np.uint8)
    [found] = detector(image)
    written = detector.write(tmp_path, "street", found, image)
    assert [path.name for path in written] == ["street_objects.json", "street_boxes.png"]
    dataset = COCO(str(written[0]))
    [about] = dataset.loadImgs(dataset.getImgIds())
    assert (about["file_name"], about["height"], about["width"]) == ("street", 40, 80)
    best = dataset.loadAnns(dataset.getAnnIds(catIds=[1]))
    assert best[0]["bbox"] == [20, 0, 20, 20]  # of the middle square, which the model saw
    results = json.loads(written[0].read_text())["annotations"]
    assert len(dataset.loadRes(results).anns) == len(found) == 3
    with Image.open(written[1]) as picture:
        assert picture.size == (720, 360)


def test_a_picture_has_the_colours_of_the_classes():
    grey = np.full((400, 400, 1), 100, np.uint8)
    picture = np.asarray(with_boxes(grey, [Found("cat", 0.9, (100.0, 100.0, 300.0, 300.0), 0)]))
    assert tuple(picture[300, 200]) == (255, 225, 25) and tuple(picture[50, 50]) == (100,) * 3
