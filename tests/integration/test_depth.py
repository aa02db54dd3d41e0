"""The configs of depth: the published config, and scenes."""

import jax
import numpy as np
import pytest

from tests.folders import ROOT
from tests.support.shapes import abstract_variables, random_images
from tests.support.short_runs import TWO_STEPS
from vit_jax.config import load_config
from vit_jax.models import create_model
from vit_jax.models.summary.cost import cost
from vit_jax.training.setup.build import build

SCENES = ROOT / "configs" / "dense" / "depth_scenes.py"
PUBLISHED = ROOT / "configs" / "dense" / "dpt_nyu.py"
SHORT = {**TWO_STEPS, "data.train": "train"}
SMALL = {
    "precision": "float32",
    "model.image_size": "64",
    "model.blocks": "(0, 1)",
    "model.widths": "(8, 16, 4, 4)",
    "model.backbone_fields.stem_units": "(1, 1, 1)",
    "model.backbone_fields.stem_width": "2",
    "model.backbone_fields.stem_groups": "2",
    "model.fusion_width": "8",
    "model.backbone_fields.width": "8",
    "model.backbone_fields.heads": "2",
    "model.backbone_fields.depth": "2",
    "model.backbone_fields.mlp_width": "8",
}
# The coarsest map has nothing to be added to, and the decoder reads blocks before their norm.
# Branches of the ResNet begin at zero, so that most of them have no gradient yet.
UNREAD = {"backbone/norm", "neck/fuse_3/unit1", "backbone/patch_embed/stages_"}


@pytest.mark.slow
def test_two_updates_of_the_published_config_change_every_leaf_that_is_read(data_dir):
    config = load_config(str(PUBLISHED), {**SHORT, **SMALL, "data.dir": data_dir})
    experiment = build(config)
    state, step = experiment.initial_state(), experiment.train_step()
    before = jax.device_get(state.params)
    for batch in experiment.train_batches(0):
        state = step(state, batch)
    leaves, _ = jax.tree_util.tree_flatten_with_path(before)
    kept = set()
    for (path, old), new in zip(leaves, jax.tree.leaves(state.params), strict=True):
        assert np.isfinite(new).all(), jax.tree_util.keystr(path)
        if np.array_equal(old, new):
            kept.add("/".join(part.key for part in path))
    assert {next((part for part in UNREAD if name.startswith(part)), name) for name in kept} == (
        UNREAD
    )
    assert int(state.nonfinite_steps.total) == 0


def test_the_published_config_is_the_authors():
    config = load_config(str(PUBLISHED))
    assert config.model.scale_shift == (0.000305, 0.1378)  # of their run_monodepth.py
    assert (config.objective.max_depth, config.objective.crop) == (10.0, "eigen")
    assert config.optimizer.lr_multipliers == (("backbone/.*", 0.1),)
    assert "python train.py --config=configs/dense/dpt_nyu.py" in PUBLISHED.read_text()


@pytest.mark.slow
def test_the_published_config_says_what_its_model_costs():
    config = load_config(str(PUBLISHED))
    fields = {"num_classes": 0, **config.model.to_dict()}
    model = create_model(fields.pop("name"), **fields)
    found = cost(model)
    said = f"{found.parameters:,} parameters, {found.macs / 1e9:.0f} GMACs"
    assert said in PUBLISHED.read_text()


def test_the_config_of_scenes_says_what_it_costs_and_reaches():
    config = load_config(str(SCENES))
    fields = {"num_classes": 0, **config.model.to_dict()}
    model = create_model(fields.pop("name"), **fields)
    shapes = abstract_variables(model, random_images(1, 64, 64, 3))["params"]
    parameters = sum(leaf.size for leaf in jax.tree.leaves(shapes))
    text = SCENES.read_text().split('"""')[1]
    assert f"{parameters:,} parameters" in text and "Reached by us" in text
    assert "python train.py --config=configs/dense/depth_scenes.py" in text
