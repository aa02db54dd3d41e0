"""Folders of frames: classes, splits, the order of frames, and what is damaged."""

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import Augment, Preprocessing, eval_batches, open_source, train_batches
from vit_jax.errors import DecodeError, UserError

PREPROCESS = Preprocessing((8, 8), frames=2, resize="squash")


def write(folder, frames=3, value=0, size=(8, 8)):
    """Frames of one grey each: value, value + 1, ..."""
    folder.mkdir(parents=True)
    for number in range(frames):
        Image.new("RGB", size, (value + number,) * 3).save(folder / f"{number + 8}.png")


@pytest.fixture
def root(tmp_path):
    for c, name in enumerate(("jump", "wave")):
        for clip in range(5):
            write(tmp_path / name / f"clip{clip}", value=100 * c + 10 * clip)
    return tmp_path


def greys(example):
    return example["image"][:, 0, 0, 0].tolist()


def test_a_clip_is_a_folder_and_is_held_out_as_a_whole(root):
    train, test = (open_source(f"frames:{root}", split) for split in ("train", "test"))
    assert (len(train), len(test)) == (8, 2)
    assert train.class_names == ("jump", "wave") and sorted(test.labels) == [0, 1]
    assert not set(train.files) & set(test.files) and not train.overlaps(test)
    for source in (train, test):
        for index, path in enumerate(source.files):
            name, clip = path.split("/")
            first = 100 * (name == "wave") + 10 * int(clip[-1])
            assert greys(source[index]) == [first, first + 1, first + 2]  # 8, 9, 10
            assert source[index]["label"] == (name == "wave")


def test_splits_may_be_folders(root, tmp_path_factory):
    divided = tmp_path_factory.mktemp("divided")
    for split in ("train", "val"):
        write(divided / split / "jump" / "one", value=7)
    source = open_source(f"frames:{divided}", "test")
    assert source.files == ("val/jump/one",) and greys(source[0]) == [7, 8, 9]


def test_without_labels_every_folder_of_frames_is_a_clip(root):
    source = open_source(f"frames:{root}", "train", labels=False, holdout=0.0)
    assert len(source) == 10 and set(source[0]) == {"image"}


def test_batches_have_the_frames_that_a_model_takes(root):
    source = open_source(f"frames:{root}", "train")
    batch = next(iter(eval_batches(source, PREPROCESS, batch_size=4)))
    assert batch["image"].shape == (4, 2, 8, 8, 3)
    assert np.diff(batch["image"][..., 0, 0, 0], axis=1).tolist() == [[2]] * 4  # the first and last
    how = {"batch_size": 4, "seed": 0, "start_step": 0, "total_steps": 2}
    for augment in (Augment(flip=0.5), Augment(random_resized_crop=0.3)):
        for batch in train_batches(source, PREPROCESS, augment, **how):
            assert batch["image"].shape == (4, 2, 8, 8, 3)


def test_a_damaged_clip_is_named(root):
    source = open_source(f"frames:{root}", "train")
    (root / source.files[0] / "9.png").write_bytes(b"damaged")
    with pytest.raises(DecodeError, match=rf"{source.files[0]}/9\.png"):
        source[0]
    write(root / "wave" / "short", frames=1)
    source = open_source(f"frames:{root}", "train", holdout=0.0)
    short = source.files.index("wave/short")
    with pytest.raises(DecodeError, match="wave/short: it has 1 frame, but the model takes 2"):
        source.read(short, PREPROCESS.decoding())


def test_frames_beside_clips_are_one_sentence(root):
    Image.new("RGB", (8, 8)).save(root / "wave" / "stray.png")
    with pytest.raises(UserError, match="wave contains images directly; each clip is a folder"):
        open_source(f"frames:{root}", "train")


def test_clips_and_images_do_not_mix(root):
    images, clips = (open_source(f"{kind}:{root}", "train") for kind in ("folder", "frames"))
    with pytest.raises(UserError, match="has single images, but the model takes clips of 2 frames"):
        eval_batches(images, PREPROCESS, batch_size=4)
    with pytest.raises(UserError, match="has clips, but the model takes single images"):
        eval_batches(clips, Preprocessing((8, 8)), batch_size=4)
