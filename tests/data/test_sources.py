"""Datasets by name: what a source promises, and what a wrong name is answered."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
from PIL import Image

from vit_jax.data import open_source, sources
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
    """Not a classification dataset: it has no label."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {"image": tfds.features.Image(), "caption": tfds.features.Text()}
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        yield 0, {"image": Image.new("RGB", (4, 4)), "caption": "a black square"}


def test_an_example_is_uint8_pixels_and_a_label(train):
    example = train[5]
    assert example["image"].dtype == np.uint8 and example["image"].shape == (8, 8, 1)
    assert isinstance(example["label"], int) and 0 <= example["label"] <= 9
    assert train.class_names == tuple("0123456789")
    assert train.in_memory


def test_parts_of_a_split_are_that_split(train, data_dir):
    first = open_source("digits", "train[:90%]", data_dir=data_dir)
    last = open_source("digits", "train[90%:]", data_dir=data_dir)
    assert (len(first), len(last)) == (1293, 144)  # 1,437 * 0.9 = 1,293.3
    joined = [first[i]["image"] for i in range(1293)] + [last[i]["image"] for i in range(144)]
    np.testing.assert_array_equal(joined, [train[i]["image"] for i in range(1437)])


def test_fingerprint_tells_splits_apart_and_equal_sources_alike(train, test, data_dir):
    assert train.fingerprint == open_source("digits", "train", data_dir=data_dir).fingerprint
    part = open_source("digits", "train[:1436]", data_dir=data_dir)
    assert len({train.fingerprint, test.fingerprint, part.fingerprint}) == 3
    assert "sklearn_digits/1.0.0:train:1437:" in train.fingerprint
    assert train.fingerprint in repr(train)


def test_fingerprint_hangs_on_the_labels(data_dir):
    first, second = (
        open_source("digits", part, data_dir=data_dir) for part in ("test[:100]", "test[100:200]")
    )
    assert first.fingerprint.split(":")[-1] != second.fingerprint.split(":")[-1]


def test_digits_are_a_tfds_dataset_like_any_other(train, data_dir):
    assert open_source("tfds:sklearn_digits", "train", data_dir=data_dir).fingerprint == (
        train.fingerprint
    )


def test_pictures_read_from_disk_are_those_in_memory(train, data_dir, monkeypatch):
    monkeypatch.setattr(sources, "IN_MEMORY_BYTES", 0)
    on_disk = open_source("digits", "train", data_dir=data_dir)
    assert not on_disk.in_memory
    travelled = pickle.loads(pickle.dumps(on_disk))
    for index in (0, 700, 1436):
        np.testing.assert_array_equal(travelled[index]["image"], train[index]["image"])
        assert travelled[index]["label"] == train[index]["label"]


def test_a_users_own_builder_is_prepared_and_read_with_its_sizes_and_names(tmp_path):
    source = open_source("tfds:tiny_photos", "train", data_dir=tmp_path)
    assert source.class_names == ("chat", "été 犬")
    assert not source.in_memory  # of pictures of unknown size nobody knows whether they fit
    assert sorted(source[i]["image"].shape for i in range(6)) == [(20, w, 3) for w in range(10, 16)]
    for index in range(6):
        example = source[index]
        # Picture i has red 40 * i (within JPEG's rounding) and label i % 2.
        assert example["label"] == round(example["image"][..., 0].mean() / 40) % 2
    assert "2.1.0" in source.fingerprint


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
        ("digts", "no dataset 'digts'.*digits or tfds:NAME or tfds:NAME/CONFIG.*mean 'digits'"),
        ("cifar10", "did you mean 'tfds:cifar10'"),
        ("tfds:cifar11", "no dataset 'cifar11'.*'cifar10'"),
        ("tfds:cifar10/small", "no configuration 'small'"),
        ("tfds:imagenette/161px", "no configuration '161px', there are .*160px-v2"),
        ("tfds:cifar10", r"takes a download and TensorFlow.*tfds.builder\('cifar10'"),
        ("tfds:tiny_captions", "not an image-classification.*this one has caption, image"),
        ("tfds:imdb_reviews", "not an image-classification.*this one has label, text"),
    ],
)
def test_wrong_datasets_are_told_what_would_be_right(dataset, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        open_source(dataset, "train", data_dir=tmp_path)


@pytest.mark.parametrize(
    "split, cause",
    [
        ("validation", "Unknown split"),
        ("train[:5", "Error parsing"),
        ("train[90%:10%]", "no examples"),
        ("train[:0]", "no examples"),
        ("test[:500]", "360"),
        ("", "Error parsing"),
    ],
)
def test_wrong_splits_are_told_which_there_are(split, cause, data_dir):
    with pytest.raises(UserError, match=cause) as raised:
        open_source("digits", split, data_dir=data_dir)
    assert "train (1,437), test (360)" in str(raised.value)


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
    """What TFDS says of a dataset prepared as TFRecord (its default format, for TensorFlow)."""
    open_source("tfds:tiny_photos", "train", data_dir=tmp_path)
    info = next(tmp_path.rglob("dataset_info.json"))
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(UserError, match=r"without random access.*array_record"):
        open_source("tfds:tiny_photos", "train", data_dir=tmp_path)


def test_tensorflow_is_never_imported(data_dir):
    code = (
        "import sys\n"
        "import tensorflow_datasets as tfds\n"
        "from vit_jax.data import *\n"
        f"train = open_source('digits', 'train', data_dir={str(data_dir)!r})\n"
        "size = Preprocessing((16, 16), channels=1)\n"
        "options = dict(batch_size=8, seed=0, start_step=0, total_steps=2)\n"
        "list(train_batches(train, size, Augment(rotate=9, flip=0.5), **options))\n"
        "list(eval_batches(train, size, batch_size=500))\n"
        "with tfds.testing.mock_data(num_examples=2): open_source('tfds:cifar10', 'train')[0]\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
