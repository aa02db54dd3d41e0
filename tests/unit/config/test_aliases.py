"""Names of other trainers lead to the key that they mean."""

import pytest

from vit_jax.config.aliases import _BY_SHORT, find_keys, suggest_key
from vit_jax.config.schema import KEYS
from vit_jax.models import model_fields
from vit_jax.models.registry import MODELS


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("lr", "optimizer.learning_rate"),
        ("LR", "optimizer.learning_rate"),
        ("optim.lr", "optimizer.learning_rate"),
        ("wd", "optimizer.weight_decay"),
        ("weight-decay", "optimizer.weight_decay"),
        ("bs", "batch_size"),
        ("batch-size", "batch_size"),
        ("train.batch_size", "batch_size"),
        ("epochs", "duration"),
        ("max_steps", "duration"),
        ("warmup", "schedule.warmup"),
        ("mixup", "augment.mixup"),
        ("drop_path", "model.drop_path"),
        ("img_size", "model.image_size"),
        ("data_path", "dataset"),
        ("resume_from_checkpoint", "resume"),
        ("pretrained", "init_from"),
        ("num_workers", "data.workers"),
        ("label_smoothing", "objective.label_smoothing"),
        ("lrr", "optimizer.learning_rate"),
    ],
)
def test_a_short_name_leads_to_its_key_alone(name, key):
    hint = suggest_key(name)
    assert hint.startswith(f"; did you mean {key!r}") and len(hint) < 120


def test_a_length_is_said_to_want_its_unit():
    assert "a bare number is steps" in suggest_key("epochs")


def test_the_run_folder_is_an_option():
    assert "--workdir=FOLDER" in suggest_key("output_dir")


def test_a_name_that_nobody_knows_does_not_list_all_keys():
    assert len(suggest_key("zzz.qqq")) < 100 and len(suggest_key("x" * 10**6)) < 200


def test_all_that_is_suggested_exists():
    fields = {field for name in MODELS for field in model_fields(name)}
    for key in _BY_SHORT.values():
        assert key in KEYS or key.removeprefix("model.") in fields


def test_keys_are_found_by_a_word_of_theirs_and_by_their_short_names():
    assert set(find_keys(["mixup"])) == {"augment.mixup"}
    assert "optimizer.weight_decay" in find_keys(["wd"])
    assert list(find_keys([])) == list(KEYS)
