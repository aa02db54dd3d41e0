"""A folder of images: which files belong to which class and split, and what is left out."""

import json
import os
import pickle
import shutil
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
from PIL import Image

from tests.folders import INPUTS
from vit_jax.data import list_splits, open_source
from vit_jax.data.images.decoding import Decoding
from vit_jax.errors import DecodeError, UserError

CASES = INPUTS / "folders"
IMAGES = INPUTS / "images"


@pytest.fixture
def make(tmp_path):
    """Writes images of 2x3 pixels; the folder is `pets` in a folder of its own."""

    def write(*paths):
        for path in paths:
            file = tmp_path / "pets" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (3, 2), (len(path), 0, 0)).save(file, format="png")
        return tmp_path / "pets"

    return write


def contents(folder, split, **options):
    """The class of every file of a split, in alphabetical order, and the source."""
    source = open_source(f"folder:{folder}", split, **options)
    classes = [source.class_names[label] for label in source.labels]
    assert [source[i]["label"] for i in range(len(source))] == source.labels.tolist()
    return dict(sorted(zip(source.files, classes, strict=True))), source


def test_hidden_and_system_entries_are_neither_classes_nor_images():
    train, source = contents(CASES / "hidden_files", "train")
    assert source.class_names == ("cat", "dog")
    assert train == {
        f"train/{name}/{number}.png": name for name in ("cat", "dog") for number in range(3)
    }
    assert len(open_source(f"folder:{CASES / 'hidden_files'}", "val")) == 4
    hidden = [note for note in source.notes if ".ipynb_checkpoints" in note]
    assert len(hidden) == 1
    assert sum("'train/notes.txt'" in note for note in source.notes) == 1
    assert not any(".DS_Store" in note for note in source.notes)


@pytest.mark.parametrize("name", [".git", "__MACOSX", ".ipynb_checkpoints", "lost+found", "@eaDir"])
def test_folders_of_systems_are_told_once_at_any_depth(make, name):
    root = make("cat/1.png", "dog/1.png", f"{name}/1.png", f"cat/{name}/1.png", "cat/._1.png")
    files, source = contents(root, "all")
    assert list(files) == ["cat/1.png", "dog/1.png"]
    [note] = [note for note in source.notes if name in note]
    assert f"{name!r}, 'cat/{name}'" in note or f"'cat/{name}', {name!r}" in note


def test_an_empty_class_keeps_its_number_in_every_split_and_is_named():
    for split in ("train", "val"):
        files, source = contents(CASES / "empty_class", split)
        assert source.class_names == ("ant", "bee", "cow")
        assert list(files.values()) == ["ant", "cow"]
        assert sorted(source.labels) == [0, 2]
        assert any("'bee'" in note for note in source.notes) == (split == "train")


def test_no_images_is_an_error_that_names_the_folder_and_the_endings():
    with pytest.raises(UserError, match=r"no_images/train \('a'\).*\.jpeg, .*\.png, .*\.webp"):
        open_source(f"folder:{CASES / 'no_images'}", "train")


def test_classes_are_in_code_point_order_and_other_splits_use_those_of_train():
    _, train = contents(CASES / "class_order", "train")
    files, val = contents(CASES / "class_order", "val")
    assert train.class_names == val.class_names == ("1", "10", "2")
    assert files == {"val/10/x.png": "10", "val/2/x.png": "2"}


def test_without_images_to_hold_out_the_error_names_the_folders_expected():
    assert len(open_source(f"folder:{CASES / 'no_val'}", "train")) == 2
    with pytest.raises(UserError, match=r"folder test/ in .*no_val.*folder val/.*add images"):
        open_source(f"folder:{CASES / 'no_val'}", "test")
    with pytest.raises(UserError, match=r"folder val/ in .*no_val.*train\[:90%\]"):
        open_source(f"folder:{CASES / 'no_val'}", "validation")


@pytest.mark.slow
def test_names_in_any_script_are_the_same_under_every_locale(tmp_path):
    folder = CASES / "unicode"
    expected = [open_source(f"folder:{folder}", split).fingerprint for split in ("train", "val")]
    code = (
        "import json, sys\n"
        "from vit_jax.data import open_source\n"
        "train, val = (open_source(sys.argv[1], split) for split in ('train', 'val'))\n"
        "assert (len(train), len(val)) == (4, 4)\n"
        "[train[i] for i in range(4)]\n"
        "print(json.dumps([train.class_names, [train.fingerprint, val.fingerprint]]))\n"
    )
    for plain in ({}, {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        output = subprocess.run(
            [sys.executable, "-c", code, f"folder:{folder}"],
            env={**os.environ, "LC_ALL": "C", **plain},
            check=True,
            capture_output=True,
        ).stdout
        names, fingerprints = json.loads(output)
        assert names == ["-minus", "café", "hot dog", "猫"]
        assert fingerprints == expected


def test_names_that_are_no_text_at_all_can_be_read_stored_and_printed(make):
    root = make("cat/1.png")
    folder = os.path.join(os.fsencode(root), b"caf\xe9")
    os.mkdir(folder)
    shutil.copy(root / "cat/1.png", os.path.join(folder, b"\xff.png"))
    files, source = contents(root, "train")
    assert source.class_names == ("caf\\xe9", "cat")
    assert list(files) == ["caf\\xe9/\\xff.png", "cat/1.png"]
    texts = [*source.class_names, *source.files, *source.notes, source.fingerprint, source.where(0)]
    json.dumps(texts, ensure_ascii=False).encode()
    saved = {"train": list(source.files)}
    assert open_source(f"folder:{root}", "train", saved=saved).files == source.files


def test_the_first_level_names_the_class_however_deep_a_image_lies():
    train, source = contents(CASES / "nested", "train")
    val, _ = contents(CASES / "nested", "val")
    assert source.class_names == ("animal", "vehicle")
    assert train == {
        "train/animal/cat/1.png": "animal",
        "train/animal/dog/2.png": "animal",
        "train/vehicle/3.png": "vehicle",
    }
    assert val == {"val/animal/4.png": "animal", "val/vehicle/deep/er/5.png": "vehicle"}


def test_a_single_class_is_a_dataset():
    files, source = contents(CASES / "single_class", "train")
    assert source.class_names == ("only",) and files == {"train/only/x.png": "only"}


def test_images_are_what_pillow_reads_by_any_case_of_the_ending(tmp_path):
    names = ["UPPER.JPEG", "lossless.webp", "animated.gif", "bilevel.png"]
    (tmp_path / "a").mkdir()
    for name in names:
        shutil.copy(IMAGES / name, tmp_path / "a")
    for name in ("film.mpg", "page.pdf", "drawing.svg", "script.ps", "noending", "data.h5"):
        (tmp_path / "a" / name).write_bytes(b"something")
    files, source = contents(tmp_path, "all")
    assert sorted(files) == sorted(f"a/{name}" for name in names)
    assert all(source[i]["image"].shape[2] == 3 for i in range(4))
    assert any("6, such as 'a/data.h5'" in note for note in source.notes)


@pytest.mark.parametrize("name", ["val", "valid", "validation", "Val"])
def test_validation_may_have_each_of_its_names(make, name):
    root = make("train/a/1.png", f"{name}/a/2.png")
    for split in ("val", "valid", "validation", "test"):
        assert contents(root, split)[0] == {f"{name}/a/2.png": "a"}


def test_each_split_folder_is_its_split(make):
    root = make("Train/a/1.png", "Train/b/1.png", "val/b/2.png", "Test/a/3.png")
    assert list(contents(root, "train")[0]) == ["Train/a/1.png", "Train/b/1.png"]
    assert contents(root, "val")[0] == {"val/b/2.png": "b"}
    assert contents(root, "test")[0] == {"Test/a/3.png": "a"}
    assert len(open_source(f"folder:{root}", "train+val")) == 3
    assert list_splits(f"folder:{root}") == {"train": 2, "validation": 1, "test": 1}


def test_validation_that_serves_as_test_is_told_and_cannot_be_both(make):
    root = make("train/a/1.png", "val/a/2.png")
    _, test = contents(root, "test")
    assert any("folder test/" in note and "used as 'test'" in note for note in test.notes)
    assert test.overlaps(open_source(f"folder:{root}", "validation"))
    assert not test.overlaps(open_source(f"folder:{root}", "train"))


def test_a_class_may_be_called_train(make):
    root = make("train/1.png", "plane/1.png", "test/2.png")
    files, source = contents(root, "all")
    assert source.class_names == ("plane", "test", "train") and len(files) == 3
    assert any("train/" in note and "read as a class" in note for note in source.notes)


def test_folders_beside_the_splits_are_left_out_and_told(make):
    _, source = contents(make("train/a/1.png", "masks/a/1.png"), "train")
    assert source.class_names == ("a",)
    assert any("'masks'" in note for note in source.notes)


@pytest.mark.parametrize(
    "files, split, sentence",
    [
        (["val/a/1.png", "test/a/1.png"], "val", "'test/', 'val/' but no train/"),
        (["train/a/1.png", "val/a/1.png", "valid/a/1.png"], "val", "both val/ and valid/"),
        (["train/a/1.png", "val/a/1.png", "val/b/1.png"], "val", "training split lacks, 'b'"),
        (["a/1.png", "b/1.png"], "trian", "'trian'.*use one of train.*mean 'train'"),
        (["a/1.png", "b/1.png"], "train[:0]", "no examples"),
    ],
)
def test_folders_of_another_form_are_told_which_form_is_expected(make, files, split, sentence):
    with pytest.raises(UserError, match=sentence):
        open_source(f"folder:{make(*files)}", split)


def test_an_empty_folder_is_told_what_it_must_hold(tmp_path):
    with pytest.raises(
        UserError, match=r"no class folders; it must contain one sub-folder per class"
    ):
        open_source(f"folder:{tmp_path}", "train")


def test_a_folder_that_is_not_there_is_told_the_nearest(make):
    root = make("a/1.png")
    with pytest.raises(UserError, match=r"no folder .*/pet; did you mean 'pets'"):
        open_source(f"folder:{root.parent}/pet", "train")
    with pytest.raises(UserError, match=r"no folder .*/pet; did you mean 'pets'"):
        open_source(f"folder:{root.parent}/pet/deeper/still/", "train")
    with pytest.raises(UserError, match="is a file, not a folder"):
        open_source(f"folder:{root}/a/1.png", "train")


def test_links_are_followed_and_loops_end(make):
    root = make("cat/1.png", "dog/1.png")
    store = root.parent / "store"
    store.mkdir()
    shutil.copy(root / "cat/1.png", store / "2.png")
    (root / "cat/more").symlink_to(store)
    (root / "cat/1b.png").symlink_to(root / "cat/1.png")
    (root / "dog/shared.png").symlink_to(root / "cat/1.png")  # one image in two classes
    (root / "cat/loop").symlink_to(root / "cat")
    (root / "cat/up").symlink_to(root)  # would make dogs cats
    (root / "cat/above").symlink_to(root.parent)
    (root / "cat/itself.png").symlink_to("itself.png")
    (root / "dog/gone.png").symlink_to("nowhere.png")
    (root / "fox").symlink_to(store)  # a class may be a link
    files, source = contents(root, "all")
    assert files == {
        "cat/1.png": "cat",
        "cat/more/2.png": "cat",
        "dog/1.png": "dog",
        "dog/shared.png": "dog",
        "fox/2.png": "fox",
    }
    notes = " ".join(source.notes)
    assert "skipped: 2, 'cat/itself.png', 'dog/gone.png'" in notes
    assert "'cat/above', 'cat/loop', 'cat/up'" in notes
    assert "skipped: 1, 'cat/1b.png = cat/1.png'" in notes
    assert "several classes by links" in notes and "cat/1.png = dog/shared.png" in notes


def test_of_a_folder_and_a_link_to_it_the_folder_is_read(make):
    root = make("cat/b/1.png", "cat/c/1.png")
    (root / "cat/a").symlink_to(root / "cat/c")
    (root / "cat/d").symlink_to(root / "cat/b")
    files, source = contents(root, "train", holdout=0)
    assert list(files) == ["cat/b/1.png", "cat/c/1.png"]
    assert any("read once: 'cat/a', 'cat/d'" in note for note in source.notes)


def test_folders_that_cannot_be_read_are_named(make, monkeypatch):
    root = make("cat/1.png", "cat/secret/2.png", "dog/1.png")
    scandir = os.scandir

    def forbidding(path):
        if os.path.basename(path) == "secret":
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidding)
    files, source = contents(root, "all")
    assert list(files) == ["cat/1.png", "dog/1.png"]
    assert any("'cat/secret (Permission denied)'" in note for note in source.notes)


def test_things_that_are_no_files_are_not_opened(make):
    root = make("cat/1.png")
    os.mkfifo(root / "cat/pipe.png")
    (root / "cat/folder.png").mkdir()
    assert list(contents(root, "train")[0]) == ["cat/1.png"]


def test_names_that_differ_in_case_only_are_two(make):
    files, source = contents(make("cat/a.png", "cat/A.png", "Cat/a.png"), "all")
    assert len(files) == 3 and source.class_names == ("Cat", "cat")


def test_the_order_of_the_system_does_not_matter(make, monkeypatch):
    root = make(*(f"{name}/{i}.png" for name in "abc" for i in range(9)))
    before = [open_source(f"folder:{root}", split) for split in ("train", "test")]
    listed = os.scandir

    class Backwards(list):
        def __enter__(self):
            return self

        def __exit__(self, *exception):
            return None

    def backwards(path):
        with listed(path) as entries:
            return Backwards(sorted(entries, key=lambda entry: entry.name, reverse=True))

    monkeypatch.setattr(os, "scandir", backwards)
    after = [open_source(f"folder:{root}", split) for split in ("train", "test")]
    assert [source.files for source in before] == [source.files for source in after]
    assert [source.fingerprint for source in before] == [source.fingerprint for source in after]


def test_the_fingerprint_is_that_of_the_images_not_of_the_place(make, tmp_path):
    root = make("a/1.png", "a/2.png", "b/1.png")
    fingerprint = open_source(f"folder:{root}", "train").fingerprint
    shutil.copytree(root, tmp_path / "copy")
    assert open_source(f"folder:{tmp_path}/copy", "train").fingerprint == fingerprint
    (tmp_path / "copy/b/1.png").rename(tmp_path / "copy/b/3.png")
    renamed = open_source(f"folder:{tmp_path}/copy", "train").fingerprint
    with (root / "b/1.png").open("ab") as file:
        file.write(b"more")
    grown = open_source(f"folder:{root}", "train").fingerprint
    assert len({fingerprint, renamed, grown}) == 3
    assert fingerprint.startswith("folder:train:2:")


def test_an_unreadable_image_is_an_error_with_its_path(tmp_path):
    (tmp_path / "a").mkdir()
    for name in ("truncated.jpg", "zero_bytes.jpg", "text_inside.jpg"):
        shutil.copy(IMAGES / name, tmp_path / "a")
    source = open_source(f"folder:{tmp_path}", "all")
    for index in range(3):
        with pytest.raises(DecodeError) as raised:
            source[index]
        assert raised.value.name == source.where(index) == f"{tmp_path}/{source.files[index]}"


def test_it_travels_to_worker_processes(make):
    source = open_source(f"folder:{make('a/1.png', 'b/22.png')}", "all")
    travelled = pickle.loads(pickle.dumps(source))
    np.testing.assert_array_equal(
        travelled.read(1, Decoding(fast=True))["image"], source[1]["image"]
    )
    assert travelled.where(0) == source.where(0) and travelled.class_names == ("a", "b")


def test_a_single_split_numbers_its_own_classes(make):
    root = make("val/b/1.png", "val/a/1.png")
    source = open_source(f"folder:{root}", "validation")
    assert source.class_names == ("a", "b") and len(source) == 2
    assert list_splits(f"folder:{root}") == {"validation": 2}
    with pytest.raises(UserError, match="'train'"):
        open_source(f"folder:{root}", "train")


def test_class_folders_of_either_unicode_form_are_one_class(make):
    composed, apart = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    root = make(f"{composed}/1.png", f"{apart}/2.png", "tea/3.png")
    files, source = contents(root, "all")
    assert source.class_names == (composed, "tea") and set(files.values()) == {composed, "tea"}
    assert len(files) == 3 and all(source[i]["image"].shape == (2, 3, 3) for i in range(3))
    saved = {"all": [unicodedata.normalize("NFC", name) for name in source.files[:1]]}
    assert len(open_source(f"folder:{root}", "all", saved=saved)) == 1


def test_classes_that_look_alike_are_named(make):
    _, source = contents(make("Cat/1.png", "cat/2.png", "cat\u200b/3.png", "dog/4.png"), "train")
    [note] = [note for note in source.notes if "differ only in case" in note]
    assert r"'Cat', 'cat', 'cat\u200b'" in note and "dog" not in note


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_of_two_splits_is_one(make, link):
    root = make("train/a/1.png", "train/a/2.png", "test/a/3.png")
    link(root / "train/a/1.png", root / "test/a/other.png")
    train, test = (open_source(f"folder:{root}", split) for split in ("train", "test"))
    assert train.overlaps(test) and test.overlaps(train)
    assert train.shared_files(test) == [("train/a/1.png", "test/a/other.png")]


def test_a_file_in_two_classes_is_not_learned_from_and_tested_with(make):
    root = make(*(f"a/{i}.png" for i in range(10)), *(f"b/{i}.png" for i in range(10)))
    for i in range(10):
        os.symlink(root / f"a/{i}.png", root / f"b/of_a_{i}.png")
    for split_seed in range(3):
        train, test = (
            open_source(f"folder:{root}", split, holdout=0.5, split_seed=split_seed)
            for split in ("train", "test")
        )
        assert len(test) and not train.overlaps(test)
