"""The configuration of a student: the data and settings of its teacher, another model."""

import dataclasses
import shutil
from types import SimpleNamespace

import pytest

from vit_jax.cli import main
from vit_jax.compress.distill import student_config
from vit_jax.config import restore_config
from vit_jax.errors import UserError
from vit_jax.runs import RunDir


def test_a_student_has_the_settings_of_its_teacher(finished_run):
    changes = {"distillation.kind": "soft", "duration": "2 steps", "model.width": "4"}
    config = student_config(finished_run.path, "ViT-Ti/16", changes).to_dict()
    own = restore_config(finished_run.read_config()).to_dict()
    assert config["model"] == {
        **{"name": "ViT-Ti/16", "image_size": 16, "in_channels": 1},
        "width": 4,
    }
    assert config["distillation"] == {
        **own["distillation"],
        "teacher": str(finished_run.path),
        "kind": "soft",
    }
    assert config["duration"] == "2 steps"
    for section in ("data", "optimizer", "schedule", "augment", "dataset"):
        assert config[section] == own[section]


def test_the_command_trains_it(finished_run, tmp_path, monkeypatch, capsys):
    asked = []

    def fit(config, folder, **_):
        asked.append((config.model.name, config.seed, folder))
        return SimpleNamespace(result=None, step=1, total_steps=2)

    monkeypatch.setattr("vit_jax.training.fit", fit)
    arguments = ["distill", str(finished_run.path), str(tmp_path / "student"), "--to=ViT-Ti/16"]
    assert main([*arguments, "--config.seed=5", "--config.compile_cache=none"]) == 75
    assert asked == [("ViT-Ti/16", 5, tmp_path / "student")]
    assert "Stopped at step 1 of 2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("student", "changes", "sentence"),
    [
        ("ViT-Ti/61", {}, "--to=ViT-Ti/61 is invalid.*ViT-Ti/16"),
        ("ViT-Ti/16", {"seeed": "1"}, "there is no key 'seeed'"),
        ("ViT-Ti/16", {"distillation.kind": "firm"}, "distillation.kind = 'firm' is invalid"),
    ],
)
def test_wrong_names(finished_run, student, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        student_config(finished_run.path, student, changes)


def test_a_teacher_must_be_finished_and_have_data(finished_run, tmp_path):
    shutil.copytree(finished_run.path, tmp_path / "run", ignore=shutil.ignore_patterns("figures"))
    run = RunDir(tmp_path / "run")
    run.metrics_file.write_text("")
    with pytest.raises(UserError, match=r"is not finished \(step 24\)"):
        student_config(run.path, "ViT-Ti/16")
    run.config_file.unlink()  # as of converted weights
    run.metrics_file.unlink()
    with pytest.raises(UserError, match="has no data; name a data set"):
        student_config(run.path, "ViT-Ti/16")
    assert student_config(run.path, "ViT-Ti/16", {"dataset": "digits"}).dataset == "digits"


def test_a_teacher_must_classify(finished_run, tmp_path):
    record = dataclasses.replace(finished_run.read_model(), task="masked_autoencoding")
    run = RunDir(tmp_path / "mae")
    run.write_model(record)
    with pytest.raises(UserError, match="learned masked autoencoding, but a teacher must be"):
        student_config(run.path, "ViT-Ti/16")
