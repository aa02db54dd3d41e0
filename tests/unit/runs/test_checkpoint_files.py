"""What of a checkpoint is noticed when it is damaged, and what of it is known."""

import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.unit.runs.test_run_dir import RECORD
from vit_jax.errors import UserError
from vit_jax.runs import RunDir, checkpoint_files
from vit_jax.runs.checkpoint_files import Damaged, Leaf

VARIABLES = {
    "params": {"head": {"kernel": np.linspace(-1, 1, 2000, dtype=np.float32).reshape(40, 50)}},
    "statistics": {"mean": np.arange(7, dtype=np.float32)},
}


@pytest.fixture
def run(tmp_path):
    """A run folder with weights that no training has made."""
    folder = RunDir(tmp_path / "run")
    folder.write_variables(VARIABLES, RECORD)
    return folder


def is_as_written(variables):
    return all(
        np.array_equal(one, other)
        for one, other in zip(jax.tree.leaves(variables), jax.tree.leaves(VARIABLES), strict=True)
    )


def flipped(data: bytes, rng: random.Random) -> bytes:
    """The same with one bit the other way round."""
    bits = bytearray(data)
    bits[rng.randrange(len(bits))] ^= 1 << rng.randrange(8)
    return bytes(bits)


def test_a_flipped_bit_in_any_file_of_a_checkpoint_is_noticed_or_harmless(run):
    folder, rng = run.checkpoints / "0", random.Random(0)
    files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
    assert {path.relative_to(folder).parts[0] for path in files} >= {"state", "checksums", "record"}
    noticed = 0
    for path in files:
        data = path.read_bytes()
        for _ in range(6):
            path.write_bytes(flipped(data, rng))
            try:
                variables, record = (
                    checkpoint_files.read_variables(folder, raw=False),
                    checkpoint_files.read_record(folder),
                )
            except Exception:  # Orbax raises nearly anything for a damaged file
                noticed += 1
            else:
                assert is_as_written(variables), path
                assert record["model"]["name"] == RECORD.name
        path.write_bytes(data)
    assert noticed >= 6 * 3
    assert is_as_written(run.read_variables()[0])


def test_values_that_changed_are_never_used(run, monkeypatch):
    """Whatever lies between the disk and here: the array is compared, and not the file."""
    read = checkpoint_files._read

    def with_a_flipped_bit(*arguments):
        restored = read(*arguments)
        kernel = restored["params"]["head"]["kernel"].copy()
        kernel.view(np.uint32)[3, 4] ^= 1
        return {**restored, "params": {"head": {"kernel": kernel}}}

    monkeypatch.setattr(checkpoint_files, "_read", with_a_flipped_bit)
    monkeypatch.setattr(checkpoint_files, "_read_arrays", None)
    with pytest.raises(Damaged, match="params/head/kernel differs from what was saved"):
        checkpoint_files.read_variables(run.checkpoints / "0", raw=False)
    with pytest.raises(UserError, match="no readable checkpoint"):
        run.read_variables()


def test_what_is_whole_is_read_without_orbax_and_what_is_not_by_it(run, monkeypatch):
    read, folder = checkpoint_files._read_arrays, run.checkpoints / "0"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "_read", None)
        assert is_as_written(checkpoint_files.read_variables(folder, raw=False))

    def with_a_flipped_bit(*arguments):
        arrays = read(*arguments)
        kernel = arrays["params/head/kernel"] = arrays["params/head/kernel"].copy()
        kernel.view(np.uint32)[3, 4] ^= 1
        return arrays

    monkeypatch.setattr(checkpoint_files, "_read_arrays", with_a_flipped_bit)
    assert is_as_written(checkpoint_files.read_variables(folder, raw=False))


def test_a_checkpoint_without_checksums_is_read_and_that_is_said_once(run, capsys):
    for part in ("checksums", "record"):
        for path in (run.checkpoints / "0" / part).iterdir():
            path.unlink()
        (run.checkpoints / "0" / part).rmdir()
    for _ in range(2):
        assert is_as_written(run.read_variables()[0])
    assert capsys.readouterr().err.count("without checksums") == 1


@pytest.mark.parametrize("lost", ["checksums/process_0.json", "record/metadata"])
def test_a_checkpoint_that_has_lost_its_checksums_or_record_is_damaged(run, lost):
    (run.checkpoints / "0" / lost).unlink()
    with pytest.raises(UserError, match="no readable checkpoint"):
        run.read_variables()


def test_shards_of_several_processes_make_the_checksums_of_the_whole(tmp_path):
    whole = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    (tmp_path / "checksums").mkdir()
    for process in range(2):
        rows = slice(2 * process, 2 * process + 2)
        part = checkpoint_files.LocalPieces((4, 6), "float32", [((rows.start, 0), whole[rows])])
        leaves = {"kernel": Leaf((4, 6), "float32", part.checksum())._asdict()}
        content = checkpoint_files.sealed({"processes": 2, "leaves": leaves})
        path = tmp_path / "checksums" / f"process_{process}.json"
        path.write_text(json.dumps(content))
    saved = checkpoint_files.read_checksums(tmp_path)
    assert saved["kernel"].shape == (4, 6)
    assert (
        checkpoint_files.differing(saved, checkpoint_files.local_checksums({"kernel": whole})) == ""
    )
    path.unlink()
    with pytest.raises(Damaged, match="some of its checksums"):
        checkpoint_files.read_checksums(tmp_path)


def test_replicas_of_a_shard_count_once():
    devices = jax.devices()[:1]
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    array = jnp.arange(12.0).reshape(3, 4)
    cut = jax.device_put(array, NamedSharding(mesh, PartitionSpec("data")))
    sums = checkpoint_files.local_checksums(
        {"cut": cut, "whole": array, "plain": np.asarray(array)}
    )
    assert len(set(sums.values())) == 1


def test_a_model_record_that_is_not_the_one_saved_is_told(run, capsys):
    run.write_model(RECORD)
    run.read_variables()
    assert capsys.readouterr().err == ""
    text = run.model_file.read_text()
    run.model_file.write_text(text.replace("0.2", "0.3").replace("hot dog", "cold cat"))
    run.read_variables()
    told = capsys.readouterr().err
    assert "preprocessing.mean [0.1, 0.2, 0.3] -> [0.1, 0.3, 0.3]" in told
    assert "class_names" not in told  # people write them


def test_a_full_disk_is_told_with_the_folder_and_the_room_that_is_needed(tmp_path, monkeypatch):
    def no_room(*_, **__):
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device")

    monkeypatch.setattr(checkpoint_files, "save_args", no_room)
    said = "checkpoints .*No space left.*up to 0.0 MiB are needed and .* MiB are free"
    with pytest.raises(UserError, match=said):
        RunDir(tmp_path / "run").write_variables(VARIABLES)


def test_only_fields_that_change_the_meaning_of_parameters_are_changes():
    saved = json.loads(json.dumps(RECORD.to_json()))
    fields = {**RECORD.fields, "attention_impl": "xla", "dtype": "bfloat16", "remat": "full"}
    assert checkpoint_files.model_changes(saved, {**saved, "fields": fields}) == []
    deeper = {**saved, "fields": {**fields, "depth": 99}}
    [change] = checkpoint_files.model_changes(saved, deeper)
    assert change.startswith("fields.depth") and change.endswith("-> 99")
