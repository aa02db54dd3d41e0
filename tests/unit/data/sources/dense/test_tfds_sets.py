"""Sets of TFDS with dense targets, by their schemas: tiny records of the same form."""

import contextlib
import pickle

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax.data import list_splits, open_source
from vit_jax.data.sources.dense.files import MOST_BOXES
from vit_jax.errors import DecodeError, UserError

F = tfds.features


def builder(cls_name, features, records, version="1.0.0"):
    """A builder class of TFDS, as a user's own, whose examples are some records."""

    def info(self):
        made = {key: make() for key, make in features.items()}
        return tfds.core.DatasetInfo(builder=self, features=F.FeaturesDict(made))

    def generate(self):
        yield from enumerate(records())

    body = {
        "VERSION": tfds.core.Version(version),
        "_info": info,
        "_split_generators": lambda self, manager: {"train": self._generate_examples()},
        "_generate_examples": generate,
        "__module__": __name__,
    }
    taken = not cls_name.startswith("Tiny")  # TFDS's own name and version, with its schema
    skipped = tfds.core.registered.skip_registration if taken else contextlib.nullcontext
    with skipped():
        return type(cls_name, (tfds.core.GeneratorBasedBuilder,), body)


def photo(size=(8, 4)):
    return Image.new("RGB", size, (50, 60, 70))


def one(label, bbox, crowd=False):
    return {
        "label": label,
        "bbox": F.BBox(*map(float, bbox)),
        "is_crowd": crowd,
        "area": 1,
        "id": 2,
    }


def coco_like():
    box = (0.25, 0.5, 0.75, 1.0)  # ymin, xmin, ymax, xmax
    yield {"image": photo(), "objects": [one("cat", box), one("bird", box, crowd=True)]}
    yield {"image": photo(), "objects": []}
    yield {"image": photo(), "objects": [one("bird", (0, 0, side / 200, 1)) for side in range(120)]}


def objects():
    return F.Sequence(
        {
            "label": F.ClassLabel(names=["cat", "bird"]),
            "bbox": F.BBoxFeature(),
            "is_crowd": np.bool_,
            "area": np.int64,
            "id": np.int64,
        }
    )


TinyCoco = builder("TinyCoco", {"image": F.Image, "objects": objects}, coco_like)


def depths():
    depth = np.arange(32, dtype=np.float16).reshape(4, 8)
    depth[1, 1] = np.nan
    yield {"image": photo(), "depth": depth}


TinyDepth = builder(
    "TinyDepth",
    {
        "image": lambda: F.Image(shape=(4, 8, 3)),
        "depth": lambda: F.Tensor(shape=(4, 8), dtype=np.float16),
    },
    depths,
)


def pets():
    trimap = np.array([[1, 2, 3, 2]] * 4, np.uint8)[..., None]
    for size, box in (((4, 4), (0, 0.5, 0.5, 1)), ((5, 4), (0, 0, 0, 0))):
        yield {
            "image": photo(size),
            "label": "pug",
            "species": "dog",
            "segmentation_mask": Image.fromarray(trimap[..., 0]),
            "head_bbox": F.BBox(*map(float, box)),
        }


OxfordIiitPet = builder(
    "OxfordIiitPet",
    {
        "image": F.Image,
        "label": lambda: F.ClassLabel(names=["siamese", "pug"]),
        "species": lambda: F.ClassLabel(names=["cat", "dog"]),
        "segmentation_mask": lambda: F.Image(shape=(None, None, 1)),
        "head_bbox": F.BBoxFeature,
    },
    pets,
    "4.0.0",
)


def scenes():
    values = np.zeros((4, 8, 3), np.uint8)
    values[..., 1], values[1, :, 0], values[2, :, 0] = 9, 1, 150
    yield {"image": photo(), "annotation": Image.fromarray(values)}


SceneParse150 = builder("SceneParse150", {"image": F.Image, "annotation": F.Image}, scenes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tfds")


def test_objects_are_boxes_in_pixels_without_crowds(folder):
    source = open_source("dense:tiny_coco", "train", data_dir=folder)
    assert list_splits("dense:tiny_coco", data_dir=folder) == {"train": 3}
    assert source.class_names == source.features["classes"].classes == ("cat", "bird")
    found = {int(source[i]["boxes"].any(axis=1).sum()): source[i] for i in range(3)}
    assert sorted(found) == [0, 1, MOST_BOXES]  # an image without objects is valid
    assert found[1]["boxes"][0].tolist() == [4, 1, 8, 3] and found[1]["classes"][0] == 0
    heights = found[MOST_BOXES]["boxes"][:, 3]
    np.testing.assert_allclose(heights, np.arange(20, 120) / 50, rtol=1e-6)  # the largest
    copy = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(copy[0]["boxes"], source[0]["boxes"])


def test_depth_is_float32_and_unknown_where_it_is_not_finite(folder):
    source = open_source("dense:tiny_depth", "train", data_dir=folder)
    expected = np.arange(32, dtype=np.float32).reshape(4, 8)
    expected[1, 1] = 0
    np.testing.assert_array_equal(source[0]["depth"], expected)
    assert source[0]["depth"].dtype == np.float32 and source.class_names == ()


def test_pets_have_a_trimap_a_head_and_a_breed(folder):
    OxfordIiitPet(data_dir=folder).download_and_prepare(file_format="array_record")
    source = open_source("dense:oxford_iiit_pet", "train", data_dir=folder)
    assert source.class_names == ("siamese", "pug")
    assert source.features["segmentation"].classes == ("pet", "background", "border")
    examples = []
    for index in range(2):
        try:
            examples.append(source[index])
        except DecodeError as error:
            assert "its mask has 4 x 4 pixels, but the image 5 x 4" in str(error)
    [example] = examples
    assert example["label"] == 1 and example["segmentation"][0].tolist() == [0, 1, 2, 1]
    assert example["boxes"].tolist() == [[2, 0, 4, 2]] and example["classes"].tolist() == [1]
    names = ("pet", "background", "border")  # of a model of segmentation
    again = open_source("dense:oxford_iiit_pet", "train", data_dir=folder, class_names=names)
    assert again.class_names == source.class_names
    unlabelled = open_source("dense:oxford_iiit_pet", "train", data_dir=folder, labels=False)
    assert "label" not in unlabelled.features


def test_the_value_0_of_ade20k_is_ignored(folder):
    SceneParse150(data_dir=folder).download_and_prepare(file_format="array_record")
    source = open_source("dense:scene_parse150", "train", data_dir=folder)
    assert len(source.class_names) == 150
    assert source[0]["segmentation"][:, 0].tolist() == [255, 0, 149, 255]


def test_sets_without_dense_targets_or_with_other_classes_are_refused(folder, data_dir):
    with pytest.raises(UserError, match=r"needs an image, and objects .*use tfds:sklearn_digits"):
        open_source("dense:sklearn_digits", "train", data_dir=data_dir)
    names = ("bird", "cat")
    with pytest.raises(UserError, match="has the classes cat, bird, but the model bird, cat"):
        open_source("dense:tiny_coco", "train", data_dir=folder, class_names=names)
