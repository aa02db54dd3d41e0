"""Tables with a number for each class: which labels and probabilities they mean."""

import json

import numpy as np
import pytest

from vit_jax.data import TableOptions, eval_batches, open_source
from vit_jax.data.folds import fold_of
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.sources.subset import stratified
from vit_jax.errors import UserError

NAMED = TableOptions(label_column="cat,dog,bird")


@pytest.fixture
def table(tmp_path):
    """Writes a file of labels of images that are not there, except `0.png`."""
    from PIL import Image

    Image.new("RGB", (2, 2), (9, 0, 0)).save(tmp_path / "0.png")

    def write(content, name="labels.csv"):
        lines = content if isinstance(content, str) else "\n".join(map(json.dumps, content))
        (tmp_path / name).write_text(lines)
        return f"{name.rpartition('.')[2]}:{tmp_path / name}"

    return write


def by_file(source):
    """The label and the soft label of every file."""
    rows = zip(source.files, source.labels.tolist(), source.soft_labels.tolist(), strict=True)
    return {file: (label, pytest.approx(soft)) for file, label, soft in sorted(rows)}


HEADER = "path,cat,dog,bird\n"


def test_columns_of_probabilities_are_detected_and_the_most_probable_class_is_the_label(table):
    rows = "0.png,0.7,0.2,0.1\n1.png,0,0.5,0.5\n2.png,0,0,1\n3.png,0.33,0.33,0.33\n"
    source = open_source(table(HEADER + rows), "train", holdout=0)
    assert source.class_names == ("cat", "dog", "bird") and not source.multi_label
    third = 1 / 3  # of 0.99
    expected = {
        "0.png": (0, [0.7, 0.2, 0.1]),
        "1.png": (1, [0, 0.5, 0.5]),  # the first of equal ones
        "2.png": (2, [0, 0, 1]),
        "3.png": (0, [third, third, third]),
    }
    assert by_file(source) == expected
    assert any("labels are probabilities of classes" in note for note in source.notes)
    example = source[source.files.index("0.png")]
    assert example["label"] == 0 and example["soft_label"].dtype == np.float32
    assert source.features["soft_label"].shape == (3,)


def test_votes_are_divided_by_their_sum_where_columns_are_named(table):
    name = table(HEADER + "0.png,8,2,0\n1.png,0,3,1\n2.png,,,1\n")
    source = open_source(name, "train", holdout=0, table=NAMED)
    expected = {"0.png": (0, [0.8, 0.2, 0]), "1.png": (1, [0, 0.75, 0.25]), "2.png": (2, [0, 0, 1])}
    assert by_file(source) == expected
    with pytest.raises(
        UserError, match="'cat', 'dog', 'bird' may each be .* probabilities or vote"
    ):
        open_source(name, "train")


def test_probabilities_that_do_not_sum_to_1_are_of_several_labels(table):
    name = table(HEADER + "0.png,0.9,0.8,0\n1.png,0.1,0.2,0.3\n2.png,1,0.5,0\n")
    source = open_source(name, "train", holdout=0, table=NAMED)
    assert source.multi_label and source.labels.dtype == np.uint8
    expected = {
        "0.png": ([1, 1, 0], [0.9, 0.8, 0]),
        "1.png": ([0, 0, 0], [0.1, 0.2, 0.3]),
        "2.png": ([1, 0, 0], [1, 0.5, 0]),
    }
    assert by_file(source) == expected


def test_an_object_in_json_has_a_number_for_each_class(table, tmp_path):
    lines = [
        {"path": "0.png", "label": {"cat": 0.7, "dog": 0.3}},
        {"path": "1.png", "label": {"dog": 1, "ant": 0}},
        {"path": "2.png", "label": "cat"},  # certain
    ]
    name = table(lines, "labels.jsonl")
    source = open_source(name, "train", holdout=0)
    assert source.class_names == ("ant", "cat", "dog")
    expected = {
        "0.png": (1, [0, 0.7, 0.3]),
        "1.png": (2, [0, 0, 1]),
        "2.png": (1, [0, 1, 0]),
    }
    assert by_file(source) == expected
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    with pytest.raises(UserError, match=r"jsonl:2: the label 'ant' is not in classes.txt"):
        open_source(name, "train")
    (tmp_path / "classes.txt").write_text("dog\ncat\nant\n")
    assert open_source(name, "train", holdout=0).class_names == ("dog", "cat", "ant")


def test_an_object_of_zeros_and_ones_marks_classes(table):
    lines = [{"path": "0.png", "label": {"cat": 1, "dog": 0}}, {"path": "1", "label": {"dog": 1}}]
    source = open_source(table(lines, "one.jsonl"), "train", holdout=0)
    assert source.soft_labels is None and not source.multi_label
    assert dict(zip(source.files, source.labels.tolist(), strict=True)) == {"0.png": 0, "1": 1}
    lines[0]["label"]["dog"] = 1
    assert open_source(table(lines, "several.jsonl"), "train", holdout=0).multi_label


def test_classes_of_a_model_number_the_probabilities(table):
    name = table(HEADER + "0.png,0.7,0.3,0\n1.png,0.4,0.6,0\n")
    names = ("dog", "fish", "cat")  # and no bird, which no image is
    source = open_source(name, "train", holdout=0, class_names=names)
    assert by_file(source) == {"0.png": (2, [0.3, 0, 0.7]), "1.png": (0, [0.6, 0, 0.4])}
    with pytest.raises(UserError, match="classes that the model was not trained on: 'cat'"):
        open_source(name, "train", holdout=0, class_names=("dog", "fish"))


MANY = "".join(f"{i}.png,{0.9 if i % 4 else 0.2},{0.1 if i % 4 else 0.8}\n" for i in range(40))


def test_parts_are_by_the_most_probable_class_and_keep_the_probabilities(table):
    name = table("path,cat,dog\n" + MANY)
    train, test = (open_source(name, split) for split in ("train", "test"))
    assert np.bincount(train.labels).tolist() == [24, 8]  # 30 and 10 without a fifth of each
    assert np.bincount(test.labels).tolist() == [6, 2]
    plain = open_source(name, "train", labels=False)
    assert plain.files == train.files and plain.soft_labels is None
    assert set(plain.features) == {"image"}
    whole = open_source(name, "train", holdout=0)
    for part in (stratified(whole, 8, seed=1), fold_of(whole, "1/5", seed=0)[1]):
        assert np.bincount(part.labels).tolist() == [6, 2]
        assert part.soft_labels.argmax(axis=1).tolist() == part.labels.tolist()


def test_batches_have_the_probabilities_and_zeros_where_an_image_is_missing(table):
    source = open_source(table(HEADER + "0.png,0.7,0.2,0.1\n1.png,0,0.5,0.5\n"), "all", holdout=0)
    [batch] = eval_batches(source, Preprocessing((2, 2)), batch_size=4)
    expected = np.zeros((4, 3), np.float32)
    expected[source.files.index("0.png")] = [0.7, 0.2, 0.1]
    np.testing.assert_allclose(batch["soft_label"], expected, rtol=1e-6)
    assert batch["mask"].sum() == 1


def test_the_fingerprint_is_that_of_the_probabilities_too(table):
    rows = "0.png,0.7,0.2,0.1\n1.png,0,0.5,0.5\n"
    names = (table(HEADER + rows), table(HEADER + rows.replace("0.7,0.2", "0.6,0.3"), "other.csv"))
    first, other = (open_source(name, "train", holdout=0) for name in names)
    assert first.labels.tolist() == other.labels.tolist()
    assert first.fingerprint != other.fingerprint
    with pytest.raises(UserError, match="has .* soft labels, .* which cannot be mixed"):
        open_source(f"mix:{names[0]}=1,{names[1]}=1", "train")


def test_captions_of_the_most_probable_class_keep_the_probabilities(table):
    name = f"captions:{table(HEADER + '0.png,0.7,0.2,0.1')}"
    source = open_source(name, "train", holdout=0)
    assert set(source[0]) == set(source.features) == {"image", "label", "soft_label", "text"}
    assert set(open_source(name, "train", holdout=0, labels=False).features) == {"image", "text"}


GOOD = "0.png,0.7,0.2,0.1\n1.png,0.1,0.8,0.1\n2.png,0.3,0.3,0.4\n"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (GOOD + "3.png,1.2,-0.2,0\n", r"csv:5: 'dog' is '-0.2'; it must be 0 or 1, a probability"),
        (GOOD + "3.png,2,0,0\n", "csv:5: 'cat' is 2, which is no probability; use numbers from 0"),
        (GOOD + "3.png,0,0,0\n", "csv:5: the probabilities of '3.png' sum to 0, but those of most"),
        (GOOD + "3.png,0.7,0.2,0\n4.png,1,1,0\n", "csv:5: .* sum to 0.9, .* 1 more in line 6"),
        (GOOD + "3.png,nan,0.5,0.5\n", "csv:5: 'cat' is 'nan'; it must be 0 or 1, a probability"),
        (GOOD + "3.png,0.5,0.5,inf\n", "csv:5: 'bird' is 'inf'; it must be 0 or 1, a probability"),
        (GOOD + "3.png,much,0.5,0.5\n", "csv:5: 'cat' is 'much'; it must be 0 or 1, a probabil"),
        (GOOD + "0.png,0.6,0.3,0.1\n", "csv:5: '0.png' has another label in .*csv:2"),
        ("0.png,8,2,0\n1.png,0,0,0\n2.png,3,0,0\n", "csv:3: '1.png' has no votes; remove the"),
        (
            "0.png,8,2,0\n1.png,0.5,0,0\n2.png,3,0,0\n",
            "csv:3: 'cat' is 0.5, but most lines have vo",
        ),
        ("0.png,1,0,0\n1.png,0,2,0\n2.png,1,1,0\n", "csv:3: 'dog' is 2, but most lines have only"),
    ],
)
def test_a_wrong_number_is_refused_with_its_line(table, rows, sentence):
    with pytest.raises(UserError, match=sentence):
        open_source(table(HEADER + rows), "train", table=NAMED)


@pytest.mark.parametrize(
    ("label", "sentence"),
    [
        ({"cat": "x"}, "jsonl:2: 'cat' is 'x'; it must be 0 or 1"),
        ({"cat": None}, "jsonl:2: 'cat' is 'None'; it must be 0 or 1"),
        ({}, "jsonl:2: the probabilities of '1' sum to 0"),
        ({"cat": 0.5, " cat": 0.5}, "jsonl:2: the class 'cat' has two numbers"),
        ({"": 1}, "jsonl:2: the label of '1' is empty"),
        (["cat", "dog"], "jsonl:2: '1' has several labels, but other lines have probabilities"),
        ([], "jsonl:2: the label of '1' is empty"),
    ],
)
def test_a_wrong_object_is_refused_with_its_line(table, label, sentence):
    good = {"cat": 0.5, "dog": 0.5}
    lines = [{"path": str(n), "label": of} for n, of in enumerate([good, label, good, good])]
    with pytest.raises(UserError, match=sentence):
        open_source(table(lines, "labels.jsonl"), "train")


def test_a_class_that_the_columns_of_training_lack_is_named(table, tmp_path):
    table("path,cat,dog\n0.png,0.5,0.5\n", "train.csv")
    table("path,cat,fish\n1.png,0.5,0.5\n", "test.csv")
    with pytest.raises(UserError, match="test has classes that the training split lacks, 'fish'"):
        open_source(f"csv:{tmp_path}", "test")
