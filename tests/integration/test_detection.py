"""Configs of detection take two updates of a small model on scenes."""

import jax
import numpy as np
import pytest

from tests.folders import ROOT
from vit_jax.config import load_config
from vit_jax.models import create_model
from vit_jax.models.summary.cost import cost
from vit_jax.training.setup.build import build

SCENES = {
    "dataset": "scenes:digits:8",
    "data.test": "test[:8]",
    "batch_size": "4",
    "duration": "2 steps",
    "schedule.warmup": "0",
    "log.every": "1",
    "evaluate.every": "100%",
    "checkpoint.every": "100%",
}
SMALL = {
    "detr_r50_coco": {
        "init_from": "",
        "model.image_size": "32",
        "model.width": "8",
        "model.heads": "2",
        "model.mlp_width": "8",
        "model.encoder_depth": "1",
        "model.decoder_depth": "2",
        "model.backbone_fields.depths": "(1, 1)",
        "model.backbone_fields.widths": "(2, 4)",
        "model.backbone_fields.zero_init": "False",  # or nothing flows through the branches
    },
    "vitdet_b_coco": {
        "init_from": "",
        "model.image_size": "32",
        "model.width": "8",
        "model.heads": "2",
        "model.mlp_width": "8",
        "model.encoder_depth": "1",
        "model.decoder_depth": "1",
        "model.backbone_fields.depth": "1",
        "model.backbone_fields.width": "16",
        "model.backbone_fields.heads": "2",
        "model.backbone_fields.mlp_width": "8",
        "model.backbone_fields.window": "3",
        "model.backbone_fields.global_blocks": "()",
        "model.backbone_fields.remat": "none",
        "model.backbone_fields.pyramid_width": "4",
        "optimizer.lr_multipliers": "(('backbone/blocks_0/.*', 0.7),)",
    },
    "detection_scenes": {"model.backbone_fields.depth": "1", "model.image_size": "32"},
}


def path_of(name):
    return ROOT / "configs" / "dense" / f"{name}.py"


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_two_updates_change_what_is_not_frozen(name):
    experiment = build(load_config(str(path_of(name)), SCENES | SMALL[name]))
    state, step = experiment.initial_state(), experiment.train_step()
    before = jax.device_get((state.params, state.model_state))
    for batch in experiment.train_batches(0):
        state = step(state, batch)
    after = jax.device_get((state.params, state.model_state))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after))
    same = {
        jax.tree_util.keystr(path, simple=True, separator="/")
        for (path, old), new in zip(
            jax.tree_util.tree_leaves_with_path(before[0]), jax.tree.leaves(after[0]), strict=True
        )
        if np.array_equal(old, new)
    }
    if name == "vitdet_b_coco":  # whose finer maps a DETR does not read
        assert same and all(path.startswith("backbone/pyramid/levels_") for path in same)
        assert not any("levels_3" in path for path in same)
        return
    if name != "detr_r50_coco":
        assert same == set()
        return
    jax.tree.map(np.testing.assert_array_equal, before[1], after[1])  # statistics of norms
    frozen = {path for path in same if path.startswith("backbone/")}
    assert "backbone/stem/conv/kernel" in frozen
    assert {path for path in frozen if "stages_1" in path} == {
        path for path in frozen if "stages_1" in path and "norm" in path
    }
    assert same - frozen == set()


@pytest.mark.parametrize("name", SMALL)
def test_a_config_says_its_command_and_its_cost(name):
    docstring = path_of(name).read_text().split('"""')[1]
    assert f"python train.py --config=configs/dense/{name}.py" in docstring
    assert "Reached by us" in docstring and "Cost:" in docstring
    config = load_config(str(path_of(name)), {"init_from": ""})
    fields = config.model.to_dict()
    if name == "detection_scenes":
        fields["num_classes"] = 10
    model = create_model(fields.pop("name"), **fields)
    assert f"{cost(model).parameters:,} parameters" in docstring
