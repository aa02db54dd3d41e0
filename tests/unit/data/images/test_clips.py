"""Clips: which frames are taken, their order, and preprocessing of all of them alike."""

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import Augment, Preprocessing
from vit_jax.data.features import LABEL, Feature
from vit_jax.data.images.clips import decode_clip, frame_files, places, still
from vit_jax.data.images.decoding import Decoding
from vit_jax.errors import DecodeError, UserError

RANDOM = np.random.default_rng(0).integers(0, 256, (6, 20, 24, 3), np.uint8)
CLIP = {"image": Feature("video"), "label": LABEL}


@pytest.mark.parametrize(
    ("there", "wanted", "expected"),
    [
        (8, 8, [0, 1, 2, 3, 4, 5, 6, 7]),
        (8, 4, [1, 3, 5, 7]),
        (9, 3, [1, 4, 7]),
        (7, 1, [3]),
        (3, 0, [0, 1, 2]),
        (10, 4, [1, 3, 6, 8]),
    ],
)
def test_frames_are_the_middles_of_equal_parts(there, wanted, expected):
    assert places(there, wanted) == expected


def test_frames_are_in_the_order_of_the_numbers_in_their_names(tmp_path):
    for name in ("10.png", "9.png", "2.png", ".1.png", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert frame_files(tmp_path) == ["2.png", "9.png", "10.png"]


def test_only_the_frames_that_are_taken_are_decoded(tmp_path):
    for number, frame in enumerate(RANDOM):
        Image.fromarray(frame).save(tmp_path / f"{number}.png")
    (tmp_path / "0.png").write_bytes(b"damaged")
    found = decode_clip(tmp_path, "clip", Decoding(3, frames=3))
    np.testing.assert_array_equal(found, RANDOM[1::2])
    with pytest.raises(DecodeError, match=r"0\.png"):
        decode_clip(tmp_path, "clip", Decoding(3))


def test_each_frame_is_preprocessed_as_an_image():
    clips = Preprocessing((8, 8), 1, resize="squash", frames=3)
    images = Preprocessing((8, 8), 1, resize="squash")
    assert clips.shape == (3, 8, 8, 1)
    found = clips(clips.decode(RANDOM))
    np.testing.assert_array_equal(found, np.stack([images(RANDOM[i]) for i in (1, 3, 5)]))
    np.testing.assert_array_equal(clips.normalize(found), images.normalize(found))
    assert Preprocessing.from_dict(clips.to_dict()) == clips
    assert "frames" not in images.to_dict()


def test_all_frames_are_augmented_with_the_same_random_numbers():
    """Of one frame, repeated, all frames stay equal; the next clip is changed otherwise."""
    clip = np.repeat(RANDOM[:1], 3, axis=0)
    augment = Augment(pad_crop=4, flip=0.5, rotate=20.0, color_jitter=0.5, erase=1.0)
    transform = augment.bind(CLIP)
    rng = np.random.default_rng(1)
    first, second = (transform({"image": clip, "label": 0}, rng)["image"] for _ in range(2))
    assert first.shape == clip.shape
    for made in (first, second):
        assert (made == made[:1]).all() and (made != clip).any()
    assert (first != second).any()
    alone = Augment.bind(augment, {"image": Feature("image"), "label": LABEL})
    image = alone({"image": clip[0], "label": 0}, np.random.default_rng(1))["image"]
    np.testing.assert_array_equal(first[0], image)


def test_the_middle_frame_stands_for_a_clip():
    np.testing.assert_array_equal(still(RANDOM), RANDOM[3])
    assert still(RANDOM[0]) is not None and still(RANDOM[0]).shape == (20, 24, 3)


@pytest.mark.parametrize(
    ("clip", "sentence"),
    [
        (RANDOM[:2], "it has 2 frames, but the model takes 3; use a longer clip"),
        (RANDOM[0], r"shape \(20, 24, 3\); a clip is \(frames, height, width, channels\)"),
        ("/no/such/folder", "there is no such folder; a clip is a folder with an image for each"),
        (__file__, "it is a file; a clip is a folder"),
        ([RANDOM[0], RANDOM[1], RANDOM[2, :9]], "frames of 9 x 24 and of 20 x 24 pixels"),
        (b"bytes", "it is an image, but the model takes clips"),
    ],
)
def test_what_is_no_clip_is_one_sentence(clip, sentence):
    with pytest.raises(DecodeError, match=sentence) as caught:
        Preprocessing((8, 8), frames=3).decode(clip, name="this")
    assert "\n" not in str(caught.value)


def test_a_folder_without_frames_is_one_sentence(tmp_path):
    with pytest.raises(DecodeError, match="it is a folder without images, and a clip has one"):
        Preprocessing((8, 8), frames=3).decode(tmp_path, name="this")


def test_pixels_that_are_no_clip_are_one_sentence():
    with pytest.raises(UserError, match=r"\(20, 24, 3\) are no clip.* clips of 3 frames"):
        Preprocessing((8, 8), frames=3)(RANDOM[0])
    with pytest.raises(UserError, match="a clip cannot be used: it has 2 frames"):
        Preprocessing((8, 8), frames=3)(RANDOM[:2])
    with pytest.raises(UserError, match="frames = 3 and max_tokens = 4"):
        Preprocessing((8, 8), frames=3, max_tokens=4)
    with pytest.raises(UserError, match="frames is -1"):
        Preprocessing((8, 8), frames=-1)
