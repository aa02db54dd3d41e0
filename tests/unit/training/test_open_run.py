"""Runs and converted weights opened again, with their own data or others."""

import numpy as np
import pytest
from PIL import Image

from tests.support.stored import stored, write_files
from vit_jax.errors import UserError
from vit_jax.inference import convert
from vit_jax.training.open_run import open_run
from vit_jax.weights.formats import Hints

NAMES = ("ant", "bee", "cat", "dog", "eel")  # of the golden file, in its order


@pytest.fixture
def converted(tmp_path):
    case = stored("hf_vit")
    files = write_files(tmp_path / "files", case.tensors, case.config, case.preprocessor)
    convert(str(files), str(tmp_path / "run"), "run", Hints())
    return tmp_path / "run"


@pytest.fixture
def folder(tmp_path):
    """Two classes of the model, in one piece."""
    for name, count in (("dog", 2), ("bee", 1)):
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(count):
            image = Image.fromarray(np.full((16, 16, 3), 50 * number, np.uint8))
            image.save(tmp_path / "images" / name / f"{number}.png")
    return f"folder:{tmp_path / 'images'}"


@pytest.mark.parametrize("split", ["train", "test"])
def test_converted_weights_are_evaluated_on_a_folder_that_is_not_divided(converted, folder, split):
    reopened = open_run(converted, folder, split)
    source = reopened.source(split)
    assert source.class_names == NAMES
    assert sorted(source[i]["label"] for i in range(len(source))) == [1, 3, 3]
    assert reopened.experiment.record.class_names == NAMES


def test_converted_weights_are_evaluated_on_a_folder_with_val_alone(converted, folder, tmp_path):
    (tmp_path / "images").rename(tmp_path / "val")
    (tmp_path / "images").mkdir()
    (tmp_path / "val").rename(tmp_path / "images" / "val")
    source = open_run(converted, folder, "test").source("test")
    assert source.class_names == NAMES
    assert sorted(source[i]["label"] for i in range(len(source))) == [1, 3, 3]


def test_a_run_has_its_own_splits_and_takes_other_data(finished_run, tmp_path):
    reopened = open_run(finished_run.path)
    assert [len(reopened.source(name)) for name in ("train", "validation", "test")] == [
        *(1150, 287),  # 80 % of 1,437, and the rest
        360,
    ]
    with pytest.raises(UserError, match="has no split 'val'; it has train, validation, test"):
        reopened.source("val")


def test_weights_that_were_converted_have_no_data_of_their_own(converted):
    with pytest.raises(UserError, match="was not trained here.*--dataset=DATASET"):
        open_run(converted)


def test_a_run_is_opened_with_other_fields_of_the_computation(finished_run):
    reopened = open_run(finished_run.path, fields={"keep_ratio": (0.5,)})
    assert reopened.experiment.model.keep_ratio == (0.5,)
    assert reopened.experiment.record.fields["keep_ratio"] == (0.5,)
    with pytest.raises(UserError, match="'depth' of a trained model cannot be changed in use"):
        open_run(finished_run.path, fields={"depth": 2})
