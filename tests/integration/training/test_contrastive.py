"""A text tower is trained for the image tower of another run, which keeps its bits."""

import jax
import numpy as np
import pytest

from tests.folders import ROOT
from vit_jax.config import load_config
from vit_jax.data.text import train_tokenizer
from vit_jax.errors import UserError
from vit_jax.inference import load_model
from vit_jax.runs import RunDir
from vit_jax.runs.tokenizer import read_tokenizer
from vit_jax.training import fit
from vit_jax.training.open_run import open_run
from vit_jax.training.setup.build import build

SMALL = {
    "objective.embed_width": "4",
    "objective.text_width": "8",
    "objective.text_depth": "1",
    "objective.text_heads": "2",
    **{"duration": "2 steps", "schedule.warmup": "0 steps", "log.every": "2"},
    **{"evaluate.every": "2", "checkpoint.every": "2"},
}


def test_a_locked_image_tower_has_the_bits_of_the_run_it_comes_from(overrides, tmp_path):
    config = str(ROOT / "configs/language/digits.py")
    fit(load_config(config, overrides(SMALL)), tmp_path / "clip")
    locked = {"objective.freeze_image": "true", "init_from": str(tmp_path / "clip")}
    # Averaged parameters are what a run gives; an average of equal numbers may be rounded.
    locked |= {**SMALL, "ema_decay": "0.5"}
    fit(load_config(config, overrides(locked)), tmp_path / "lit")
    first, second = (load_model(tmp_path / name).params for name in ("clip", "lit"))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    before, after = (
        RunDir(tmp_path / name).read_variables()[0]["params"] for name in ("clip", "lit")
    )
    assert set(before) - set(after) == {"image"}
    _check_starts(overrides, tmp_path, before)
    with pytest.raises(UserError, match="digits test has no captions, but the task contrastive n"):
        open_run(tmp_path / "clip", "digits")
    # The tokenizer is kept beside them, and no other one takes its place.
    run = RunDir(tmp_path / "clip")
    assert read_tokenizer(run).encode("a scan of a 7").tolist()
    train_tokenizer(["other words"], length=24, units="words").save(run.tokenizer)
    with pytest.raises(UserError, match="to which the weights belong, is not that of the data: a "):
        fit(load_config(config, overrides(SMALL)), run.path)


def _check_starts(overrides, tmp_path, before):
    """Both towers of a run, or its image tower alone, are the beginning of another one."""

    def built(changes):
        values = {"dataset": "captions:digits", "task": "contrastive", **changes}
        values["init_from"] = str(tmp_path / "clip")
        return build(load_config(str(ROOT / "configs/digits.py"), overrides(values)))

    experiment = built({})
    state = experiment.initial_state()
    jax.tree.map(np.testing.assert_array_equal, state.params, before)
    assert str(experiment.start) == "no changes"
    assert experiment.record.options["text_width"] == 8
    alone = {name: value for name, value in SMALL.items() if "objective" in name}
    said = str(built({**alone, "objective.start_text": "false"}).start)
    assert "of the model alone, and the task's other modules are untrained: logits, pro" in said
    train_tokenizer(["other words"], length=24).save(tmp_path / "other")
    with pytest.raises(UserError, match="has a vocabulary of [0-9]+, but the tokenizer of the dat"):
        built({"data.tokenizer": str(tmp_path / "other")})
