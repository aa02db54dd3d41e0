"""Segmentation from the config to the command line, and the published recipe."""

import jax
import numpy as np
import pytest

from tests.folders import ROOT
from vit_jax.config import load_config
from vit_jax.models import create_model
from vit_jax.models.summary.cost import cost
from vit_jax.training.setup.build import build

RECIPE = ROOT / "configs" / "dense" / "segformer_b0_ade20k.py"
SHORT = {
    "dataset": "scenes:digits:16",
    "data.test": "test[:8]",
    "data.workers": "0",
    "batch_size": "4",
    "duration": "2 steps",
    "schedule.warmup": "0",
    "log.every": "1 steps",
    "evaluate.every": "100%",
    "checkpoint.every": "100%",
}
SMALL = {
    "model.image_size": "64",
    "model.backbone_fields.depths": "(1, 1, 1, 1)",
    "model.decoder_width": "8",
}


@pytest.mark.slow
def test_two_updates_of_the_published_recipe_change_every_leaf(data_dir):
    config = load_config(str(RECIPE), {**SHORT, **SMALL, "data.dir": data_dir})
    experiment = build(config)
    state, step = experiment.initial_state(), experiment.train_step()
    before = jax.device_get(state.params)
    for batch in experiment.train_batches(0):
        state = step(state, batch)
    leaves, _ = jax.tree_util.tree_flatten_with_path(before)
    for (path, old), new in zip(leaves, jax.tree.leaves(state.params), strict=True):
        assert np.isfinite(new).all(), jax.tree_util.keystr(path)
        assert not np.array_equal(old, new), jax.tree_util.keystr(path)
    assert int(state.nonfinite_steps.total) == 0


def test_the_recipe_has_the_lengths_and_rates_of_its_authors():
    config = load_config(str(RECIPE))
    assert (config.batch_size, config.duration, config.schedule.warmup) == (
        16,
        "160_000 steps",
        "1_500 steps",
    )
    assert config.optimizer.lr_multipliers == (("head/.*", 10.0),)
    assert config.model.backbone_fields.to_dict() == {"drop_path": 0.1}
    fields = {"num_classes": 150, **config.model.to_dict()}
    model = create_model(fields.pop("name"), **fields)
    text = RECIPE.read_text().split('"""')[1]
    assert f"{cost(model).parameters:,} parameters" in text
    assert "python train.py --config=configs/dense/segformer_b0_ade20k.py" in text
