"""Batches of data with images that cannot be read."""

import numpy as np
import pytest

from tests.support.streams import (
    SMALL,
    assert_same,
    numbered,
    quiet,
    stream,
)
from vit_jax.data import (
    Augment,
    DecodeErrors,
    cache,
    eval_batches,
)
from vit_jax.errors import DecodeError, UserError


def shown(batches):
    """Label and level of every image of some batches."""
    labels = np.concatenate([batch["label"] for batch in batches])
    return labels, np.concatenate([batch["image"][:, 0, 0, 0] for batch in batches])


@pytest.mark.parametrize("room", [0, cache.IN_MEMORY_BYTES])
def test_another_image_takes_the_place_of_a_bad_one_and_nothing_else_moves(room, monkeypatch):
    monkeypatch.setattr(cache, "IN_MEMORY_BYTES", room)
    options = {"batch_size": 8, "total_steps": 50, "augment": Augment()}
    whole, _ = shown(stream(numbered(40), **options))
    said = []
    bad = DecodeErrors(say=said.append)
    labels, levels = shown(stream(numbered(40, torn=[3, 17]), bad=bad, **options))
    was_bad = np.isin(whole, [3, 17])
    assert was_bad.sum() == 20  # 10 epochs
    np.testing.assert_array_equal(labels[~was_bad], whole[~was_bad])
    np.testing.assert_array_equal(levels, labels)  # a substitute brings its own label
    assert not np.isin(labels, [3, 17]).any()
    assert len(set(labels[was_bad])) > 8  # not one and the same
    assert bad.found == {"3.png": "it is torn", "17.png": "it is torn"} and len(said) == 2


def test_substitutes_are_the_same_for_workers_hosts_and_runs_that_go_on():
    source = numbered(40, torn=range(0, 40, 3))
    options = {"batch_size": 8, "total_steps": 20}
    whole = stream(source, bad=quiet(), **options)
    assert_same(whole[7:], stream(source, bad=quiet(), start_step=7, **options))
    hosts = [
        stream(source, bad=quiet(), process_index=host, process_count=2, **options)
        for host in (0, 1)
    ]
    for batch, left, right in zip(whole, *hosts, strict=True):
        np.testing.assert_array_equal(
            batch["image"], np.concatenate([left["image"], right["image"]])
        )
    bad = quiet()
    assert_same(whole, stream(source, bad=bad, workers=2, **options))
    assert len(bad.found) == 14


def test_one_good_image_of_fifty_is_found():
    source = numbered(50, torn=set(range(50)) - {31})
    bad = quiet()
    labels, _ = shown(stream(source, batch_size=50, total_steps=1, bad=bad))
    assert set(labels) == {31} and len(bad.found) == 49


@pytest.mark.parametrize("examples", [3, 500])
def test_a_source_without_a_good_image_is_an_error(examples):
    source = numbered(examples, torn=range(examples))
    with pytest.raises(UserError, match=r"images of numbered train were tried.*\.png: it is torn"):
        stream(source, bad=quiet())


@pytest.mark.parametrize("workers", [0, 2])
def test_strict_training_ends_at_the_first_bad_image(workers):
    with pytest.raises(DecodeError, match=r"cannot read the image 3\.png: it is torn"):
        stream(numbered(10, torn=[3]), bad=quiet(strict=True), workers=workers)


def test_by_default_bad_images_are_named_on_the_standard_error(capfd):
    source = numbered(10, torn=[3])
    stream(source)
    list(eval_batches(source, SMALL, batch_size=4))
    lines = [line for line in capfd.readouterr().err.splitlines() if "3.png" in line]
    assert len(lines) == 2 and all("it is torn" in line for line in lines)


@pytest.mark.parametrize("hosts", [1, 2])
def test_evaluation_masks_bad_images_and_keeps_the_others_in_place(hosts):
    source = numbered(10, torn=[2, 9])
    bad = quiet()
    parts = [
        list(
            eval_batches(
                source, SMALL, batch_size=4, process_index=host, process_count=hosts, bad=bad
            )
        )
        for host in range(hosts)
    ]
    for step, blocks in enumerate(zip(*parts, strict=True)):
        levels, labels, mask = (
            np.concatenate(rows)
            for rows in zip(
                *((b["image"].max((1, 2, 3)), b["label"], b["mask"]) for b in blocks), strict=True
            )
        )
        here = np.arange(step * 4, step * 4 + 4)
        good = (here < 10) & ~np.isin(here, [2, 9])
        np.testing.assert_array_equal(mask, good)
        np.testing.assert_array_equal(levels, np.where(good, here, 0))
        np.testing.assert_array_equal(labels, np.where(good, here, 0))
    assert sorted(bad.found) == ["2.png", "9.png"]


def test_strict_evaluation_ends_at_the_first_bad_image():
    with pytest.raises(DecodeError, match=r"2\.png: it is torn"):
        list(eval_batches(numbered(10, torn=[2]), SMALL, batch_size=4, bad=quiet(strict=True)))
