"""Batches of one size, of images that are read ahead."""

import threading

import numpy as np
from PIL import Image

from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.errors import DecodeError
from vit_jax.inference.streaming import MOST_AHEAD, read_batches

PREPROCESS = Preprocessing((4, 4))


def grey(level):
    return np.full((4, 4, 3), level, np.uint8)


def test_all_batches_have_one_size_and_images_keep_their_order():
    batches = list(read_batches([grey(i) for i in range(11)], PREPROCESS, batch_size=4))
    assert [batch.images.shape for batch in batches] == [(4, 4, 4, 3)] * 3
    assert [len(batch.names) for batch in batches] == [4, 4, 3]
    levels = np.concatenate([batch.images[:, 0, 0, 0] for batch in batches])
    assert levels.tolist() == [*range(11), 0]  # the padding is black


def test_few_images_make_a_small_batch():
    sizes = {n: len(next(read_batches([grey(1)] * n, PREPROCESS, 12)).images) for n in (1, 3, 9)}
    assert sizes == {1: 1, 3: 4, 9: 12}  # powers of two, and no more than the batch size
    assert list(read_batches([], PREPROCESS, 4)) == []


def test_what_cannot_be_read_keeps_its_place_and_its_name(tmp_path):
    (tmp_path / "text.png").write_text("no image")
    Image.fromarray(grey(7)).save(tmp_path / "good.png")
    names = [str(tmp_path / name) for name in ("gone.png", "good.png", "text.png")]
    [batch] = read_batches([*names, DecodeError("folder", "empty")], PREPROCESS, 4)
    assert batch.names == [*names, "folder"]
    causes = [error and error.cause for error in batch.errors]
    assert causes[0] == "there is no such file" and causes[1] is None
    assert "not an image" in causes[2] and causes[3] == "empty"
    assert batch.images[:, 0, 0, 0].tolist() == [0, 7, 0, 0]


def test_a_folder_a_path_and_pixels_may_be_mixed(tmp_path):
    for level in (1, 2):
        Image.fromarray(grey(level)).save(tmp_path / f"{level}.png")
    mixed = [tmp_path, tmp_path / "2.png", Image.fromarray(grey(3)), grey(4)]
    [batch] = read_batches(mixed, PREPROCESS, 8)
    assert batch.images[:5, 0, 0, 0].tolist() == [1, 2, 2, 3, 4]
    assert [name.rsplit("/")[-1] for name in batch.names] == [
        *("1.png", "2.png", "2.png"),
        *("image 3", "image 4"),
    ]


def test_an_endless_stream_is_read_only_as_far_as_it_must():
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield grey(asked % 256)

    before = threading.active_count()
    batches = read_batches(endless(), PREPROCESS, batch_size=2)
    for _ in range(10):
        next(batches)
    assert asked <= 2 * (10 + MOST_AHEAD + 2)
    batches.close()
    assert threading.active_count() == before
