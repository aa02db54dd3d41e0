import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest

from vit_jax.analysis.report.run_report import check_reportable
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.runs import ModelRecord, RunDir, checkpoint_files
from vit_jax.runs.checksums import sealed
from vit_jax.training.checkpointing.claim import claimed
from vit_jax.training.logging.reporter import Reporter

RECORD = ModelRecord(
    name="ViT-Ti/16",
    fields={"num_classes": 2, "image_size": (32, 64), "activation": "quick_gelu", "norm_eps": 1e-5},
    preprocessing=Preprocessing((32, 64), mean=(0.1, 0.2, 0.3), std=(0.5,), crop=0.9),
    class_names=("猫", "hot dog"),
)


def test_a_model_record_survives_json_with_every_field(tmp_path):
    run = RunDir(tmp_path / "run")
    run.write_model(RECORD)
    assert run.read_model() == RECORD
    model = run.read_model().create_model()
    assert (model.image_size, model.activation, model.norm_eps) == ((32, 64), "quick_gelu", 1e-5)


def test_a_record_of_another_format_is_refused(tmp_path):
    run = RunDir(tmp_path)
    run.write_model(RECORD)
    content = json.loads(run.model_file.read_text())
    run.model_file.write_text(json.dumps({**content, "format": 99}))
    run.write_config({})
    for refused in (run.read_model, run.check_format, lambda: check_reportable(run)):
        with pytest.raises(UserError, match="has format 99 and this vit_jax reads format 2"):
            refused()


def test_a_run_of_another_format_is_refused_before_its_keys_are_read(tmp_path, tiny_config):
    run = RunDir(tmp_path)
    run.config_file.write_text('{"accumulate": 1}')
    run.model_file.write_text('{"format": 1}')
    quiet = Reporter(1, 1, quiet=True)
    with pytest.raises(UserError, match="has format 1"), claimed(run, tiny_config(), quiet):
        pass
    assert run.config_file.read_text() == '{"accumulate": 1}'


def test_a_damaged_record_is_named(tmp_path):
    run = RunDir(tmp_path)
    run.model_file.write_text('{"name": ')
    with pytest.raises(UserError, match="model.json cannot be read"):
        run.read_model()


def test_a_near_run_folder_is_suggested(tmp_path):
    RunDir(tmp_path / "flowers").write_model(RECORD)
    with pytest.raises(UserError, match="did you mean .*flowers"):
        RunDir(tmp_path / "flower").read_model()


def test_only_complete_checkpoints_count(tmp_path):
    run = RunDir(tmp_path)
    for name in ("5", "7", "9.orbax-checkpoint-tmp", "notes"):
        (run.checkpoints / name).mkdir(parents=True)
    (run.checkpoints / "5" / "state").mkdir()
    (run.checkpoints / "5" / "_CHECKPOINT_METADATA").touch()
    assert run.steps() == [5]


def test_a_young_run_has_no_checkpoint_and_says_how_to_get_one(tmp_path):
    with pytest.raises(UserError, match="has no checkpoint yet; train with"):
        RunDir(tmp_path).find_step()


def test_the_best_is_asked_for_in_vain_without_validation_data(tmp_path):
    run = RunDir(tmp_path)
    (run.checkpoints / "5" / "state").mkdir(parents=True)
    (run.checkpoints / "5" / "_CHECKPOINT_METADATA").touch()
    with pytest.raises(UserError, match="has no validation data"):
        run.find_step("best")


def test_the_best_step_is_the_latest_that_was_a_new_best(tmp_path):
    run = RunDir(tmp_path)
    with_checkpoints(run, 3, 6)
    lines = [{"kind": "evaluate", "step": 3, "best": True}, {"kind": "evaluate", "step": 6}]
    run.metrics_file.write_text("\n".join(map(json.dumps, lines)))
    assert run.best_step() == 3


def with_checkpoints(run, *steps):
    """Makes empty folders that count as complete checkpoints."""
    for step in steps:
        (run.checkpoints / str(step) / "state").mkdir(parents=True)
        (run.checkpoints / str(step) / "_CHECKPOINT_METADATA").touch()


def test_a_new_best_counts_from_when_its_checkpoint_is_whole(tmp_path):
    run = RunDir(tmp_path)
    with_checkpoints(run, 4, 6)
    lines = [{"kind": "evaluate", "step": step, "best": True} for step in (2, 4, 8)]
    run.metrics_file.write_text("\n".join(map(json.dumps, lines)))
    assert run.best_step() == run.find_step("best") == 4
    (run.checkpoints / "8.orbax-checkpoint-tmp").mkdir()
    assert run.find_step("best") == 4
    with_checkpoints(run, 8)
    assert run.find_step("best") == 8


@pytest.mark.parametrize("which", ["last", "best"])
def test_a_checkpoint_that_is_replaced_while_it_is_read_leads_to_the_new_one(
    tmp_path, monkeypatch, which
):
    run = RunDir(tmp_path)
    with_checkpoints(run, 4)
    lines = [{"kind": "evaluate", "step": step, "best": True} for step in (4, 8)]
    run.metrics_file.write_text("\n".join(map(json.dumps, lines)))

    def read(folder, raw):
        if folder.name == "8":
            return {"params": {"a": 8}}
        with_checkpoints(run, 8)
        shutil.rmtree(run.checkpoints / "4")
        raise FileNotFoundError("its files are gone")

    monkeypatch.setattr(checkpoint_files, "read_variables", read)
    assert run.read_variables(which) == ({"params": {"a": 8}}, 8)


def test_a_best_checkpoint_that_is_gone_is_not_replaced_in_silence(tmp_path):
    run = RunDir(tmp_path)
    with_checkpoints(run, 2, 6)
    lines = [{"kind": "evaluate", "step": step, "best": True} for step in (2, 4)]
    run.metrics_file.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UserError, match=r"of its best step \(4\); use 'last' or one of 2, 6"):
        run.find_step("best")


def test_the_last_checkpoint_knows_the_best_that_the_log_has_lost(tmp_path):
    run = RunDir(tmp_path)
    with_checkpoints(run, 2, 6)
    (run.checkpoints / "6" / "record").mkdir()
    content = sealed({"data": {}, "log": {"lines": 3, "crc32": 0, "best": {"step": 2}}})
    (run.checkpoints / "6" / "record" / "metadata").write_text(json.dumps(content))
    assert run.find_step("best") == 2


def test_what_a_run_has_not_is_not_offered(tmp_path):
    run = RunDir(tmp_path)
    with_checkpoints(run, 2, 6)
    with pytest.raises(UserError, match="no checkpoint 17; use 'last' or one of 2, 6$"):
        run.find_step(17)
    run.metrics_file.write_text(json.dumps({"kind": "evaluate", "step": 2, "best": True}))
    with pytest.raises(UserError, match="no checkpoint 17; use 'last', 'best' or one of 2, 6$"):
        run.find_step(17)


@pytest.fixture
def held(tmp_path):
    """A run folder that a training holds."""
    run = RunDir(tmp_path / "run")
    run.write_config({})
    run.lock_file.write_text("process 1")
    run.hold("process 1")
    run.check_held()
    return run


def test_a_run_folder_that_is_deleted_or_renamed_is_noticed(held):
    held.path.rename(held.path.with_name("renamed"))
    with pytest.raises(UserError, match="was deleted or renamed .* new path as --workdir"):
        held.check_held()
    held.checkpoints.mkdir(parents=True)  # what a late write makes anew
    with pytest.raises(UserError, match="was deleted or renamed"):
        held.check_held()


def test_a_run_folder_of_another_training_is_not_written_to(held):
    held.path.rename(held.path.with_name("renamed"))
    held.write_config({})
    held.lock_file.write_text("process 2")
    with pytest.raises(UserError, match="replaced by that of another training"):
        held.check_held()


def test_a_lock_that_somebody_has_cleaned_up_ends_no_training(held):
    held.lock_file.unlink()
    held.check_held()


def test_a_checkpoint_loads_into_a_model_with_the_other_layout_of_blocks(finished_run, tmp_path):
    apart, step = finished_run.read_variables()
    copy = RunDir(shutil.copytree(finished_run.path, tmp_path / "copy"))
    record = copy.read_model()
    scanned = dataclasses.replace(record, fields={**record.fields, "scan_layers": True})
    copy.write_model(scanned)
    stacked, same_step = copy.read_variables()
    assert same_step == step
    kernel = apart["params"]["blocks_0"]["mlp"]["fc1"]["kernel"]
    np.testing.assert_array_equal(stacked["params"]["blocks"]["mlp"]["fc1"]["kernel"], [kernel])

    shape = (3, *record.preprocessing.size, record.preprocessing.channels)
    images = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = jax.jit(record.create_model().apply)(apart, images)
    ours = jax.jit(scanned.create_model().apply)(stacked, images)
    np.testing.assert_allclose(ours, expected, atol=1e-6)
