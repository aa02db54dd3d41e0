"""Folders of images with masks and depth: how files pair up, what values mean, what is refused."""

import numpy as np
import pytest
from PIL import Image

from tests.support.streams import quiet, stream
from vit_jax.data import Augment, Preprocessing, list_splits, open_source
from vit_jax.data.pipeline import eval_batches
from vit_jax.errors import DecodeError, UserError

VALUES = np.arange(24).reshape(4, 6)


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


def photo(path, level=100, size=(4, 6)):
    save(path, np.full((*size, 3), level, np.uint8))


def mask(path, values, palette=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(np.asarray(values, np.uint8))
    if palette:
        image.putpalette(list(range(255, -1, -1)) * 3)  # 256 colours
    image.save(path)


@pytest.fixture
def rooms(tmp_path):
    """Three rooms of 4 x 6 pixels, one with a palette, and an image and a mask alone."""
    for name, palette in (("1", False), ("2", True), ("b/3", False)):
        photo(tmp_path / f"images/{name}.jpg")
        values = np.zeros((4, 6))
        values[0] = 1
        values[1, 0] = 255
        values[2] = 2
        mask(tmp_path / f"masks/{name}.png", values, palette)
    photo(tmp_path / "images/alone.png")
    mask(tmp_path / "masks/nobody.png", np.zeros((4, 6)))
    return tmp_path


def test_images_have_the_masks_of_their_names(rooms):
    source = open_source(f"masks:{rooms}", "train", holdout=0)
    assert len(source) == 3 and source.class_names == ("0", "1", "2")
    assert source.features["segmentation"].classes == ("0", "1", "2")
    assert list_splits(f"masks:{rooms}") == {"train": 2, "test": 1}
    for index in range(3):
        example = source[index]
        assert example["image"].shape == (4, 6, 3)
        assert example["segmentation"].dtype == np.int32
        expected = [[1] * 6, [255] + [0] * 5, [2] * 6, [0] * 6]
        assert example["segmentation"].tolist() == expected
    assert source.where(0).endswith(".jpg")
    alone, nobody = source.notes
    assert "1 images have no target and are left out: 'alone'" in alone
    assert "1 files of segmentation have no image and are left out: 'nobody'" in nobody


def test_names_and_values_come_from_a_file(rooms):
    (rooms / "classes.txt").write_text("-\nwall\n", encoding="utf-8")
    source = open_source(f"masks:{rooms}", "train", holdout=0)
    assert source.class_names == ("wall",)
    assert set(np.unique(source[0]["segmentation"])) == {0, 255}  # the value 2 has no name
    assert (source[0]["segmentation"] == 0).sum() == 6
    assert list(source[0]["changes"].values()) == [6]  # for the report
    assert set(source.listed(source[0])) == {"image", "segmentation"}
    (rooms / "classes.txt").write_text("a\na\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"classes.txt must have 1 to 254 different names"):
        open_source(f"masks:{rooms}", "train")


@pytest.mark.parametrize("layout", ["{split}/{kind}/{name}", "{kind}/{split}/{name}"])
def test_splits_are_folders_above_or_below(tmp_path, layout):
    for split, count in (("train", 3), ("val", 2)):
        for name in range(count):
            photo(tmp_path / layout.format(split=split, kind="images", name=f"{name}.png"))
            mask(
                tmp_path / layout.format(split=split, kind="annotations", name=f"{name}.png"),
                np.full((4, 6), name),
            )
    assert list_splits(f"masks:{tmp_path}") == {"train": 3, "validation": 2}
    assert len(open_source(f"masks:{tmp_path}", "test")) == 2  # val stands in for test
    assert open_source(f"masks:{tmp_path}", "train[:2]").class_names == ("0", "1", "2")


def test_depth_is_in_thousandths_or_floats_and_zero_where_unknown(tmp_path):
    for name in "ab":
        photo(tmp_path / f"images/{name}.png")
    save(tmp_path / "depth/a.png", (VALUES * 500).astype(np.uint16))
    floats = VALUES.astype(np.float32)
    floats[0, :3] = np.nan, np.inf, -1
    np.save(tmp_path / "depth/b.npy", floats)
    source = open_source(f"masks:{tmp_path}", "train", holdout=0)
    assert source.class_names == () and set(source.features) == {"image", "depth"}
    found = {source.where(i).rpartition("/")[2]: source[i]["depth"] for i in range(2)}
    np.testing.assert_allclose(found["a.png"], VALUES / 2)
    floats[0, :3] = 0
    np.testing.assert_array_equal(found["b.png"], floats)


def test_what_does_not_fit_is_counted_as_unreadable(tmp_path):
    for name in "abcd":
        photo(tmp_path / f"images/{name}.png")
        mask(tmp_path / f"masks/{name}.png", np.zeros((4, 6)))
    (tmp_path / "classes.txt").write_text("wall\n", encoding="utf-8")
    mask(tmp_path / "masks/a.png", np.zeros((3, 6)))
    save(tmp_path / "masks/b.png", np.stack([VALUES, VALUES, 0 * VALUES], 2).astype(np.uint8))
    (tmp_path / "masks/c.png").write_bytes(b"no image")
    source = open_source(f"masks:{tmp_path}", "train", holdout=0)
    causes = {}
    for index in range(4):
        try:
            source[index]
        except DecodeError as error:
            causes[source.where(index)[-5]] = str(error)
    assert "its mask has 6 x 3 pixels, but the image 6 x 4" in causes["a"]
    assert "must be grey or have a palette" in causes["b"] and len(causes) == 3
    assert "cannot be read" in causes["c"] or "no mask that can be read" in causes["c"]
    bad = quiet()
    [batch] = eval_batches(source, Preprocessing((4, 6)), batch_size=4, bad=bad)
    assert batch["mask"].sum() == 1 and len(bad.found) == 3


def test_crops_cut_files_and_masks_alike(tmp_path):
    level = (VALUES * 10).astype(np.uint8)
    large = np.kron(level, np.ones((20, 20), np.uint8))
    for name in range(4):
        save(tmp_path / f"images/{name}.jpg", np.repeat(large[..., None], 3, 2), quality=95)
        mask(tmp_path / f"masks/{name}.png", np.kron(VALUES, np.ones((20, 20))))
    source = open_source(f"masks:{tmp_path}", "train", holdout=0)
    augment = Augment(random_resized_crop=0.3, flip=0.5)
    for batch in stream(source, Preprocessing((32, 48)), augment, batch_size=4, total_steps=2):
        error = np.abs(batch["image"][..., 0].astype(int) - 10 * batch["segmentation"])
        assert np.median(error) <= 2 and np.mean(error > 40) < 0.15  # edges of large steps


def test_a_wrong_folder_is_one_sentence(tmp_path):
    for path, message in (
        (tmp_path / "none", "there is no such folder; use masks:PATH"),
        (tmp_path, "needs images/ and masks/ or depth/"),
    ):
        with pytest.raises(UserError, match=message):
            open_source(f"masks:{path}", "train")
    photo(tmp_path / "images/1.png")
    (tmp_path / "masks").mkdir()
    with pytest.raises(UserError, match=r"no image in .*images has a target of the same name in"):
        open_source(f"masks:{tmp_path}", "train")
    (tmp_path / "classes.txt").write_bytes(b"caf\xe9\n")
    mask(tmp_path / "masks/1.png", np.zeros((4, 6)))
    with pytest.raises(UserError, match="classes.txt:1: byte 0xe9 is not UTF-8"):
        open_source(f"masks:{tmp_path}", "train")


@pytest.mark.parametrize("values", [[0, 255], [0, 254]])
def test_values_that_are_no_numbers_of_classes_are_told(tmp_path, values):
    photo(tmp_path / "images/1.png", size=(1, 2))
    mask(tmp_path / "masks/1.png", [values])
    with pytest.raises(UserError, match=r"values of the training masks are .* a line of classes"):
        open_source(f"masks:{tmp_path}", "train")
    (tmp_path / "classes.txt").write_text("ground\n" + "-\n" * (values[1] - 1) + "thing\n")
    source = open_source(f"masks:{tmp_path}", "train", holdout=0)
    assert source.class_names == ("ground", "thing")
    assert source[0]["segmentation"].tolist() == [[0, 1]]


def test_names_match_in_any_unicode_form_and_a_damaged_mask_is_told_when_it_is_read(tmp_path):
    for value, names in enumerate((("cafe\u0301", "caf\u00e9"), ("a", "a"), ("b", "b"))):
        photo(tmp_path / f"images/{names[0]}.png")
        mask(tmp_path / f"masks/{names[1]}.png", np.full((4, 6), value))
    (tmp_path / "masks/b.png").write_bytes(b"nothing")
    source = open_source(f"masks:{tmp_path}", "train", holdout=0)
    assert (len(source), source.class_names, source.notes) == (3, ("0", "1"), ())
