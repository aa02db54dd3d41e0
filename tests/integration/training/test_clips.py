"""A TimeSformer is trained on clips, in a run that is loaded and begun from as any other."""

import jax
import numpy as np
import pytest

from tests.folders import ROOT
from vit_jax.config import load_config
from vit_jax.errors import UserError
from vit_jax.inference import load_model
from vit_jax.runs import RunDir
from vit_jax.training import fit
from vit_jax.training.setup.build import build

CONFIG = str(ROOT / "configs/video/moving_digits.py")
SMALL = {
    "dataset": "moving:digits:16",
    "data.test": "test[:8]",
    "batch_size": "4",
    "model.width": "8",
    "model.depth": "1",
    "model.heads": "2",
    **{"duration": "2 steps", "schedule.warmup": "0 steps", "log.every": "2"},
    **{"evaluate.every": "2", "checkpoint.every": "2"},
}


@pytest.mark.slow
def test_a_run_on_clips_is_used_and_begun_from(overrides, tmp_path):
    fit(load_config(CONFIG, overrides(SMALL)), tmp_path / "first")
    classifier = load_model(tmp_path / "first")
    assert classifier.preprocessing.shape == (8, 32, 32, 1)
    clips = np.zeros((2, 12, 20, 20, 3), np.uint8)
    assert [len(one) for one in classifier(clips)] == [4, 4]

    # Of another number of frames the table of frames is resized, and nothing else.
    more = {**SMALL, "init_from": str(tmp_path / "first"), "model.num_frames": "4"}
    experiment = build(load_config(CONFIG, overrides(more)))
    assert experiment.record.preprocessing.frames == 4
    params = experiment.initial_state().params
    shapes = jax.tree.map(np.shape, (classifier.params["time_embed"], params["time_embed"]))
    assert shapes == ((1, 4, 8), (1, 2, 8))
    jax.tree.map(np.testing.assert_array_equal, params["blocks_0"], classifier.params["blocks_0"])


@pytest.mark.slow
def test_the_encoder_of_v_jepa_2_is_trained_to_classify_clips(overrides, tmp_path):
    changes = {**SMALL, "model.name": "VJEPA2", "model.width": "12"}
    fit(load_config(CONFIG, overrides(changes)), tmp_path / "run")
    classifier = load_model(tmp_path / "run")
    assert classifier.preprocessing.shape == (8, 32, 32, 1)
    assert [len(one) for one in classifier(np.zeros((1, 8, 20, 20, 3), np.uint8))] == [4]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"augment.mixup": "0.2"}, r"augment\.mixup = 0\.2 is for single images, and .* 8 frames"),
        ({"model.name": "ViT-Ti/16"}, "has clips, but the model takes single images"),
        ({"dataset": "digits"}, "has single images, but the model takes clips of 8 frames"),
        ({"model.num_frames": "5"}, "clips of 5 frames cannot be cut into tubelets of 2"),
    ],
)
def test_what_does_not_fit_clips_is_one_sentence(changes, sentence, overrides):
    if "model.name" in changes:
        config = load_config(
            str(ROOT / "configs/digits.py"), overrides({"dataset": "moving:digits"})
        )
    else:
        config = load_config(CONFIG, overrides({**SMALL, **changes, "data.test": "test"}))
    with pytest.raises(UserError, match=sentence) as caught:
        build(config)
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_motion_is_learned_from_several_frames_and_not_from_one(data_dir, tmp_path):
    one = {"model.num_frames": "1", "model.tubelet_size": "1"}
    for name, changes in {"clips": {}, "frames": one}.items():
        changes = {**changes, "data.dir": data_dir}
        fit(load_config(CONFIG, list(changes.items())), tmp_path / name)
    found = [RunDir(tmp_path / name).result()["accuracy"] for name in ("clips", "frames")]
    assert found[0] >= 0.95 and 0.2 < found[1] < 0.3
