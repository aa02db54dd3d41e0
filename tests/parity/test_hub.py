"""Parquet files as the Hugging Face library writes them, and as others do."""

import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import TableOptions, open_source
from vit_jax.errors import UserError

pytestmark = pytest.mark.parity
datasets = pytest.importorskip("datasets", reason="of the optional group parity")

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3), np.uint8)
LABELS = [0, 1, 2] * 4


def files():
    """The images as PNG files."""
    for pixels in PIXELS:
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "png")
        yield file.getvalue()


def places(source):
    """The place of each image of a source in `PIXELS`."""
    return [PIXELS.tolist().index(example["image"].tolist()) for example in source]


def test_splits_classes_and_images_of_the_hubs_own_files(tmp_path):
    names = datasets.ClassLabel(names=["cat", "dog", "eel"])
    features = datasets.Features({"image": datasets.Image(), "label": names})
    rows = [{"bytes": file, "path": None} for file in files()]
    for split, part in (("train", slice(0, 8)), ("validation", slice(8, 12))):
        columns = {"image": rows[part], "label": LABELS[part]}
        table = datasets.Dataset.from_dict(columns, features=features)
        table.to_parquet(tmp_path / f"{split}-00000-of-00001.parquet")
    source = open_source(f"parquet:{tmp_path}", "train")
    order = places(source)
    assert sorted(order) == list(range(8)) and source.class_names == ("cat", "dog", "eel")
    assert source.labels.tolist() == [LABELS[place] for place in order]
    assert source.where(3) == f"row {order[3]} of parquet:{tmp_path} train"
    held_out = open_source(f"parquet:{tmp_path}", "test")  # the validation split, without another
    assert sorted(places(held_out)) == [8, 9, 10, 11]


def test_a_single_file_of_bytes_and_names_is_divided(tmp_path):
    table = datasets.Dataset.from_dict(
        {"picture": list(files()), "label": [f"class {n}" for n in LABELS]}
    )
    table.to_parquet(tmp_path / "all.parquet")
    sizes = [len(open_source(f"parquet:{tmp_path / 'all.parquet'}", s)) for s in ("train", "test")]
    assert sum(sizes) == 12 and min(sizes) > 0
    source = open_source(f"parquet:{tmp_path / 'all.parquet'}", "train+test")
    assert source.class_names == ("class 0", "class 1", "class 2")


def test_columns_that_do_not_say_which_is_the_image_are_one_sentence(tmp_path):
    datasets.Dataset.from_dict({"text": ["a"]}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="has no column of images; its columns are text"):
        open_source(f"parquet:{tmp_path}", "train")
    two = {"left": list(files())[:1], "right": list(files())[:1]}
    datasets.Dataset.from_dict(two).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="several columns of images, left, right"):
        open_source(f"parquet:{tmp_path}", "train")


def test_a_damaged_file_is_one_sentence(tmp_path):
    (tmp_path / "train.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(UserError, match="cannot be read"):
        open_source(f"parquet:{tmp_path}", "train")


SOFT = [[0.7, 0.2, 0.1], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]] * 4
CLASSES = ("cat", "dog", "eel")


def written(path, **columns):
    """The name of the dataset of a file with the images and some columns."""
    datasets.Dataset.from_dict({"image": list(files()), **columns}).to_parquet(path / "all.parquet")
    return f"parquet:{path / 'all.parquet'}"


@pytest.mark.parametrize("form", ["columns", "structure", "votes"])
def test_numbers_for_each_class_are_probabilities(tmp_path, form):
    rows = [dict(zip(CLASSES, row, strict=True)) for row in SOFT]
    columns = {name: [row[name] for row in rows] for name in CLASSES}
    options = None
    if form == "structure":
        columns = {"label": [{name: x for name, x in row.items() if x} for row in rows]}
    if form == "votes":
        columns = {name: [round(10 * x) for x in column] for name, column in columns.items()}
        options = TableOptions(label_column="cat,dog,eel")
    source = open_source(written(tmp_path, **columns), "train+test", table=options)
    order = places(source)
    assert source.class_names == CLASSES and not source.multi_label
    assert source.labels.tolist() == [(0, 1, 2)[place % 3] for place in order]
    for index, place in enumerate(order):
        np.testing.assert_allclose(source[index]["soft_label"], SOFT[place], rtol=1e-6)
    assert any("labels are" in note for note in source.notes)


def test_rows_that_are_sorted_by_class_are_mixed_before_a_part_is_taken(tmp_path):
    dataset = written(tmp_path, label=["cat"] * 6 + ["dog"] * 6)
    parts = [open_source(dataset, part, holdout=0) for part in ("train[:50%]", "train[50%:]")]
    assert [set(part.labels) for part in parts] == [{0, 1}, {0, 1}]
    assert sorted(places(parts[0]) + places(parts[1])) == list(range(12))
    assert not parts[0].overlaps(parts[1])


def test_classes_have_the_normal_form_of_tables_and_hidden_files_are_left_out(tmp_path):
    dataset = written(tmp_path, label=["caf\u00e9", "cafe\u0301 ", "dog"] * 4)
    (tmp_path / "._all.parquet").write_bytes(b"of another system")
    source = open_source(f"parquet:{tmp_path}", "train", holdout=0)
    assert source.class_names == ("caf\u00e9", "dog") and sorted(source.labels)[7:] == [0] + [1] * 4
    assert len(open_source(dataset, "train", holdout=0)) == 12
    whole = written(tmp_path, label=[0.0, 1.0, 10.0] * 4)
    assert open_source(whole, "train").class_names == ("0", "1", "10")


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        ([["cat"], ["cat", "dog"]] * 6, "the column 'label' has List"),
        ([n / 7 for n in range(12)], "the column 'label' has values such as 0[.]"),
    ],
)
def test_a_column_that_has_no_classes_is_one_sentence(tmp_path, labels, sentence):
    with pytest.raises(UserError, match=sentence):
        open_source(written(tmp_path, label=labels), "train")


def test_columns_of_zeros_and_ones_are_labels(tmp_path):
    columns = {"cat": [1, 0, 1] * 4, "dog": [0, 1, 1] * 4}
    source = open_source(written(tmp_path, **columns), "train")
    assert source.multi_label and source[0]["label"].tolist() in ([1, 0], [0, 1], [1, 1])
    assert set(source.features) == {"image", "label"}


@pytest.mark.parametrize(
    ("cat", "asked", "sentence"),
    [
        (-0.5, "", "train:1: 'cat' is '-0.5'; it must be 0 or 1, a probability"),
        (0.75, "", "train:1: the probabilities of 'row 1' sum to 1.25, but those of most"),
        (0.5, "cat,dogs", "no column 'dogs' .data.label_column.; .* did you mean 'dog'"),
    ],
)
def test_wrong_numbers_are_refused_with_their_row(tmp_path, cat, asked, sentence):
    columns = {"cat": [0.5, cat] + [0.5] * 10, "dog": [0.5] * 12}
    with pytest.raises(UserError, match=sentence):
        table = TableOptions(label_column=asked) if asked else None
        open_source(written(tmp_path, **columns), "train", table=table)
