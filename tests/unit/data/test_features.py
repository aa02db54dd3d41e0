"""Features: what a source lists flows into batches, and what a task lacks is said in a sentence."""

import numpy as np
import pytest

from tests.support.streams import SMALL, Numbered, quiet, source_of, stream
from vit_jax.data import Augment, eval_batches
from vit_jax.data.features import LABELLED, Feature, check_inputs, stacked
from vit_jax.data.images.decoding import AS_IT_IS
from vit_jax.errors import UserError

TARGET = {**LABELLED, "angle": Feature("target", shape=(2,))}


class Angles(Numbered):
    """Example i also has the float64 target (i, -i), and one that the source may not list."""

    def read(self, index, how=AS_IT_IS):
        example = super().read(index, how)
        return {**example, "angle": np.array([index, -index], float), "secret": "text"}


class Ragged(Numbered):
    def read(self, index, how=AS_IT_IS):
        return {**super().read(index, how), "angle": np.zeros(index + 1)}


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("crop", [0, 0.5], ids=["whole", "cropped"])
def test_further_features_stay_with_their_image(crop, in_memory):
    source = source_of(Angles(5, torn=[3]), features=TARGET, in_memory=in_memory)
    augment = Augment(random_resized_crop=crop)
    batches = stream(source, augment=augment, batch_size=5, total_steps=3, bad=quiet())
    for batch in batches:
        assert set(batch) == {"image", "label", "angle"} and batch["angle"].dtype == np.float32
        expected = np.stack([batch["label"], -batch["label"]], axis=1)
        np.testing.assert_array_equal(batch["angle"], expected)


def test_padding_and_unreadable_images_are_zeros_in_every_feature():
    source = source_of(Angles(5, torn=[0]), features=TARGET)
    first, last = eval_batches(source, SMALL, batch_size=3, bad=quiet())
    assert first["mask"].tolist() == [0, 1, 1] and last["mask"].tolist() == [1, 1, 0]
    assert first["angle"].tolist() == [[0, 0], [1, -1], [2, -2]]
    assert last["angle"].tolist() == [[3, -3], [4, -4], [0, 0]]


def test_a_ragged_feature_is_one_sentence():
    source = source_of(Ragged(4), features=TARGET)
    with pytest.raises(UserError, match=r"'angle' has the shape \(1,\) .* \(2,\) .* must pad it"):
        next(eval_batches(source, SMALL, batch_size=2))


def test_a_feature_that_is_listed_but_not_given_is_one_sentence():
    source = source_of(Numbered(4), features=TARGET)
    with pytest.raises(UserError, match="numbered train has no 'angle'.*it has image, label"):
        stream(source, augment=Augment())


@pytest.mark.parametrize(
    "features, sentence",
    [
        ({"picture": Feature("image")}, "one must be 'image'"),
        ({"image": Feature("target")}, "of kind image"),
        ({**LABELLED, "mask": Feature("mask")}, "'mask', which marks the padding"),
    ],
)
def test_names_of_features_are_checked(features, sentence):
    with pytest.raises(UserError, match=sentence):
        source_of(Numbered(2), features=features)


def test_a_kind_that_does_not_exist_has_a_nearest_one():
    with pytest.raises(UserError, match="no kind of feature 'masks'.*did you mean 'mask'"):
        Feature("masks")


@pytest.mark.parametrize(
    "inputs, features, sentence",
    [
        ({"depth": Feature("depth")}, None, r"gives no 'depth' \(depth\), which the task needs"),
        ({"angel": Feature("target")}, None, "it gives image, label, angle; did you mean 'angle'"),
        ({"angle": Feature("depth")}, None, "'angle' .* is of kind target, but .* kind depth"),
        ({"image": Feature("image", views=2)}, TARGET, "2 views of 'image', but .* a single"),
    ],
)
def test_a_task_is_told_what_a_source_lacks(inputs, features, sentence):
    source = source_of(Angles(2), features=TARGET)
    with pytest.raises(UserError, match=sentence):
        check_inputs(inputs, source, features=features)


def test_a_source_that_gives_all_passes():
    source = source_of(Angles(2), features=TARGET)
    check_inputs(LABELLED, source)
    views = {"image": Feature("image", views=2)}
    check_inputs(views, source, features={**TARGET, **views})


def test_stacked_numbers_have_the_types_of_jax():
    types = {np.float64: np.float32, np.int64: np.int32, np.float16: np.float16, np.uint8: np.uint8}
    for given, made in types.items():
        assert stacked("x", [np.zeros(2, given)] * 3).dtype == made
