"""COCO's JSON: layouts, boxes, outlines and crowds, and what is left out and told."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import list_splits, open_source
from vit_jax.data.sources.dense import coco
from vit_jax.data.sources.dense.outlines import filled
from vit_jax.errors import DecodeError, UserError

OUTLINES = json.loads(Path("tests/goldens/data/outlines.json").read_text(encoding="utf-8"))
SIZE = tuple(OUTLINES["size"])
SQUARE = [[1, 1, 4, 1, 4, 3, 1, 3]]  # 3 x 2 pixels


def bits(text):
    found = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))
    return found[: SIZE[0] * SIZE[1]].reshape(SIZE).astype(bool)


def thing(image, box, category=7, **more):
    return {"image_id": image, "category_id": category, "bbox": box, **more}


def write(file, objects, names=("a.png", "b.png"), folder="images", **more):
    """A file of annotations of images of 8 x 6 pixels, and the images."""
    for name in names:
        place = file.parent / folder
        place.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6), (10, 20, 30)).save(place / name)
    content = {
        "images": [
            {"id": 10 + number, "file_name": name, "width": 8, "height": 6}
            for number, name in enumerate(names)
        ],
        "categories": [{"id": 7, "name": "bird"}, {"id": 3, "name": "cat"}],
        "annotations": objects,
        **more,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
    return f"coco:{file}"


# ------------------------------------------------------------------------------------- outlines


@pytest.mark.parametrize("name", OUTLINES["packed"])
def test_packed_runs_are_those_of_pycocotools(name):
    packed = {"size": SIZE, "counts": OUTLINES["packed"][name]["counts"]}
    expected = bits(OUTLINES["packed"][name]["mask"])
    np.testing.assert_array_equal(filled(packed, SIZE), expected)
    down = expected.T.ravel()
    edges = np.flatnonzero(np.diff(down)) + 1
    runs = np.diff([0, *edges, down.size]).tolist()
    plain = {"size": SIZE, "counts": [0, *runs] if down[0] else runs}
    np.testing.assert_array_equal(filled(plain, SIZE), expected)


@pytest.mark.parametrize("name", OUTLINES["polygons"])
def test_polygons_are_those_of_pycocotools_up_to_the_border(name):
    case = OUTLINES["polygons"][name]
    assert (filled(case["polygons"], SIZE) != bits(case["mask"])).sum() <= 6


def test_a_polygon_covers_the_pixels_whose_centres_are_in_it():
    found = filled([[1, 1, 3, 1, 3, 2, 1, 2], [-9, 3, 1.6, 3, 1.6, 9, -9, 9]], (4, 4))
    assert found.astype(int).tolist() == [[0] * 4, [0, 1, 1, 0], [0] * 4, [1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("outline", "message"),
    [
        ([[1, 2, 3, 4]], "at least 6 numbers"),
        ([1, 2, 3, 4, 5, 6], r"a list of polygons \[\[x, y, ...\]\], not \[1, 2"),
        ([[1, 2, 3, float("inf"), 5, 6]], "a number that is not finite"),
        ("abc", "polygons or an RLE"),
        ({"size": [2, 2], "counts": [16]}, "for 2 x 2 pixels, the image has 4 x 4"),
        ({"size": [4, 4], "counts": [3]}, "cover 3 of 16 pixels"),
    ],
)
def test_a_wrong_outline_says_why(outline, message):
    with pytest.raises(ValueError, match=message):
        filled(outline, (4, 4))


# -------------------------------------------------------------------------------------- examples


def test_boxes_classes_and_outlines(tmp_path):
    crowd = {"size": [6, 8], "counts": [40, 8]}
    dataset = write(
        tmp_path / "annotations.json",
        [
            thing(10, [1, 1, 3, 2], 3, segmentation=SQUARE),
            thing(10, [0, 0, 7, 6], 7, segmentation={"size": [6, 8], "counts": [0, 42, 6]}),
            thing(10, [7, 0, 1, 6], 7, iscrowd=1, segmentation=crowd),
            thing(99, [0, 0, 1, 1]),
        ],
    )
    source = open_source(dataset, "train", holdout=0)
    assert source.class_names == source.features["classes"].classes == ("cat", "bird")
    assert source.features["segmentation"].classes == ("background", "cat", "bird")
    example = source[0]
    assert example["boxes"].tolist() == [[1, 1, 4, 3], [0, 0, 7, 6]]
    assert example["classes"].tolist() == [0, 1]
    expected = np.full((6, 8), 2)
    expected[1:3, 1:4], expected[:, 7] = 1, 0  # the small one is in front
    np.testing.assert_array_equal(example["instances"], expected % 3 * (expected > 0))
    segmentation = expected.copy()
    segmentation[:, 7] = np.where(filled(crowd, (6, 8))[:, 7], 255, 0)
    np.testing.assert_array_equal(example["segmentation"], segmentation)
    empty = source[1]  # an image without objects is valid
    assert not empty["boxes"].any() and not empty["segmentation"].any()
    assert source.notes == (
        f"{dataset} train: 1 annotations of no image of the file are left out",
        f"{dataset} train: 1 objects are crowds, which are ignored",
    )


def test_wrong_boxes_are_left_out_clipped_and_counted(tmp_path):
    dataset = write(
        tmp_path / "annotations.json",
        [
            thing(10, [5, 4, 10, 10]),
            thing(10, [9, 0, 5, 5]),
            thing(10, [1, 1, 0, 3]),
            thing(10, None),
            thing(10, [1, 1, 2, 2], 8),
        ],
    )
    source = open_source(dataset, "train", holdout=0)
    assert set(source.features) == {"image", "boxes", "classes"}
    assert source[0]["boxes"].tolist() == [[5, 4, 8, 6]]
    told = " ".join(source.notes)
    assert "3 boxes without area, or outside of their image, are left out" in told
    assert "1 objects of an unknown category are left out" in told


def test_too_many_boxes_are_cut_to_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr(coco, "MOST_BOXES", 2)
    boxes = [[0, 0, side, side] for side in (2, 4, 3)]
    dataset = write(tmp_path / "annotations.json", [thing(11, box) for box in boxes])
    source = open_source(dataset, "train", holdout=0)
    assert source.features["boxes"].shape == (2, 4)
    assert source[1]["boxes"].tolist() == [[0, 0, 4, 4], [0, 0, 3, 3]]
    assert source.notes == (
        f"{dataset} train: 1 images have more than 2 objects, of which the largest 2 are used",
    )


@pytest.mark.parametrize(
    ("file", "folder", "path"),
    [
        ("annotations/instances_train2017.json", "../train2017", ""),
        ("train/_annotations.coco.json", "", ""),
        ("train.json", "images", ""),
        ("annotations/train.json", "../images/train", ""),
        ("any.json", "", "any.json"),
    ],
)
def test_images_are_found_in_the_usual_layouts(tmp_path, file, folder, path):
    write(tmp_path / file, [thing(10, [0, 0, 2, 2])], folder=folder)
    dataset = f"coco:{tmp_path / path}"
    assert list_splits(dataset, holdout=0) == {"train": 2}
    assert open_source(dataset, "train", holdout=0)[0]["boxes"].tolist() == [[0, 0, 2, 2]]


def test_rows_are_as_many_in_all_splits(tmp_path):
    write(tmp_path / "train.json", [thing(10, [0, 0, 2, 2])])
    write(tmp_path / "val.json", [thing(11, [0, 0, 2, 2])] * 3)
    assert open_source(f"coco:{tmp_path}", "train")[0]["boxes"].shape == (3, 4)
    write(tmp_path / "val.json", [], categories=[{"id": 1, "name": "dog"}])
    with pytest.raises(UserError, match="categories of validation differ from those of train"):
        open_source(f"coco:{tmp_path}", "train")


def test_sizes_may_be_texts_and_names_have_one_unicode_form(tmp_path):
    images = [{"id": 10, "file_name": "a.png", "width": "8", "height": "6"}]
    categories = [{"id": 1, "name": "cafe\u0301 "}]
    things = [thing(10, [4, 3, 99, 99], 1)]
    name = write(tmp_path / "a.json", things, images=images, categories=categories)
    source = open_source(name, "train", holdout=0)
    assert source[0]["boxes"].tolist() == [[4, 3, 8, 6]]
    assert source.class_names == ("caf\u00e9",)


def test_an_image_of_another_size_is_unreadable(tmp_path):
    dataset = write(tmp_path / "annotations.json", [])
    Image.new("RGB", (6, 8)).save(tmp_path / "images/b.png")
    source = open_source(dataset, "train", holdout=0)
    with pytest.raises(DecodeError, match=r"annotation has 8 x 6 pixels, but the image 6 x 8"):
        source[1]
    bad = [thing(10, [0, 0, 2, 2], segmentation=[[1, 2]])]
    source = open_source(write(tmp_path / "other.json", bad), "train", holdout=0)
    with pytest.raises(DecodeError, match=r"a.png.*outline of it cannot be drawn: a polygon has"):
        source[0]


def test_what_is_not_cocos_is_one_sentence(tmp_path):
    file = tmp_path / "annotations.json"
    for content, message in (
        ("[]", "is not COCO's JSON of objects"),
        ("{", "is not COCO's JSON of objects"),
        ('{"images": [], "categories": [], "annotations": []}', "has 0 images and 0 categories"),
        ('{"images": [], "categories": [], "annotations": null}', "is not COCO's JSON of objects"),
        ('{"images": [], "categories": [], "annotations": [1]}', "is not COCO's JSON of objects"),
        ("[" * 100_000, "is not COCO's JSON of objects"),
        (
            '{"images": [{"id": 1, "file_name": 5}], "categories": [], "annotations": []}',
            "is not COCO's JSON of objects",
        ),
    ):
        file.write_text(content, encoding="utf-8")
        coco._read.cache_clear()
        with pytest.raises(UserError, match=message):
            open_source(f"coco:{file}", "train")
    with pytest.raises(UserError, match="there is no such file or folder"):
        open_source("coco:nowhere", "train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no annotations; it needs annotations.json"):
        open_source(f"coco:{tmp_path / 'empty'}", "train")
    write(file, [])
    for image in (tmp_path / "images").iterdir():
        image.unlink()
    coco._read.cache_clear()
    with pytest.raises(UserError, match=r"names a.png, which is in none of .*into images/"):
        open_source(f"coco:{file}", "train")
