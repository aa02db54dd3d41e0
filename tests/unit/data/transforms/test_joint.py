"""Joint changes of image, masks, instances, depth and boxes: by hand, and as torchvision's."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.support.streams import Numbered, source_of, stream
from vit_jax.data import Augment, Preprocessing, Views, train_features
from vit_jax.data.features import IMAGES, LABELLED, Feature
from vit_jax.data.images.region import Region
from vit_jax.data.transforms.affine import Affine, random_affine, warp, warp_nearest
from vit_jax.data.transforms.mosaic import mosaic
from vit_jax.data.transforms.random_crop import ScaleJitter
from vit_jax.data.transforms.spatial import Followers
from vit_jax.errors import UserError

DENSE = {
    **IMAGES,
    "segmentation": Feature("mask", classes=("ground", "a", "b")),
    "instances": Feature("instances"),
    "depth": Feature("depth"),
    "boxes": Feature("boxes", (2, 4)),
    "classes": Feature("target", (2,), classes=("a", "b")),
}
KINDS = {name: feature.kind for name, feature in DENSE.items() if feature.spatial}
QUOKKA = json.loads(Path("tests/goldens/data/boxes.json").read_text(encoding="utf-8"))


def example(boxes=((0, 0, 2, 2), (2, 1, 4, 4)), size=4):
    """Blocks of constant values, one for each box; a later one hides an earlier one."""
    instances = np.zeros((size, size), np.int32)
    for number, (left, top, right, bottom) in enumerate(boxes, 1):
        instances[top:bottom, left:right] = number
    return {
        "image": (60 * instances[..., None]).astype(np.uint8),
        "segmentation": instances.copy(),
        "instances": instances,
        "depth": np.array([8, 2, 4], np.float32)[instances],
        "boxes": np.array(boxes, np.float32),
        "classes": np.arange(2, dtype=np.int32),
    }


def followers(given=None, strict=True):
    kinds = {name: kind for name, kind in KINDS.items() if name != "image"}
    return Followers(given or example(), kinds, strict=strict)


def bits(rows, width):
    rows = [np.unpackbits(np.frombuffer(bytes.fromhex(row), np.uint8))[:width] for row in rows]
    return np.stack(rows)


# ------------------------------------------------------------------------------------ by hand


@pytest.mark.parametrize("axis", [0, 1])
def test_two_flips_are_none(axis):
    moved = followers()
    moved.flip(axis, (4, 4))
    assert not np.array_equal(moved.arrays["boxes"], example()["boxes"])
    moved.flip(axis, (4, 4))
    for name, array in moved.arrays.items():
        np.testing.assert_array_equal(array, example()[name])


def test_a_crop_of_four_pixels_moves_all():
    moved = followers()
    moved.show(Region((4, 4), (1, 0, 3, 2), (4, 4)), None, zoom=2)
    assert moved.arrays["instances"].tolist() == [[1, 1, 0, 0]] * 2 + [[1, 1, 2, 2]] * 2
    assert moved.arrays["boxes"].tolist() == [[0, 0, 2, 4], [2, 2, 4, 4]]
    assert moved.arrays["depth"][0].tolist() == [1, 1, 4, 4]  # half as far


def test_a_box_is_lost_below_a_pixel_or_a_tenth():
    rows = [[0, 0, 20, 9], [0, 0, 10.5, 9], [0, 0, 11, 9], [1, 0, 11, 9], [15, 0, 15.9, 9]]
    rows += [[0, 0, 9, 9], [0, 0, 0, 0]]
    for strict, kept in ((True, [0, 3]), (False, [0, 1, 2, 3, 4])):
        given = {"boxes": np.array(rows, np.float32)}
        moved = Followers(given, {"boxes": "boxes"}, strict=strict)
        moved.shift_window(10, 10, 20, (20, 20))  # 10 pixels to the left
        assert np.flatnonzero(moved.arrays["boxes"].any(axis=1)).tolist() == kept


def test_cuts_add_up():
    moved = Followers({"boxes": np.array([[0, 0, 20, 10]], np.float32)}, {"boxes": "boxes"}, True)
    for visible in (0.7, 0.4, 0.1):
        moved.shift_window(6, 6, 12, (20, 20))  # 6 pixels to the left
        assert moved.arrays["boxes"].tolist() == [[0, 0, pytest.approx(20 * visible), 10]]
    moved.shift_window(1, 1, 2, (20, 20))
    assert not moved.arrays["boxes"].any()


def test_a_quarter_turn_moves_all():
    turn = Affine((0, 1, 0, -1, 0, 4))  # counterclockwise: right becomes top
    given, moved = example(), followers()
    moved.warp(turn, (4, 4))
    for name in ("segmentation", "instances", "depth"):
        np.testing.assert_array_equal(moved.arrays[name], np.rot90(given[name], -1))
    assert moved.arrays["boxes"].tolist() == [[2, 0, 4, 2], [0, 2, 3, 4]]
    np.testing.assert_array_equal(warp(given["image"], turn), np.rot90(given["image"], -1))


def test_outside_a_warped_image_all_is_empty():
    moved = followers()
    moved.warp(Affine((1, 0, 2, 0, 1, 0), zoom=2), (4, 4))  # two pixels to the left
    assert moved.arrays["segmentation"][2].tolist() == [2, 2, 255, 255]
    assert moved.arrays["instances"][2].tolist() == [2, 2, 0, 0]
    assert moved.arrays["depth"][2].tolist() == [2, 2, 0, 0]
    assert moved.arrays["boxes"].tolist() == [[0, 0, 0, 0], [0, 1, 2, 4]]


# ------------------------------------------------------------------- the outline of a real animal


@pytest.mark.parametrize("case", QUOKKA["cases"])
def test_box_and_mask_go_where_torchvision_moves_them(case):
    mask, box = bits(QUOKKA["mask"], 96), np.array([QUOKKA["box"]], np.float32)
    given = {"mask": mask, "boxes": box, "other": 200 * mask[..., None]}
    moved = Followers(given, {"mask": "mask", "boxes": "boxes", "other": "image"})
    if case == "crop":
        region = Region((64, 96), (30, 20, 78, 60), (32, 32))
        rows, columns = np.ix_(np.arange(32) * 5 // 4 + 20, np.arange(32) * 3 // 2 + 30)
        moved.show(region, lambda pixels: pixels[rows, columns])
    elif case == "turn":
        cos, sin = (part / 0.8 for part in (math.cos(math.radians(20)), math.sin(math.radians(20))))
        c, f = 48 - cos * 53 - sin * 29, 32 + sin * 53 - cos * 29
        moved.warp(Affine((cos, sin, c, -sin, cos, f)), (64, 96))
    else:
        moved.flip(0 if "vertical" in case else 1, (64, 96))
    expected = QUOKKA["cases"][case]
    found, wanted = moved.arrays["mask"] == 1, bits(expected["mask"], moved.arrays["mask"].shape[1])
    np.testing.assert_allclose(moved.arrays["boxes"][0], expected["box"], atol=2e-4)
    # torchvision's crop takes pixels by their corner, not by their centre.
    assert np.mean(found != wanted) < (0.03 if case == "crop" else 0.001)
    if case != "crop":
        assert np.mean((moved.arrays["other"][..., 0] > 100) != found) < 0.01


# --------------------------------------------------------------------------- the random changes


def test_masks_follow_a_warped_image():
    given = example(((8, 10, 24, 28), (20, 4, 30, 20)), size=32)
    for seed in range(10):
        ranges = {"rotate": 30, "shift": 0.1, "scale": 0.5, "shear": 0.2}
        affine = random_affine((32, 32), np.random.default_rng(seed), **ranges)
        level = warp(given["image"], affine)[..., 0].astype(int)
        number = warp_nearest(given["instances"], affine, 0)
        assert np.mean(np.abs(level - 60 * number) > 59) < 0.03  # along edges
        augment = Augment(**ranges)
        made = augment.bind(DENSE)(given, np.random.default_rng(seed))
        np.testing.assert_array_equal(made["image"][..., 0], level)
        np.testing.assert_array_equal(made["instances"], number)
        there = number > 0
        depths = np.array([8, 2, 4])[number[there]] / affine.zoom
        np.testing.assert_allclose(made["depth"][there], depths, rtol=1e-6)
        for row, (left, top, right, bottom) in enumerate(made["boxes"]):
            rows, columns = np.nonzero(number == row + 1)
            assert left - 1 <= columns.min() and columns.max() <= right + 1
            assert top - 1 <= rows.min() and rows.max() <= bottom + 1


@pytest.mark.parametrize(("lowest", "highest"), [(0.5, 0.5), (2, 2), (0.5, 2)])
def test_scale_jitter_shows_a_window(lowest, highest):
    preprocess = Preprocessing((8, 8), channels=1, mean=(1 / 3,), interpolation="bilinear")
    shares = set()
    for seed in range(8):
        crop = ScaleJitter(lowest, highest, preprocess, np.random.default_rng(seed))
        image = np.full((16, 32, 1), 200, np.uint8)
        made, region = crop(image, 16, 32), crop.region
        assert made.shape == (8, 8, 1) and region.offset == (0, 0)
        assert lowest * 0.9 <= crop.zoom <= highest * 1.1
        np.testing.assert_array_equal(made[: region.size[0], : region.size[1]], 200)
        np.testing.assert_array_equal(made[region.size[0] :], 85)
        shares.add(region.size[0])
        if lowest == highest == 0.5:  # 16 x 32 pixels become 4 x 8
            assert region.size == (4, 8) and region.box == (0, 0, 32, 16)
        if lowest == highest == 2:
            left, top, right, bottom = region.box
            assert (bottom - top, right - left) == (8, 8) and region.size == (8, 8)
    assert len(shares) > 1 or lowest == highest


class Blocks(Numbered):
    def read(self, index, how=None):
        return example(((1, 2, 7, 9), (5, 4, 15, 12)), size=16)


@pytest.mark.parametrize(
    "augment", [Augment(scale_jitter=0.5, flip=0.5), Augment(mosaic=0.7), Augment(mosaic=1)]
)
def test_batches_of_changed_pictures_stay_consistent(augment):
    source = source_of(Blocks(6), class_names=(), features=DENSE)
    preprocess = Preprocessing((16, 16), channels=1, mean=(0.0,), interpolation="bilinear")
    first = stream(source, preprocess, augment, batch_size=6, total_steps=3)
    again = stream(source, preprocess, augment, batch_size=6, total_steps=3)
    for batch, same in zip(first, again, strict=True):
        for name, array in batch.items():
            np.testing.assert_array_equal(array, same[name])
        known = batch["segmentation"] != 255
        levels = np.abs(batch["image"][..., 0].astype(int) - 60 * batch["segmentation"])
        assert np.mean(levels[known] > 40) < 0.2  # edges are smooth in images
        for instances, boxes, segmentation, classes in zip(
            *(batch[name] for name in ("instances", "boxes", "segmentation", "classes")),
            strict=True,
        ):
            for row in np.flatnonzero(boxes.any(axis=1)):
                there = instances == row + 1
                assert set(segmentation[there]) <= {classes[row] + 1}
                rows, columns = np.nonzero(there)
                left, top, right, bottom = boxes[row]
                assert left - 1 <= columns.min() and columns.max() <= right + 1
                assert top - 1 <= rows.min() and rows.max() <= bottom + 1


def test_crops_of_one_class_are_drawn_anew():
    class Mostly(Numbered):
        def read(self, index, how=None):
            return example(((0, 0, 3, 16), (0, 0, 0, 0)), size=16)

    source = source_of(Mostly(32), class_names=(), features=DENSE)
    preprocess = Preprocessing((8, 8), channels=1)
    uniform = []
    for share in (1, 0.75):
        augment = Augment(random_resized_crop=0.1, class_share=share)
        [batch] = stream(source, preprocess, augment, batch_size=32, total_steps=1)
        shares = (batch["segmentation"] == 0).mean((1, 2))
        uniform.append(np.mean((shares > 0.75) | (shares == 0)))
    assert uniform[0] > 0.5 > 0.2 > uniform[1]


def test_a_mosaic_shows_four_pictures():
    given = [example(((0, 0, 8, 8), (0, 0, 0, 0)), size=8) for _ in range(4)]
    for number, one in enumerate(given):
        one["image"][:] = number
        one["classes"][:] = number % 2, 0
    made = mosaic(given, DENSE, np.random.default_rng(3))
    levels = made["image"][..., 0]
    assert [levels[0, 0], levels[0, -1], levels[-1, 0], levels[-1, -1]] == [0, 1, 2, 3]
    assert made["boxes"].shape == (8, 4) and made["classes"].shape == (8,)
    assert made["boxes"].any(axis=1).tolist() == [True] * 4 + [False] * 4
    areas = sorted(np.bincount(levels.ravel()).tolist())
    sides = made["boxes"][:, 2:] - made["boxes"][:, :2]
    assert sorted(sides[:4].prod(axis=1).tolist()) == areas
    for row, (left, top, right, bottom) in enumerate(made["boxes"][:4].astype(int)):
        assert (made["instances"] == row + 1).sum() == (bottom - top) * (right - left)
        assert made["classes"][row] == levels[top, left] % 2
    assert made["depth"].min() > 2  # smaller, so farther


def test_of_too_many_objects_in_a_mosaic_the_largest_stay(monkeypatch):
    monkeypatch.setattr("vit_jax.data.transforms.mosaic.MOST_ROWS", 3)
    given = [example(((0, 0, 8, 8), (0, 0, 0, 0)), size=8) for _ in range(4)]
    made = mosaic(given, DENSE, np.random.default_rng(3))
    assert made["boxes"].shape == (3, 4) and set(np.unique(made["instances"])) == {0, 1, 2, 3}
    sides = made["boxes"][:, 2:] - made["boxes"][:, :2]
    assert sides.prod(axis=1).min() >= (made["instances"] == 0).sum()


def test_all_examples_have_the_rows_of_a_mosaic():
    source = source_of(Blocks(6), class_names=(), features=DENSE)
    augment, preprocess = Augment(mosaic=0.5), Preprocessing((16, 16), channels=1)
    [batch] = stream(source, preprocess, augment, batch_size=6, total_steps=1)
    after = train_features(source, augment)
    assert batch["boxes"].shape[1:] == after["boxes"].shape == (8, 4)
    assert batch["classes"].shape[1:] == after["classes"].shape == (8,)
    assert after["classes"].classes == ("a", "b")


def test_options_that_contradict_are_one_sentence():
    with pytest.raises(UserError, match="both crop; set one of them to 0"):
        Augment(scale_jitter=0.5, random_resized_crop=0.5)
    with pytest.raises(UserError, match="the smallest factor comes first"):
        Augment(scale_jitter=3)
    with pytest.raises(UserError, match="mosaic = 0.5 shows four images in one.*set it to 0"):
        Augment(mosaic=0.5).bind(LABELLED)
    with pytest.raises(UserError, match="mosaic = 0.5 puts single pictures together.*2 views"):
        Views(2, Augment(mosaic=0.5)).bind(DENSE)
