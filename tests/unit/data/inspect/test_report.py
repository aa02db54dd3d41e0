"""Findings of the doctor, against datasets whose ills are known because they were put there."""

import json
from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import Source, decode
from vit_jax.data.inspect.report import inspect_dataset


@dataclass(eq=False)
class Files:
    """Image files and their labels, as a source holds them."""

    paths: list
    labels: np.ndarray

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        return {"image": decode(self.paths[index]), "label": self.labels[index]}


@dataclass(frozen=True, eq=False, repr=False)
class FileSource(Source):
    """A source that knows where its images are."""

    def where(self, index):
        return str(self.examples.paths[index])

    @property
    def labels(self):
        return self.examples.labels


@dataclass
class Dataset:
    """Writes images and makes sources of them."""

    folder: object
    paths: dict = field(default_factory=dict)
    labels: dict = field(default_factory=dict)

    def add(self, split, label, image, name=None, kind="PNG"):
        path = self.folder / split / (name or f"{len(self.paths.get(split, []))}.{kind.lower()}")
        path.parent.mkdir(exist_ok=True)
        if isinstance(image, bytes):
            path.write_bytes(image)
        else:
            Image.fromarray(image).save(path, kind)
        self.paths.setdefault(split, []).append(path)
        self.labels.setdefault(split, []).append(label)
        return str(path)

    def sources(self, classes=("cat", "dog"), **fields):
        return {
            split: FileSource(
                name="folder:pets",
                split=split,
                class_names=classes,
                fingerprint=split,
                in_memory=False,
                examples=Files(paths, np.array(self.labels[split])),
                **fields,
            )
            for split, paths in self.paths.items()
        }


@pytest.fixture
def pets(tmp_path):
    return Dataset(tmp_path)


def noise(seed, height=4, width=6):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def test_healthy_data_have_no_findings(pets):
    for seed in range(8):
        pets.add("train" if seed < 4 else "test", seed % 2, noise(seed))
    report = inspect_dataset(pets.sources())
    assert report.findings == () and report.leaks == () and report.contradictions is None
    assert [split.bad for split in report.splits.values()] == [{}, {}]


def test_counts_are_per_class_and_split(pets):
    for split, label, count in (("train", 0, 5), ("train", 1, 2), ("test", 1, 1)):
        for seed in range(count):
            pets.add(split, label, noise((split == "train", label, seed)))
    report = inspect_dataset(pets.sources())
    assert report.splits["train"].class_counts == (5, 2)
    assert report.splits["test"].class_counts == (0, 1)
    assert report.splits["train"].imbalance == 2.5
    [finding] = report.findings
    assert "1 of 2 classes without an image to test: 'cat'" in finding


def test_digits_have_the_counts_of_their_paper(train, test):
    """The UCI test set holds 178, 182, 177, ... digits 0, 1, 2, ...: Alpaydin and Kaynak, 1998."""
    report = inspect_dataset({"train": train, "test": test})
    counts = [split.class_counts for split in report.splits.values()]
    both = [sum(of_class) for of_class in zip(*counts, strict=True)]
    assert both == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    for split in report.splits.values():
        assert (split.height.lowest, split.width.highest, split.aspect.median) == (8, 8, 1)
        assert split.grey == split.examples == split.examined and split.formats == {}
    assert report.findings == ()


def test_sizes_formats_and_colours(pets):
    pets.add("train", 0, noise(1, 10, 20))
    pets.add("train", 0, noise(2, 30, 20), kind="JPEG")
    pets.add("train", 1, noise(3, 1, 50), kind="BMP")
    pets.add("train", 1, noise(4, 12, 12)[:, :, 0], name="4.jpg", kind="PNG")  # a wrong ending
    train = inspect_dataset(pets.sources()).splits["train"]
    assert (train.height.lowest, train.height.median, train.height.highest) == (1, 11, 30)
    assert (train.width.lowest, train.width.median, train.width.highest) == (12, 20, 50)
    assert (train.aspect.lowest, train.aspect.highest) == (20 / 30, 50)
    assert train.formats == {"PNG": 2, "JPEG": 1, "BMP": 1}
    assert train.grey == 1


def test_sizes_are_those_of_the_upright_image(pets):
    exif = Image.Exif()
    exif[274] = 6
    path = pets.add("train", 0, noise(1, 10, 20))
    Image.fromarray(noise(1, 10, 20)).save(path, exif=exif)
    train = inspect_dataset(pets.sources()).splits["train"]
    assert (train.height.median, train.width.median) == (20, 10)


def test_mean_and_deviation_are_those_of_the_pixels(pets):
    images = [noise(seed, 8, 8) for seed in range(5)]
    for image in images:
        pets.add("train", 0, image)
    train = inspect_dataset(pets.sources()).splits["train"]
    pixels = np.stack(images) / 255
    np.testing.assert_allclose(train.mean, pixels.mean((0, 1, 2)), atol=6e-5)
    np.testing.assert_allclose(train.std, pixels.std((0, 1, 2)), atol=6e-5)


def test_a_large_image_counts_no_more_than_a_small_one_in_the_mean(pets):
    pets.add("train", 0, np.zeros((100, 100, 3), np.uint8))
    pets.add("train", 0, np.full((1, 1, 3), 255, np.uint8))
    train = inspect_dataset(pets.sources()).splits["train"]
    assert train.mean == (0.5, 0.5, 0.5) and train.std == (0.5, 0.5, 0.5)


def test_unreadable_images_are_named_with_their_cause(pets):
    pets.add("train", 0, noise(1))
    pets.add("train", 1, noise(3))
    empty = pets.add("train", 0, b"", name="empty.jpg")
    text = pets.add("train", 1, b"hello", name="text.jpg")
    report = inspect_dataset(pets.sources())
    train = report.splits["train"]
    assert train.examples == train.examined == 4
    assert train.bad == {
        empty: "the file is empty (0 bytes)",
        text: "its content is not an image in a format that Pillow supports",
    }
    [finding] = report.findings
    assert "2 images of train cannot be read" in finding and "data.on_decode_error" in finding


def test_data_without_a_single_readable_image_are_reported_too(pets):
    pets.add("train", 0, b"hello", name="text.jpg")
    train = inspect_dataset(pets.sources()).splits["train"]
    assert train.height is train.width is train.aspect is train.mean is train.std is None
    assert len(train.bad) == 1


def test_images_of_training_among_the_test_are_found_however_they_were_saved(pets):
    first = pets.add("train", 0, noise(1))
    pets.add("train", 1, noise(2))
    copy = pets.add("test", 0, noise(1), kind="BMP")
    pets.add("test", 1, noise(3))
    report = inspect_dataset(pets.sources())
    [leak] = report.leaks
    assert (leak.where, leak.count, leak.named) == ("train and test", 1, ((first, copy),))
    assert any("train and test share 1 image" in finding for finding in report.findings)


def test_equal_bytes_in_another_shape_are_another_image(pets):
    pets.add("train", 0, noise(1, 4, 6))
    pets.add("test", 0, noise(1, 4, 6).reshape(6, 4, 3))
    assert inspect_dataset(pets.sources()).leaks == ()


def test_repeated_and_contradictory_images_are_counted(pets):
    first = pets.add("train", 0, noise(1))
    pets.add("train", 0, noise(1))
    other = pets.add("train", 1, noise(1))
    pets.add("train", 1, noise(2))
    report = inspect_dataset(pets.sources())
    assert report.splits["train"].repeated == 2
    assert report.contradictions.named == ((first, other),)
    assert any("1 image with another label" in finding for finding in report.findings)


def test_a_large_split_is_judged_by_a_sample_and_says_so(pets):
    for seed in range(30):
        pets.add("train", seed % 2, noise(seed))
    calls = []
    report = inspect_dataset(pets.sources(), limit=10, progress=lambda *call: calls.append(call))
    train = report.splits["train"]
    assert (train.examples, train.examined, train.class_counts) == (30, 10, (15, 15))
    assert any("of the 30 images of train, 10" in finding for finding in report.findings)
    assert calls == [("train", done, 10) for done in range(1, 11)]
    assert inspect_dataset(pets.sources(), limit=None).splits["train"].examined == 30


def test_imbalance_suggests_what_balances_it(pets):
    for seed in range(12):
        pets.add("train", int(seed == 0), noise(seed))
    [finding] = inspect_dataset(pets.sources()).findings
    assert "largest class has 11" in finding and "data.sampling=balanced" in finding
    assert "objective.class_weights=balanced" in finding


def test_a_single_class_is_a_finding(pets):
    pets.add("train", 0, noise(1))
    [finding] = inspect_dataset(pets.sources(classes=("cat",))).findings
    assert "a single class, 'cat'" in finding


def test_several_labels_count_for_each_of_their_classes(pets):
    for seed, labels in enumerate(([1, 1], [0, 1], [0, 0])):
        pets.add("train", labels, noise(seed))
    report = inspect_dataset(pets.sources(multi_label=True))
    train = report.splits["train"]
    assert report.multi_label and train.class_counts == (1, 2) and train.unlabelled == 1
    assert report.findings == ()


def test_secret_labels_are_no_class(pets):
    pets.add("train", 0, noise(1))
    pets.add("train", 1, noise(2))
    pets.add("test", -1, noise(3))
    pets.add("test", -1, noise(1))  # is not another class than its equal
    report = inspect_dataset(pets.sources())
    assert report.splits["test"].unlabelled == 2
    assert report.splits["test"].class_counts == (0, 0)
    assert report.contradictions is None
    assert any("2 images of test without a label" in finding for finding in report.findings)


def test_the_report_is_plain_json(pets):
    pets.add("train", 0, noise(1))
    pets.add("train", 1, b"hello", name="text.jpg")
    pets.add("test", 1, noise(1))
    report = inspect_dataset(pets.sources(notes=("left out: .git",)))
    told = json.loads(json.dumps(report.to_dict()))
    assert told["class_names"] == ["cat", "dog"]
    assert told["splits"]["train"]["class_counts"] == [1, 1]
    assert told["splits"]["train"]["notes"] == ["left out: .git"]
    assert told["leaks"][0]["count"] == 1 and told["findings"] == list(report.findings)


def test_images_that_are_transparent_everywhere_are_named(pets):
    hidden = np.dstack([noise(0), np.zeros((4, 6), np.uint8)])
    named = pets.add("train", 0, hidden)
    pets.add("train", 1, np.dstack([noise(1), np.full((4, 6), 255, np.uint8)]))
    pets.add("train", 1, np.full((4, 6, 3), 255, np.uint8))  # white, but not by its alpha
    report = inspect_dataset(pets.sources())
    assert report.splits["train"].invisible == (named,)
    (finding,) = [text for text in report.findings if "transparent" in text]
    assert "1 image of train" in finding and repr(named) in finding
