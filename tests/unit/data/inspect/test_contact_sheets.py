"""Sheets show the right images in the right places, whatever the images and names are."""

import dataclasses
import warnings

import numpy as np
import pytest

from vit_jax.data import Augment, Preprocessing, Source, train_batches
from vit_jax.data.inspect.contact_sheets import CELL, as_trained, augmented_sheet, contact_sheet
from vit_jax.data.texts import TextOptions, make_texts
from vit_jax.errors import DecodeError

STEP = CELL + 4  # from one cell to the next


class Painted:
    """Examples of plain colours; None is an image that cannot be read."""

    def __init__(self, colours, labels, shape=(6, 9)):
        self.colours, self.labels, self.shape = colours, np.array(labels), shape

    def __len__(self):
        return len(self.colours)

    def __getitem__(self, index):
        if self.colours[index] is None:
            raise DecodeError(f"{index}.jpg", "the file is empty")
        pixels = np.full((*self.shape, 3), self.colours[index], np.uint8)
        return {"image": pixels, "label": self.labels[index]}


class PaintedSource(Source):
    """A source that knows its labels without a look at the images."""

    @property
    def labels(self):
        return self.examples.labels


def painted(colours, labels, names, **options):
    examples = Painted(colours, labels, **options)
    several = examples.labels.ndim == 2
    return PaintedSource(
        "painted", "train", tuple(names), "painted", False, examples, multi_label=several
    )


RED, GREEN, BLUE = (250, 10, 10), (10, 250, 10), (10, 10, 250)


def cells(sheet, rows, columns, top=4):
    """The colour in the middle of every cell."""
    pixels = np.asarray(sheet)
    left = sheet.width - columns * STEP
    middles = [top + row * STEP + CELL // 2 for row in range(rows)]
    across = [left + column * STEP + CELL // 2 for column in range(columns)]
    return [[tuple(pixels[y, x].tolist()) for x in across] for y in middles]


def test_a_row_for_each_class_in_their_order():
    source = painted([BLUE, RED, GREEN, RED, BLUE], [1, 0, 2, 0, 1], ["red", "blue", "green"])
    sheet = contact_sheet(source)
    white = (255, 255, 255)
    assert cells(sheet, 3, 2) == [[RED, RED], [BLUE, BLUE], [GREEN, white]]


def test_no_more_rows_and_columns_than_asked_for():
    source = painted([RED] * 60, np.arange(60) % 20, [f"class {n}" for n in range(20)])
    small, large = (contact_sheet(source, rows=3, columns=columns) for columns in (1, 2))
    assert large.width - small.width == STEP
    assert contact_sheet(source, rows=4, columns=1).height - small.height == STEP
    assert contact_sheet(source, rows=3).tobytes() == contact_sheet(source, rows=3).tobytes()


def test_images_that_cannot_be_read_are_passed():
    source = painted([None, RED, None, None], [0, 0, 0, 1], ["some", "none"])
    assert cells(contact_sheet(source), 2, 1) == [[RED], [(255, 255, 255)]]
    assert contact_sheet(painted([None], [0], ["none"])).width > 0


def test_a_image_with_several_labels_stands_in_each_row():
    source = painted([RED, BLUE], [[1, 1], [0, 1]], ["first", "second"])
    rows = cells(contact_sheet(source), 2, 2)
    assert rows[0][0] == RED and set(rows[1]) == {RED, BLUE}


@pytest.mark.parametrize("shape", [(1, 1), (1, 300), (300, 1), (500, 700), (1, 2_000_000)])
def test_the_aspect_is_kept(shape):
    source = painted([RED], [0], ["thin"], shape=shape)
    red = np.all(np.asarray(contact_sheet(source)) == RED, axis=2)
    height, width = red.any(axis=1).sum(), red.any(axis=0).sum()
    assert max(height, width) == CELL
    assert abs(height - max(1, CELL * shape[0] / max(shape))) <= 1
    assert abs(width - max(1, CELL * shape[1] / max(shape))) <= 1


def test_names_in_any_script_are_drawn_without_a_word():
    names = ["кошка", "猫", "قطة", "חתול", "a\nb", "x" * 300, "", "\udcff", "🐈", "$5_$", "e\u0301"]
    source = painted([RED] * len(names), range(len(names)), names)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sheet = contact_sheet(source)
    assert sheet.width < 500  # the long name is shortened


def test_what_is_drawn_is_what_training_sees(train):
    """The batches of a run with that seed hold the very same pixels."""
    preprocess, augment = Preprocessing((8, 8), 1), Augment(rotate=20, shift=0.2, flip=0.5)
    seed, size = 7, 479  # three batches make an epoch of the 1,437 images
    batches = list(
        train_batches(
            train, preprocess, augment, batch_size=size, seed=seed, start_step=0, total_steps=6
        )
    )
    for epoch in (0, 1):
        seen = np.concatenate([batch["image"] for batch in batches[3 * epoch : 3 * epoch + 3]])
        seen = {image.tobytes() for image in seen}
        for index in range(0, len(train), 100):
            image = as_trained(train, index, epoch, preprocess, augment, seed)
            assert image.shape == (8, 8, 1) and image.tobytes() in seen


def test_an_image_with_several_captions_is_drawn_as_training_sees_it():
    """Training draws a caption before it augments."""
    source = painted([RED], [0], ["red"])
    texts = make_texts([["a red one", "red"]], TextOptions(length=8), "it")
    source = dataclasses.replace(
        source, texts=texts, features={**source.features, "text": texts.feature}
    )
    preprocess, augment = Preprocessing((6, 9)), Augment(color_jitter=0.5)
    batches = train_batches(
        source, preprocess, augment, batch_size=1, seed=3, start_step=0, total_steps=4
    )
    for epoch, batch in enumerate(batches):
        image = as_trained(source, 0, epoch, preprocess, augment, 3)
        np.testing.assert_array_equal(image, batch["image"][0])


def test_random_crops_replace_the_central_one():
    source = painted([RED], [0], ["red"])
    preprocess, augment = Preprocessing((5, 4)), Augment(random_resized_crop=0.5)
    crops = []

    class Recorded(Augment):
        def decoding(self, preprocess, rng):
            how = super().decoding(preprocess, rng)

            def crop(image, height, width):
                crops.append(image.shape)
                return how.crop(image, height, width)

            return dataclasses.replace(how, crop=crop)

    image = as_trained(source, 0, 0, preprocess, Recorded(**dataclasses.asdict(augment)))
    assert crops == [(6, 9, 3)] and image.shape == (5, 4, 3)


def test_a_row_is_the_image_and_its_epochs():
    source = painted([RED, GREEN, BLUE], [0, 1, 2], ["red", "green", "blue"])
    half_black = Augment(shift=1.0)
    sheet = augmented_sheet(source, Preprocessing((6, 9)), half_black, epochs=3)
    rows = cells(sheet, 3, 4, top=22)
    assert [row[0] for row in rows] == [RED, GREEN, BLUE]
    still = augmented_sheet(source, Preprocessing((6, 9)), Augment(), epochs=3)
    assert cells(still, 3, 4, top=22) == [[colour] * 4 for colour in (RED, GREEN, BLUE)]
    assert sheet.tobytes() != still.tobytes()


def test_of_few_classes_several_images_are_augmented():
    source = painted([RED] * 9, [0] * 5 + [1] * 4, ["a", "b"])
    few = augmented_sheet(source, Preprocessing((4, 4)), Augment(), images=4, epochs=1)
    more = augmented_sheet(source, Preprocessing((4, 4)), Augment(), images=8, epochs=1)
    assert more.height - few.height == 4 * STEP
    noted = augmented_sheet(
        source, Preprocessing((4, 4)), Augment(), images=4, epochs=1, note="MixUp comes later"
    )
    assert noted.height > few.height
