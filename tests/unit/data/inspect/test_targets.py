"""The report and the sheets of data with masks, boxes and depth."""

import json

import numpy as np
import pytest

from tests.support.streams import Numbered, source_of
from vit_jax.commands.data_report import lines, tables
from vit_jax.data import Augment, Preprocessing
from vit_jax.data.features import IMAGES, Feature
from vit_jax.data.inspect.contact_sheets import CELL, augmented_sheet, contact_sheet
from vit_jax.data.inspect.overlays import (
    class_colors,
    depth_colours,
    draw_boxes,
    draw_depth,
    draw_mask,
    views,
)
from vit_jax.data.inspect.report import inspect_dataset
from vit_jax.data.inspect.targets import look_at
from vit_jax.data.sources.dense.files import rows_of_boxes

FEATURES = {
    **IMAGES,
    "segmentation": Feature("mask", classes=("background", "cat", "dog")),
    "depth": Feature("depth"),
    "boxes": Feature("boxes", (2, 4)),
    "classes": Feature("target", (2,), classes=("cat", "dog")),
}
STEP = CELL + 4


def sound(level=0):
    segmentation = np.zeros((4, 6), np.int32)
    segmentation[:2, :3], segmentation[3] = 1, 255
    depth = np.full((4, 6), 2, np.float32)
    depth[0], depth[1, 0] = 0, 8
    return {
        "image": np.full((4, 6, 3), level, np.uint8),
        "segmentation": segmentation,
        "depth": depth,
        "boxes": np.array([[0, 0, 3, 2], [0, 0, 0, 0]], np.float32),
        "classes": np.zeros(2, np.int32),
    }


class Given(Numbered):
    def __init__(self, *changes):
        super().__init__(len(changes))
        self.changes = changes

    def read(self, index, how=None):
        return {**sound(index), **self.changes[index]}


def boxes(*rows):
    return {"boxes": np.array([*rows, [0, 0, 0, 0]][:2], np.float32)}


def report_of(*changes):
    source = source_of(Given(*changes), class_names=("cat", "dog"), features=FEATURES)
    return inspect_dataset({"train": source})


def test_targets_are_summed_up():
    found = report_of({}, boxes()).splits["train"].targets
    assert found.objects == (1, 0) and (found.empty, found.most) == (1, 1)
    assert found.shares == pytest.approx((2 / 3, 1 / 3, 0), abs=1e-6) and found.ignored == 0.25
    assert found.depth == (2, 2, 8) and found.unknown == 0.25 and not found.faults


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"segmentation": np.zeros((4, 5), np.int32)}, "segmentation of another size than"),
        ({"segmentation": np.full((4, 6), 3)}, "segmentation with values that are no class"),
        ({"segmentation": np.full((4, 6), -1)}, "segmentation with values that are no class"),
        ({"depth": np.full((4, 6), -1.0)}, "depth below 0 or not finite"),
        ({"depth": np.full((4, 6), np.nan)}, "depth below 0 or not finite"),
        (boxes([2, 2, 2, 3]), "boxes without area"),
        (boxes([7, 0, 9, 2]), "boxes outside of the image"),
        (boxes([4, 0, 9, 2]), "boxes that reach beyond the image"),
        ({"classes": np.array([2, 0])}, "classes with numbers of no class"),
        (rows_of_boxes([[0, 0, 2, 2]] * 3, [0] * 3, (4, 6), 2)[0], "more than 2 objects"),
    ],
)
def test_what_is_wrong_is_counted_and_told(change, fault):
    report = report_of({}, change, change)
    [(what, count)] = report.splits["train"].targets.faults.items()
    assert what.startswith(fault) and count == 2
    assert any(told.startswith(f"2 images of train with {fault}") for told in report.findings)


def test_classes_that_never_occur_and_depth_that_is_unknown_are_told():
    told = " ".join(report_of({"depth": np.zeros((4, 6), np.float32)}).findings)
    assert "1 of 2 classes have no objects in train: 'dog'" in told
    assert "1 of 3 classes have no pixels in train: 'dog'" in told
    assert "no depth of train is known" in told


def test_the_command_shows_targets_and_writes_json():
    report = report_of({}, boxes())
    shown = [
        [str(cell) for column in table.columns for cell in column.cells] for table in tables(report)
    ]
    assert "images without objects" in shown[0] and "2 / 2 / 8" in shown[0]
    assert shown[1][:4] == ["background", "cat", "dog", "66.67%"]
    assert shown[2] == ["cat", "dog", "1", "0"]
    assert not any("pre-training only" in line for line in lines(report, []))
    json.dumps(report.to_dict())


# --------------------------------------------------------------------------------------- drawing


def test_a_mask_is_drawn_over_its_image():
    image = np.full((1, 3, 3), 100, np.uint8)
    drawn = draw_mask(image, np.array([[0, 1, 255]]))
    assert drawn[0, 0].tolist() == [100] * 3 and drawn[0, 2].tolist() == [115] * 3
    expected = np.rint(0.45 * 100 + 0.55 * class_colors(256)[1].astype(float))
    np.testing.assert_array_equal(drawn[0, 1], expected)
    assert draw_mask(image, np.zeros((1, 3), int), background=False)[0, 0].tolist() != [100] * 3
    assert len(np.unique(class_colors(40), axis=0)) == 40


def test_boxes_are_outlines_and_padding_is_not_drawn():
    image = np.zeros((5, 6, 3), np.uint8)
    given = np.array([[1, 1, 5, 4], [0, 0, 0, 0], [-3, 3, 2, 99]], np.float32)
    drawn = draw_boxes(image, given, np.array([0, 1, 2])).any(axis=2).astype(int)
    assert drawn.tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 1, 0],
        [0, 1, 0, 0, 1, 0],
        [1, 1, 1, 1, 1, 0],
        [1, 1, 0, 0, 0, 0],
    ]
    assert not image.any()


def test_near_is_bright_and_unknown_is_red():
    drawn = draw_depth(np.array([[1.0, 2.0, 0.0]]))
    assert drawn[0].tolist() == [[255] * 3, [40] * 3, [90, 0, 0]]
    assert draw_depth(np.zeros((2, 2))).shape == (2, 2, 3)


def test_sheets_show_targets_beside_their_image():
    source = source_of(Given({}, {}, {}), class_names=("cat", "dog"), features=FEATURES)
    assert len(views(sound(), FEATURES)) == 4
    sheet = contact_sheet(source, rows=2, columns=8)
    assert (sheet.width - 12, sheet.height) == (8 * STEP, 2 * STEP + 4)
    grey = {**FEATURES, "segmentation": Feature("mask")}
    example = {**sound(), "image": np.zeros((4, 6, 1), np.uint8)}
    assert [part.shape for part in views(example, grey)] == [(4, 6, 3)] * 4
    assert len(views({**sound(), "depth": np.zeros((2, 2))}, FEATURES)) == 3
    made = augmented_sheet(source, Preprocessing((8, 8)), Augment(flip=0.5), images=2, epochs=1)
    assert made.width - 12 == 2 * STEP


def test_a_source_without_names_is_looked_at_too():
    plain = {**IMAGES, "boxes": Feature("boxes"), "cells": Feature("mask")}
    example = {"image": sound()["image"], **boxes([0, 0, 2, 2]), "cells": np.zeros((4, 6))}
    assert look_at(example, plain).objects == (-1,)
    report = inspect_dataset({"train": source_of(Only(example), class_names=(), features=plain)})
    assert report.splits["train"].targets.objects == () and report.findings == ()


class Only(Numbered):
    def __init__(self, example):
        super().__init__(1)
        self.example = example

    def read(self, index, how=None):
        return self.example


def test_near_is_bright_and_unknown_is_grey():
    depth = np.array([[1.0, 2.0, 8.0, np.nan]], np.float32)
    near, middle, far, unknown = depth_colours(depth, relative=False)[0].astype(int)
    assert near.sum() > middle.sum() > far.sum() and (unknown == 128).all()
    far, near = depth_colours(np.array([[0.5, 1.0]]), relative=True)[0].astype(int)
    assert near.sum() > far.sum()
    assert (depth_colours(np.full((2, 2), np.nan), relative=True) == 128).all()
