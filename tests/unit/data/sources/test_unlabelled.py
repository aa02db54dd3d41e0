"""Sources without labels: flat folders, and datasets whose labels are not used."""

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from tests.support.streams import SMALL, quiet, stream
from vit_jax.data import Augment, Preprocessing, eval_batches, list_splits, open_source
from vit_jax.data.features import Feature, check_inputs
from vit_jax.errors import UserError

LABEL = {"label": Feature("label")}


@pytest.fixture
def make(tmp_path):
    """Writes grey images of 4 x 4 pixels, image i of level i; the folder is `pets`."""

    def write(*paths):
        for level, path in enumerate(paths):
            file = tmp_path / "pets" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (4, 4), (level,) * 3).save(file)
        return tmp_path / "pets"

    return write


def flat(count):
    return [f"{number}.png" for number in range(count)]


def opened(dataset, split="all", **options):
    return open_source(dataset, split, **options)


def files_of(dataset, split, **options):
    return set(open_source(dataset, split, **options).files)


def test_images_directly_in_a_folder_are_a_source_without_labels(make):
    root = make(*flat(10))
    train, test = (open_source(f"folder:{root}", split) for split in ("train", "test"))
    for source in (train, test):
        assert source.labels is None and source.class_names == () and not source.multi_label
        assert set(source[0]) == {"image"}
    assert (len(train), len(test)) == (8, 2) and not train.overlaps(test)
    assert set(train.files) | set(test.files) == set(flat(10))
    assert train.fingerprint != test.fingerprint
    assert train.fingerprint == open_source(f"folder:{root}", "train").fingerprint
    assert list_splits(f"folder:{root}") == {"train": 8, "test": 2}


def test_their_batches_have_no_label(make):
    source = opened(f"folder:{make(*flat(5))}")
    for crop in (0, 0.5):
        batches = stream(source, augment=Augment(random_resized_crop=crop), total_steps=2)
        assert all(set(batch) == {"image"} for batch in batches)
    *_, last = eval_batches(source, SMALL, batch_size=3)
    assert set(last) == {"image", "mask"} and last["mask"].tolist() == [1, 1, 0]


def test_an_unreadable_image_is_replaced_in_training_and_masked_in_evaluation(make):
    root = make(*flat(5))
    (root / "2.png").write_bytes(b"torn")
    source = opened(f"folder:{root}")
    for batch in stream(source, augment=Augment(), batch_size=5, total_steps=2, bad=quiet()):
        assert set(batch["image"][:, 0, 0, 0]) == {0, 1, 3, 4}
    (batch,) = eval_batches(source, SMALL, batch_size=5, bad=quiet())
    assert batch["mask"].sum() == 4


def test_one_file_with_two_names_is_one_image(make):
    root = make(*flat(6))
    (root / "again.png").hardlink_to(root / "3.png")
    assert len(opened(f"folder:{root}")) == 6


def test_flat_splits_are_splits(make):
    root = make("train/1.png", "train/2.png", "val/3.png")
    assert files_of(f"folder:{root}", "train") == {"train/1.png", "train/2.png"}
    assert files_of(f"folder:{root}", "test") == {"val/3.png"}
    assert opened(f"folder:{root}").labels is None


def test_class_folders_with_images_beside_them_stay_classes(make):
    root = make("cat/1.png", "dog/2.png", "3.png")
    source = opened(f"folder:{root}")
    assert source.class_names == ("cat", "dog") and len(source) == 2
    assert any("beside the class folders" in note for note in source.notes)


def test_without_labels_such_a_folder_gives_all_its_images(make):
    names = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(5)]
    root = make(*names, *flat(5))
    dataset = f"folder:{root}"
    source = opened(dataset, labels=False)
    assert set(source.files) == {*names, *flat(5)} and source.labels is None
    assert not any("skipped" in note for note in source.notes)
    # The held-out images of the classes are those of a run with labels.
    held_out = files_of(dataset, "test", labels=False)
    assert held_out & set(names) == files_of(dataset, "test")
    assert len(held_out) == 3  # a fifth of 5 cats, 5 dogs and 5 others


@pytest.mark.parametrize("table, kind", [("path\n{}\n", "csv"), ("{}\n", "csv")])
def test_a_table_of_paths_is_a_source_without_labels_on_request(make, table, kind):
    root = make(*flat(5))
    (root / "list.csv").write_text(table.format("\n".join(flat(5))))
    source = opened(f"{kind}:{root / 'list.csv'}", labels=False)
    assert set(source.files) == set(flat(5)) and source.labels is None
    assert len(open_source(f"{kind}:{root / 'list.csv'}", "test", labels=False)) == 1


def test_a_table_without_labels_is_told_how_to_ask_for_none(make):
    root = make(*flat(2))
    (root / "list.csv").write_text("path,split\n0.png,train\n1.png,test\n")
    with pytest.raises(UserError, match="no column has labels.*data.labels=false"):
        opened(f"csv:{root / 'list.csv'}")
    assert len(open_source(f"csv:{root / 'list.csv'}", "train", labels=False)) == 1


def test_labels_that_are_missing_do_not_matter_where_none_are_used(make):
    root = make(*flat(10))
    labels = ["cat", "cat", "cat", "cat", "cat", "dog", "dog", "dog", "nan", ""]
    rows = "".join(f"{file},{label}\n" for file, label in zip(flat(10), labels, strict=True))
    (root / "list.csv").write_text("path,label\n" + rows)
    dataset = f"csv:{root / 'list.csv'}"
    with pytest.raises(UserError, match="the label of"):
        opened(dataset)
    assert len(opened(dataset, labels=False)) == 10
    lines = "".join(f'{{"path": "{file}"}}\n' for file in flat(10))
    (root / "list.jsonl").write_text(lines)
    assert len(opened(f"jsonl:{root / 'list.jsonl'}", labels=False)) == 10


def test_captions_do_not_stand_for_classes(make):
    root = make(*flat(10))
    (root / "list.csv").write_text(
        "path,text\n" + "".join(f"{file},image number {file}\n" for file in flat(10))
    )
    assert len(open_source(f"csv:{root / 'list.csv'}", "test", labels=False)) == 2


def test_digits_without_labels_are_the_same_images(train, data_dir):
    source = open_source("digits", "train", data_dir=data_dir, labels=False)
    assert source.labels is None and source.class_names == () and len(source) == len(train)
    assert source.fingerprint != train.fingerprint
    for index in (0, 700):
        np.testing.assert_array_equal(source[index]["image"], train[index]["image"])
        assert set(source[index]) == {"image"}


def test_images_of_tfds_come_without_labels():
    with tfds.testing.mock_data(num_examples=4):
        source = open_source("tfds:cifar10", "train", labels=False)
    assert set(source[0]) == {"image"} and source[0]["image"].shape == (32, 32, 3)


def test_what_needs_labels_says_where_they_are_missing_and_what_to_do(make):
    flat_source = opened(f"folder:{make(*flat(2))}")
    with pytest.raises(
        UserError, match=r"has no labels, but classification needs them: .*pets/cat/1\.jpg"
    ):
        check_inputs(LABEL, flat_source, wanted_by="classification")
    with pytest.raises(UserError, match=r"has no labels, but the classes of a model"):
        opened(flat_source.name, class_names=("a", "b"))
    labelled = opened(f"folder:{make('a/1.png', 'b/1.png')}", labels=False)
    with pytest.raises(UserError, match=r"the task needs them: data.labels is False; omit it"):
        check_inputs(LABEL, labelled)
    with pytest.raises(UserError, match="balanced, which needs labels.*use natural"):
        stream(flat_source, Preprocessing((4, 4)), Augment(), balanced=True)
    check_inputs({"image": Feature("image")}, flat_source)
