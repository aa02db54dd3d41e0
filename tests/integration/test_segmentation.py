"""Segmentation from the config to the command line, and the published config."""

import json

import jax
import numpy as np
import pytest
from PIL import Image

from tests.folders import ROOT
from tests.support.short_runs import TWO_STEPS
from vit_jax.analysis.report.run_report import draw_all
from vit_jax.cli import main
from vit_jax.config import load_config
from vit_jax.models import create_model
from vit_jax.models.summary.cost import cost
from vit_jax.runs import RunDir
from vit_jax.training import fit
from vit_jax.training.setup.build import build

PUBLISHED = ROOT / "configs" / "dense" / "segformer_b0_ade20k.py"
SMALL = {
    "model.image_size": "64",
    "model.backbone_fields.depths": "(1, 1, 1, 1)",
    "model.decoder_width": "8",
}


TINY = {
    "model.image_size": "32",
    "model.backbone_fields.widths": "(8, 8)",
    "model.backbone_fields.depths": "(1, 1)",
    "model.backbone_fields.stem_width": "8",
    "model.decoder_width": "8",
}


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory):
    """A finished run of the config for scenes, tiny, with its figures."""
    file = ROOT / "configs" / "dense" / "segmentation_scenes.py"
    config = load_config(str(file), {**TWO_STEPS, **TINY, "data.dir": data_dir})
    workdir = tmp_path_factory.mktemp("segmentation") / "run"
    fit(config, workdir, draw=draw_all)
    return RunDir(workdir)


@pytest.mark.slow
def test_classes_are_in_the_report_and_in_the_command(run, capsys):
    assert (run.figures / "pixel_classes.csv").exists()
    assert (run.figures / "task_segmented_images.png").exists()
    text = run.report_file.read_text()
    assert "Classes of pixels" in text and "Confusion" not in text
    assert main(["evaluate", str(run.path), "--per-class", "--json"]) == 0
    line = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert [row["name"] for row in line["classes"]][:2] == ["background", "0"]
    assert sum(row["pixels"] for row in line["classes"]) == 8 * 32 * 32
    assert 0 <= line["mean_iou"] <= line["pixel_accuracy"] <= 1


@pytest.mark.slow
def test_predict_writes_classes_and_overlays(run, tmp_path, capsys):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 70, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "street.png")
    (tmp_path / "broken.png").write_text("no image")
    folder = tmp_path / "out"  # what is written there is no image to segment
    assert main(["predict", str(run.path), str(tmp_path), f"--output={folder}"]) == 2
    assert "1 of 2 images" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == [
        "street_classes.png",
        "street_overlay.png",
    ]
    classes = Image.open(folder / "street_classes.png")
    assert (classes.mode, classes.size) == ("P", (70, 40))
    assert np.asarray(classes).max() < 11


@pytest.mark.slow
def test_a_run_starts_from_the_backbone_of_another(run, data_dir):
    file = ROOT / "configs" / "dense" / "segmentation_scenes.py"
    changes = {**TWO_STEPS, **TINY, "data.dir": data_dir, "init_from": str(run.path)}
    changes["model.decoder"] = "linear"
    experiment = build(load_config(str(file), changes))
    state = experiment.initial_state()
    expected = run.read_variables()[0]["params"]["backbone"]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.params["backbone"]), expected)
    assert set(state.params["head"]) == {"classifier"}


@pytest.mark.slow
def test_two_updates_of_the_published_config_change_every_leaf(data_dir):
    config = load_config(str(PUBLISHED), {**TWO_STEPS, **SMALL, "data.dir": data_dir})
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


def test_the_published_config_has_the_lengths_and_rates_of_its_authors():
    config = load_config(str(PUBLISHED))
    assert (config.batch_size, config.duration, config.schedule.warmup) == (
        16,
        "160_000 steps",
        "1_500 steps",
    )
    assert config.optimizer.lr_multipliers == (("head/.*", 10.0),)
    assert config.model.backbone_fields.to_dict() == {"drop_path": 0.1}
    fields = {"num_classes": 150, **config.model.to_dict()}
    model = create_model(fields.pop("name"), **fields)
    text = PUBLISHED.read_text().split('"""')[1]
    assert f"{cost(model).parameters:,} parameters" in text
    assert "python train.py --config=configs/dense/segformer_b0_ade20k.py" in text
