"""Checkpoints that were damaged, cut off, or are not there, and folders that go away."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.runs import RunDir, checkpoint_files
from vit_jax.training.checkpointing.checkpoints import Checkpoints

RECORD = {"data": {"train": "abc"}, "versions": {}}


def state(step):
    return {"params": {"kernel": jnp.full((64, 64), step, jnp.float32)}, "step": jnp.int32(step)}


@pytest.fixture
def run(tmp_path):
    """A run folder with the checkpoints 3 and 6."""
    folder = RunDir(tmp_path / "run")
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


def flip_a_value(folder):
    """One bit of the largest file, which holds the numbers."""
    files = [path for path in (folder / "state").rglob("d/*") if path.is_file()]
    path = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 8
    path.write_bytes(data)


def flip_a_record(folder):
    path = folder / "record" / "metadata"
    path.write_text(path.read_text().replace("abc", "abb"))


def flip_a_path(folder):
    path = folder / "state" / "_METADATA"
    path.write_text(path.read_text().replace("kernel", "jernel"))


def flip_a_checksum(folder):
    path = folder / "checksums" / "process_0.json"
    path.write_text(path.read_text().replace("kernel", "kernem"))


def no_checksums(folder):
    shutil.rmtree(folder / "checksums")


def half_record(folder):
    (folder / "record" / "metadata").write_text(json.dumps(RECORD)[:10])


def a_file(folder):
    shutil.rmtree(folder)
    folder.write_text("checkpoint")


def no_arrays(folder):
    shutil.rmtree(folder / "state" / "d")


@pytest.mark.parametrize(
    "damage",
    [
        *(halve, empty, no_record, empty_record, half_record, a_file, no_arrays, no_checksums),
        *(flip_a_value, flip_a_record, flip_a_path, flip_a_checksum),
    ],
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
    run = RunDir(tmp_path)
    run.checkpoints.write_text("checkpoints")
    with pytest.raises(UserError, match="checkpoints is a file.*move the file away"):
        Checkpoints(run, keep=3)


def test_another_model_is_refused_and_not_taken_for_damage(run):
    with Checkpoints(run, keep=3) as checkpoints:
        other = {"params": {"bias": jax.ShapeDtypeStruct((3,), jnp.float32)}}
        with pytest.raises(UserError, match="checkpoint 6 .* belongs to another model"):
            checkpoints.restore(other)
    assert run.steps() == [3, 6]


def test_bits_that_flip_on_the_way_into_the_state_are_noticed(run, monkeypatch):
    read = checkpoint_files.read_state

    def with_a_flipped_bit(folder, abstract):
        restored = read(folder, abstract)
        if folder.name == "6":
            kernel = np.array(restored["params"]["kernel"])
            kernel.view(np.uint32)[5, 7] ^= 1
            restored["params"]["kernel"] = jnp.asarray(kernel)
        return restored

    monkeypatch.setattr(checkpoint_files, "read_state", with_a_flipped_bit)
    said = []
    assert restored_step(run, said.append) == 3
    assert "checkpoint 6 is damaged (params/kernel differs from what was saved" in said[0]


def test_a_checkpoint_of_an_earlier_version_is_restored_and_that_is_said(run, capsys):
    folder = run.checkpoints / "6"
    shutil.rmtree(folder / "checksums")
    (folder / "record" / "metadata").write_text(json.dumps(RECORD))
    assert restored_step(run) == 6
    assert "without checksums" in capsys.readouterr().err


def test_as_many_checkpoints_as_asked_for_are_kept(run):
    save(run, 9, 12)  # keeps three
    assert run.steps() == [6, 9, 12]


def test_a_checkpoint_beyond_those_to_keep_is_cleaned_away(run):
    """A process that was killed between a save and the removal of an older one leaves it."""
    save(run, 9)
    with Checkpoints(run, keep=1) as checkpoints:
        checkpoints.best = 3
        checkpoints.clean()
    assert run.steps() == [3, 9]


@pytest.mark.parametrize("late", [False, True])
def test_a_folder_that_goes_is_said_and_not_half_made_again(run, late, monkeypatch):
    """Before a save, and after the save has looked whether it is there."""
    run.write_config({})
    run.hold()
    said = "was deleted or renamed while this run was training"
    with pytest.raises(UserError, match=said), Checkpoints(run, keep=3) as checkpoints:
        run.path.rename(run.path.with_name("renamed"))
        if late:
            monkeypatch.setattr(run, "check_held", lambda: None)
        checkpoints.save(9, state(9), RECORD)
        checkpoints._manager.wait_until_finished()
        monkeypatch.undo()
    assert not run.path.exists()
    assert RunDir(run.path.with_name("renamed")).steps() == [3, 6]
