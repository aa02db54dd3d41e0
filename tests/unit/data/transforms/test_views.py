"""Views and crops: independent, keyed by the example, of the sizes asked for."""

import numpy as np
import pytest
from PIL import Image

from tests.support.streams import Textured, assert_same, source_of, stream
from vit_jax.data import Augment, MultiCrop, Preprocessing, Views, open_source, train_features
from vit_jax.data.features import IMAGES, LABELLED, Feature
from vit_jax.data.images.decoding import AS_IT_IS
from vit_jax.data.transforms import image_ops
from vit_jax.data.transforms.views import view_rngs
from vit_jax.errors import UserError

TWO = Views(2, Augment(random_resized_crop=0.3, flip=0.5))
SIMPLE = {"color_jitter": 0, "grayscale": 0, "blur": (0,), "local_blur": 0, "solarize": (0,)}
CROPS = MultiCrop(local_crops=3, local_size=4)


@pytest.fixture
def source():
    return source_of(Textured(6))


@pytest.mark.parametrize("crop", [0, 0.3], ids=["whole", "cropped"])
def test_views_of_an_image_are_stacked_and_differ(source, crop):
    views = Views(3, Augment(random_resized_crop=crop, erase=1.0))
    (batch,) = stream(source, augment=views, batch_size=6, total_steps=1)
    assert batch["image"].shape == (6, 3, 8, 8, 1) and batch["image"].dtype == np.uint8
    assert batch["label"].shape == (6,)
    for image in batch["image"]:
        assert len({view.tobytes() for view in image}) == 3


@pytest.mark.parametrize("augment", [TWO, CROPS], ids=["views", "crops"])
def test_batches_hang_on_the_step_and_examples_on_their_epoch(source, augment):
    whole = stream(source, augment=augment, batch_size=3, total_steps=6)
    assert_same(
        whole[2:], stream(source, augment=augment, batch_size=3, total_steps=6, start_step=2)
    )
    name = "image" if augment is TWO else "global_crops"

    def appearances(batch_size):
        seen = {}
        batches = stream(
            source, augment=augment, batch_size=batch_size, total_steps=12 // batch_size
        )
        labels = np.concatenate([batch["label"] for batch in batches])
        images = np.concatenate([batch[name] for batch in batches])
        for position, (label, image) in enumerate(zip(labels, images, strict=True)):
            seen[position // 6, int(label)] = image.tobytes()
        return seen

    assert appearances(2) == appearances(6) and len(set(appearances(2).values())) == 12


@pytest.mark.slow
@pytest.mark.parametrize("augment", [TWO, CROPS], ids=["views", "crops"])
def test_workers_give_the_same_views(train, augment):
    assert_same(
        stream(train, augment=augment, total_steps=4),
        stream(train, augment=augment, total_steps=4, workers=2),
    )


def test_masks_are_seen_from_the_same_views():
    class Scenes(Textured):
        def read(self, index, how=AS_IT_IS):
            example = super().read(index, how)
            return {**example, "cells": example["image"][:, :, 0].copy()}

    features = {**LABELLED, "cells": Feature("mask")}
    source = source_of(Scenes(4), features=features)
    for augment in (TWO, Views(2, Augment(flip=0.5, pad_crop=1))):
        (batch,) = stream(source, Preprocessing((12, 16), channels=1), augment, total_steps=1)
        assert batch["cells"].shape == (32, 2, 12, 16)
    border = batch["cells"] == 255
    same = (batch["image"][..., 0] == batch["cells"]) | border
    assert same.all() and border.mean() < 0.3  # without a resize they are equal to the bit


def test_crops_have_two_sizes_and_come_from_large_and_small_parts(source):
    class Ramp(Textured):
        def read(self, index, how=AS_IT_IS):
            rows, columns = np.mgrid[:32, :32]
            return {"image": np.uint8(4 * (rows + columns))[:, :, None], "label": index}

    crops = MultiCrop(local_crops=4, local_size=6, **SIMPLE)
    (batch,) = stream(source_of(Ramp(8)), augment=crops, batch_size=8, total_steps=1)
    assert set(batch) == {"global_crops", "local_crops", "label"}
    assert batch["global_crops"].shape == (8, 2, 8, 8, 1)
    assert batch["local_crops"].shape == (8, 4, 6, 6, 1)
    # Brightness grows by 4 for each row and column: its range says how large a part is shown.
    spans = {
        name: np.ptp(batch[name].astype(int), axis=(2, 3, 4)) / 248
        for name in batch
        if name != "label"
    }
    # A share s of the area has sides of about sqrt(s) of the image's: 0.63 to 1 and 0.22 to 0.63,
    # less half a pixel of the crop at every end.
    assert spans["global_crops"].min() > 0.5 and spans["local_crops"].max() < 0.65
    assert spans["local_crops"].min() < 0.35
    unequal = [len({crop.tobytes() for crop in image}) == 4 for image in batch["local_crops"]]
    assert all(unequal)


def test_without_small_crops_there_are_only_large_ones(source):
    crops = MultiCrop(global_crops=3, local_crops=0, **SIMPLE)
    (batch,) = stream(source, augment=crops, batch_size=6, total_steps=1)
    assert set(batch) == {"global_crops", "label"} and batch["global_crops"].shape[1] == 3


def test_photographs_are_cut_at_their_original_size(tmp_path):
    for number in range(3):
        noise = np.random.default_rng(number).integers(0, 256, (60, 80, 3), np.uint8)
        Image.fromarray(noise).save(tmp_path / f"{number}.jpg", quality=95)
    source = open_source(f"folder:{tmp_path}", "all")
    for augment in (CROPS, TWO):
        (batch,) = stream(source, Preprocessing((16, 16)), augment, batch_size=3, total_steps=1)
        assert all(images.dtype == np.uint8 and images.shape[-1] == 3 for images in batch.values())


def test_the_second_large_crop_alone_is_solarized():
    crops = MultiCrop(**{**SIMPLE, "flip": 0, "solarize": (0.0, 1.0)})
    image = np.uint8([[[0], [127], [128], [255]]])
    made = [crops.change(image, place, np.random.default_rng(0)) for place in range(3)]
    assert [crop[0, :, 0].tolist() for crop in made] == [
        [0, 127, 128, 255],
        [0, 127, 127, 0],
        [0, 127, 128, 255],
    ]


@pytest.mark.parametrize("shape", [(8, 8, 1), (8, 8, 3)])
def test_all_changes_keep_shape_and_type(shape):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    crops = MultiCrop(grayscale=0.5, solarize=(0.5, 0.5))
    for seed in range(30):
        changed = crops.change(image, seed % 4, np.random.default_rng(seed))
        assert changed.shape == shape and changed.dtype == np.uint8


def test_a_third_of_the_circle_turns_red_into_green_and_grey_stays():
    red = Image.new("RGB", (1, 1), (255, 0, 0))
    assert image_ops.hue(red, 1 / 3).getpixel((0, 0)) == (0, 255, 0)
    assert image_ops.hue(red, -1 / 3).getpixel((0, 0)) == (0, 0, 255)
    grey = Image.new("L", (1, 1), 7)
    assert image_ops.hue(grey, 0.3) is grey


def test_features_say_what_batches_hold(source):
    assert train_features(source, TWO) == {**LABELLED, "image": Feature("image", views=2)}
    features = train_features(source, CROPS)
    assert features == {
        "label": Feature("label"),
        "global_crops": Feature("image", views=2),
        "local_crops": Feature("image", views=3, size=(4, 4)),
    }
    (batch,) = stream(source, augment=CROPS, total_steps=1)
    assert set(batch) == set(features)


def test_views_have_generators_that_do_not_hang_on_each_other():
    first, second = view_rngs(np.random.default_rng(0), 2)
    again, _ = view_rngs(np.random.default_rng(0), 2)
    assert first.random() == again.random() != second.random()


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"global_crops": 0}, "global_crops is 0; it must be a whole number from 1"),
        ({"local_scale": (0.4, 0.05)}, "local_scale is .*the smaller first"),
        ({"global_scale": (0.4, 1.5)}, "above 0 and at most 1"),
        ({"flip": 2}, "flip is 2; it must be from 0 to 1"),
        ({"blur": 0.5}, "blur is 0.5; it must be a tuple"),
    ],
)
def test_options_out_of_range_are_one_sentence(fields, sentence):
    with pytest.raises(UserError, match=f"MultiCrop: .*{sentence}"):
        MultiCrop(**fields)


def test_what_cannot_be_cropped_or_coloured_is_refused():
    with pytest.raises(UserError, match="cells could not follow; use Views"):
        MultiCrop().bind({**IMAGES, "cells": Feature("mask")})
    with pytest.raises(UserError, match="4 channels; set color_jitter"):
        MultiCrop().check_channels(4)
    MultiCrop(**SIMPLE).check_channels(4)
    with pytest.raises(UserError, match="Views: n is 0"):
        Views(0, Augment())
