"""Checkpoints that were damaged, cut off, or are not there."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.runs import RunFolder
from vit_jax.training.checkpoints import Checkpoints

RECORD = {"data": {"train": "abc"}, "versions": {}}


def state(step):
    return {"params": {"kernel": jnp.full((64, 64), step, jnp.float32)}, "step": jnp.int32(step)}


@pytest.fixture
def run(tmp_path):
    """A run folder with the checkpoints 3 and 6."""
    folder = RunFolder(tmp_path / "run")
    save(folder, 3, 6)
    return folder


def save(run, *steps):
    with Checkpoints(run, keep=3) as checkpoints:
        for step in steps:
            checkpoints.save(step, state(step), RECORD)


def restored_step(run, warn=print):
    with Checkpoints(run, keep=3, warn=warn) as checkpoints:
        shapes = jax.eval_shape(lambda: state(0))
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        abstract = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes
        )
        step, restored, record = checkpoints.restore(abstract)
    assert record == RECORD and int(restored["step"]) == step
    np.testing.assert_array_equal(restored["params"]["kernel"], np.full((64, 64), step))
    return step


def halve(folder):
    """Every file of a folder loses its second half."""
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def no_record(folder):
    shutil.rmtree(folder / "record")


def empty_record(folder):
    (folder / "record" / "metadata").write_text("{}")


def half_record(folder):
    (folder / "record" / "metadata").write_text(json.dumps(RECORD)[:10])


def a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("checkpoint")


def no_arrays(folder):
    shutil.rmtree(folder / "state" / "d")


@pytest.mark.parametrize(
    "damage", [halve, empty, no_record, empty_record, half_record, a_file, no_arrays]
)
def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_is_saved_again(run, damage):
    damage(run.checkpoints / "6")
    said = []
    assert restored_step(run, said.append) == 3
    assert len(said) == 1 and said[0].startswith("checkpoint 6 is damaged")
    assert (run.path / "damaged_checkpoints" / "6").exists()
    save(run, 6)
    assert restored_step(run) == 6


def test_what_an_interrupted_save_leaves_is_no_checkpoint_and_in_nobodys_way(run):
    shutil.copytree(run.checkpoints / "6", run.checkpoints / "9.orbax-checkpoint-tmp-1")
    assert restored_step(run) == 6
    save(run, 9)
    assert restored_step(run) == 9
    assert run.steps() == [3, 6, 9]
    assert {path.name for path in run.checkpoints.iterdir()} == {"3", "6", "9"}


def test_files_of_others_among_the_checkpoints_do_not_disturb(run):
    (run.checkpoints / "notes.txt").write_text("mine")
    (run.checkpoints / "old").mkdir()
    assert restored_step(run) == 6
    assert (run.checkpoints / "notes.txt").read_text() == "mine"


def test_a_file_where_the_folder_should_be_is_one_sentence(tmp_path):
    run = RunFolder(tmp_path)
    run.checkpoints.write_text("checkpoints")
    with pytest.raises(UserError, match="checkpoints is a file.*move the file away"):
        Checkpoints(run, keep=3)


def test_another_model_is_refused_and_not_taken_for_damage(run):
    with Checkpoints(run, keep=3) as checkpoints:
        other = {"params": {"bias": jax.ShapeDtypeStruct((3,), jnp.float32)}}
        with pytest.raises(UserError, match="checkpoint 6 .* belongs to another model"):
            checkpoints.restore(other)
    assert run.steps() == [3, 6]
