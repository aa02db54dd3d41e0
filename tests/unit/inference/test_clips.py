"""Predictions of clips: arrays, folders of frames, folders of clips, and what is none."""

import jax
import numpy as np
import pytest
from PIL import Image

from tests.support.shapes import random_variables
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference import Classifier
from vit_jax.inference.find_images import find_clips
from vit_jax.models.inputs import input_shape
from vit_jax.models.timesformer.module import TimeSformer

CLIPS = np.random.default_rng(0).integers(0, 256, (3, 5, 8, 8, 3), np.uint8)


@pytest.fixture(scope="module")
def classifier():
    model = TimeSformer(
        num_classes=2, image_size=8, patch_size=4, num_frames=2, width=8, depth=1, heads=2
    )
    clip = jax.ShapeDtypeStruct(input_shape(model), np.float32)
    params = random_variables(model, clip)["params"]
    return Classifier(model, params, ("off", "on"), Preprocessing((8, 8), frames=2))


@pytest.fixture
def folder(tmp_path):
    for clip, frames in enumerate(CLIPS):
        (tmp_path / f"clip{clip}").mkdir()
        for number, frame in enumerate(frames):
            Image.fromarray(frame).save(tmp_path / f"clip{clip}" / f"{number}.png")
    return tmp_path


def test_the_same_clip_is_answered_alike_in_every_form(classifier, folder):
    by_array = classifier.predict(CLIPS)
    assert len(by_array) == 3 and len({one[0].probability for one in by_array}) == 3
    assert classifier.predict(folder) == by_array  # clips in the order of their names
    assert classifier.predict([folder / "clip1", CLIPS[2]]) == by_array[1:]
    assert classifier.predict(CLIPS[0]) == by_array[:1]
    assert classifier.predict([list(map(Image.fromarray, CLIPS[0]))]) == by_array[:1]
    assert classifier.predict(CLIPS[0, [1, 3]]) == by_array[:1]  # the frames that are taken


def test_clips_are_found_below_a_folder(folder):
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "clip1").rename(folder / "deep" / "er" / "clip1")
    found = [name.removeprefix(f"{folder}/") for name in find_clips([folder])]
    assert found == ["clip0", "clip2", "deep/er/clip1"]
    assert list(find_clips([folder / "clip0"])) == [f"{folder}/clip0"]
    assert list(find_clips(["none"])) == ["none"]


@pytest.mark.parametrize(
    ("clip", "sentence"),
    [
        (CLIPS[0, :1], "clip 1: it has 1 frame, but the model takes 2"),
        (CLIPS[0, 0], r"clip 1: it has the shape \(8, 8, 3\); a clip is \(frames, height"),
        ("none", "none: there is no such folder; a clip is a folder with an image for each frame"),
    ],
)
def test_what_is_no_clip_is_one_sentence(classifier, clip, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        classifier.predict(clip)
    assert "\n" not in str(caught.value)


def test_the_inputs_are_described_with_their_frames(classifier):
    assert classifier.inputs["images"].shape == ("batch", 2, 8, 8, 3)
    assert classifier.describe()["preprocessing"]["frames"] == 2
