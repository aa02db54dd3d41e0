"""Datasets of TFDS: prepared and read without TensorFlow, and what stands in the way, told."""

import errno
import pickle

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax.data import list_splits, open_source
from vit_jax.data.sources import registry
from vit_jax.errors import UserError


class TinyPhotos(tfds.core.GeneratorBasedBuilder):
    """A user's own dataset: six JPEGs of different sizes, and a split without labels."""

    VERSION = tfds.core.Version("2.1.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(None, None, 3), encoding_format="jpeg"),
                    "label": tfds.features.ClassLabel(names=["chat", "été 犬"]),
                }
            ),
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(6), "hidden": self._generate_examples(2, label=-1)}

    def _generate_examples(self, count, label=None):
        for i in range(count):
            image = Image.new("RGB", (10 + i, 20), (40 * i, 0, 0))
            yield i, {"image": image, "label": i % 2 if label is None else label}


class TinyCaptions(tfds.core.GeneratorBasedBuilder):
    """Not a classification dataset: it has no label, and its captions are those of COCO's kind."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = tuple(tfds.core.BuilderConfig(name=name) for name in ("several", "one"))
    SHADES = ("black", "grey", "white")

    def _info(self):
        several = tfds.features.Sequence({"text": np.str_, "id": np.int64})
        captions = several if self.builder_config.name == "several" else tfds.features.Text()
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "image/filename": tfds.features.Text(),
            "captions": captions,
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(3), "val": self._generate_examples(2)}

    def _generate_examples(self, count):
        for number, shade in enumerate(self.SHADES[:count]):
            captions = f"a {shade} square"
            if self.builder_config.name == "several":
                captions = [{"text": captions, "id": 7}, {"text": f"it is {shade}", "id": 8}]
            image = Image.new("RGB", (4, 4), (120 * number,) * 3)
            yield number, {"image": image, "captions": captions, "image/filename": f"{number}.jpg"}


class TinyScenes(tfds.core.GeneratorBasedBuilder):
    """Several labels for each image, and other names for both; two configurations."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = tuple(tfds.core.BuilderConfig(name=name) for name in ("small", "big"))
    MANUAL_DOWNLOAD_INSTRUCTIONS = "Put scenes.txt there."

    def _info(self):
        names = tfds.features.ClassLabel(names=["sea", "sand", "sky"])
        features = {
            "photo": tfds.features.Image(shape=(4, 4, 3)),
            "things": tfds.features.Sequence(names),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("photo", "things"),
        )

    def _split_generators(self, dl_manager):
        rows = (dl_manager.manual_dir / "scenes.txt").read_text().split()
        return {"train": self._generate_examples(rows)}

    def _generate_examples(self, rows):
        for number, row in enumerate(rows):
            shade = (len(row), 0, 0)
            yield number, {"photo": Image.new("RGB", (4, 4), shade), "things": row.split("-")}


class TinyFailure(tfds.core.GeneratorBasedBuilder):
    """A builder whose preparation fails after some images, as `cause` says."""

    VERSION = tfds.core.Version("1.0.0")
    cause: Exception

    def _info(self):
        features = {
            "image": tfds.features.Image(),
            "label": tfds.features.ClassLabel(num_classes=2),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i in range(20):
            yield i, {"image": Image.new("RGB", (4, 4)), "label": 0}
        raise self.cause


def test_images_read_from_disk_are_those_in_memory(train, data_dir, monkeypatch):
    monkeypatch.setattr(registry, "IN_MEMORY_BYTES", 0)
    on_disk = open_source("digits", "train", data_dir=data_dir)
    assert not on_disk.in_memory
    travelled = pickle.loads(pickle.dumps(on_disk))
    for index in (0, 700, 1436):
        np.testing.assert_array_equal(travelled[index]["image"], train[index]["image"])
        assert travelled[index]["label"] == train[index]["label"]


def test_a_users_own_builder_is_prepared_and_read_with_its_sizes_and_names(tmp_path):
    source = open_source("tfds:tiny_photos", "train", data_dir=tmp_path)
    assert source.class_names == ("chat", "été 犬")
    assert not source.in_memory  # of images of unknown size nobody knows whether they fit
    assert sorted(source[i]["image"].shape for i in range(6)) == [(20, w, 3) for w in range(10, 16)]
    for index in range(6):
        example = source[index]
        # Image i has red 40 * i (within JPEG's rounding) and label i % 2.
        assert example["label"] == round(example["image"][..., 0].mean() / 40) % 2
    assert "2.1.0" in source.fingerprint


@pytest.mark.parametrize("config", ["several", "one"])
def test_captions_are_texts_and_need_no_labels(tmp_path, config):
    dataset = f"tfds:tiny_captions:{config}"
    train, val = (open_source(dataset, split, data_dir=tmp_path) for split in ("train", "val"))
    assert set(train.features) == {"image", "text"} and not train.has_labels
    assert (len(train), len(val)) == (3, 2)
    assert val.tokenizer.difference(train.tokenizer) == ""
    encode = train.tokenizer.encode
    for source in (train, val):
        for index in range(len(source)):
            example = source[index]
            shade = TinyCaptions.SHADES[round(example["image"].mean() / 120)]
            captions = [f"a {shade} square", f"it is {shade}"][: 2 if config == "several" else 1]
            np.testing.assert_array_equal(source.texts.of(index), encode(captions))
            np.testing.assert_array_equal(example["text"], encode(captions[0])[0])
    images = open_source(dataset, "train", data_dir=tmp_path, labels=False, texts=None)
    assert set(images.features) == {"image"}
    with pytest.raises(UserError, match="not an image classification.*but has captions, image"):
        open_source(dataset, "train", data_dir=tmp_path, texts=None)


def test_labels_of_a_dataset_on_disk_are_those_of_its_examples(train, data_dir, monkeypatch):
    monkeypatch.setattr(registry, "IN_MEMORY_BYTES", 0)
    on_disk = open_source("digits", "train", data_dir=data_dir)
    monkeypatch.setattr("vit_jax.data.sources.tfds.decode_as", None)  # would raise
    np.testing.assert_array_equal(on_disk.labels, train.labels)


@pytest.fixture
def scenes(tmp_path):
    """Folder of the file that TinyScenes is prepared from."""
    (tmp_path / "manual").mkdir()
    (tmp_path / "manual" / "scenes.txt").write_text("sea sky-sea-sand sand-sky")
    return {"data_dir": tmp_path / "data", "manual_dir": tmp_path / "manual"}


@pytest.mark.parametrize("in_memory", [True, False])
def test_several_labels_under_names_of_the_datasets_own(scenes, in_memory, monkeypatch):
    if not in_memory:
        monkeypatch.setattr(registry, "IN_MEMORY_BYTES", 0)
    source = open_source("tfds:tiny_scenes", "train", **scenes)
    assert source.multi_label and source.in_memory == in_memory
    assert source.class_names == ("sea", "sand", "sky")
    expected = {3: [1, 0, 0], 12: [1, 1, 1], 8: [0, 1, 1]}  # by the length of the row's text
    for index in range(3):
        example = source[index]
        assert example["label"].dtype == np.uint8
        assert example["label"].tolist() == expected[int(example["image"][0, 0, 0])]
    np.testing.assert_array_equal(source.labels, [source[i]["label"] for i in range(3)])


@pytest.mark.parametrize("name", ["tiny_scenes:big", "tiny_scenes/big", "tiny_scenes:big:1.0.0"])
def test_a_configuration_follows_a_colon_or_a_slash(scenes, name):
    assert "tiny_scenes/big/1.0.0" in open_source(f"tfds:{name}", "train", **scenes).fingerprint


def test_a_version_is_no_configuration(scenes):
    fingerprint = open_source("tfds:tiny_scenes:1.0.0", "train", **scenes).fingerprint
    assert fingerprint.startswith("tiny_scenes/small/1.0.0:")  # the first is the default


def test_files_that_the_user_must_fetch_are_asked_for(tmp_path):
    with pytest.raises(UserError, match="manually: Put scenes.txt there; set data.manual_dir"):
        open_source("tfds:tiny_scenes", "train", data_dir=tmp_path)
    with pytest.raises(UserError, match=r"array_record', download_config=.*manual_dir='FOLDER'"):
        open_source("tfds:imagenet2012", "train", data_dir=tmp_path)


@pytest.mark.parametrize(
    "cause, sentence",
    [
        (OSError(errno.ENOSPC, "No space left on device"), "disk of .* is full; free some space"),
        (KeyError("column"), "cannot be prepared: .*column"),
    ],
)
def test_a_preparation_that_fails_is_one_sentence_and_leaves_nothing(
    tmp_path, monkeypatch, cause, sentence
):
    monkeypatch.setattr(TinyFailure, "cause", cause, raising=False)
    for _ in range(2):  # what the first left behind is not taken for the dataset
        with pytest.raises(UserError, match=sentence):
            open_source("tfds:tiny_failure", "train", data_dir=tmp_path)
    assert not list(tmp_path.rglob("dataset_info.json"))


def test_a_dataset_without_some_of_its_files_is_not_taken_for_whole(tmp_path):
    open_source("tfds:tiny_photos", "train", data_dir=tmp_path)
    [directory] = tmp_path.glob("tiny_photos/2.1.0")
    (directory / "features.json").unlink()
    with pytest.raises(UserError, match=f"{directory} is incomplete: .*remove that directory"):
        open_source("tfds:tiny_photos", "train", data_dir=tmp_path)


def test_the_splits_are_listed(tmp_path):
    assert list_splits("tfds:tiny_photos", data_dir=tmp_path) == {"train": 6, "hidden": 2}
    with pytest.raises(UserError, match="needs a download and TensorFlow"):
        list_splits("tfds:cifar10", data_dir=tmp_path)


@pytest.mark.parametrize("name, shape", [("cifar10", (32, 32, 3)), ("mnist", (28, 28, 1))])
def test_mocked_datasets_open_without_files(name, shape):
    with tfds.testing.mock_data(num_examples=7):
        source = open_source(f"tfds:{name}", "train")
    assert len(source) == 7 and source[6]["image"].shape == shape
    assert len(source.class_names) == 10
    assert len(pickle.loads(pickle.dumps(source))) == 7


@pytest.mark.parametrize(
    "dataset, sentence",
    [
        ("tfds:cifar11", "no dataset 'cifar11'.*'cifar10'"),
        ("tfds:cifar10/small", "no configuration 'small'"),
        ("tfds:cifar10:small", "no configuration 'small'"),
        ("tfds:imagenette/161px", "no configuration '161px', there are .*160px-v2"),
        ("tfds:cifar10", r"needs a download and TensorFlow.*tfds.builder\('cifar10'"),
        ("tfds:imagenette:160px-v2", r"tfds.builder\('imagenette/160px-v2'"),
        ("tfds:imdb_reviews", "not an image classification.*but has label, text"),
    ],
)
def test_wrong_datasets_are_told_what_would_be_right(dataset, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        open_source(dataset, "train", data_dir=tmp_path)


def test_a_split_with_secret_labels_is_refused_when_read(tmp_path):
    hidden = open_source("tfds:tiny_photos", "hidden", data_dir=tmp_path)
    with pytest.raises(UserError, match=r"example 0 of tfds:tiny_photos hidden.*no label"):
        hidden[0]


def test_damaged_records_are_named_with_the_remedy(tmp_path):
    directory = tmp_path / "sklearn_digits" / "1.0.0"
    open_source("digits", "train", data_dir=tmp_path)
    file = next(directory.glob("*train*"))
    content = bytearray(file.read_bytes())
    content[100_000:110_000] = bytes(10_000)  # in the middle, where nobody looks first
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"example .* of digits train .*remove that directory"):
        open_source("digits", "train", data_dir=tmp_path)


def test_files_without_random_access_are_named_with_the_remedy(tmp_path, monkeypatch):
    """A dataset prepared as TFRecord (its default format, for TensorFlow)."""
    open_source("tfds:tiny_photos", "train", data_dir=tmp_path)
    info = next(tmp_path.rglob("dataset_info.json"))
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(UserError, match=r"without random access.*array_record"):
        open_source("tfds:tiny_photos", "train", data_dir=tmp_path)
