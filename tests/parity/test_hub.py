"""Parquet files as the Hugging Face library writes them, and as others do."""

import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import open_source
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


def test_splits_classes_and_images_of_the_hubs_own_files(tmp_path):
    names = datasets.ClassLabel(names=["cat", "dog", "eel"])
    features = datasets.Features({"image": datasets.Image(), "label": names})
    rows = [{"bytes": file, "path": None} for file in files()]
    for split, part in (("train", slice(0, 8)), ("validation", slice(8, 12))):
        columns = {"image": rows[part], "label": LABELS[part]}
        table = datasets.Dataset.from_dict(columns, features=features)
        table.to_parquet(tmp_path / f"{split}-00000-of-00001.parquet")
    source = open_source(f"parquet:{tmp_path}", "train")
    assert source.class_names == ("cat", "dog", "eel") and source.labels.tolist() == LABELS[:8]
    np.testing.assert_array_equal(source[3]["image"], PIXELS[3])
    held_out = open_source(f"parquet:{tmp_path}", "test")  # the validation split, without another
    assert len(held_out) == 4 and held_out[0]["label"] == LABELS[8]


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
