"""Training on images of mixed aspect ratios: learning, resuming, evaluation, prediction."""

import json
import signal

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.folders import CONFIGS
from tests.support.comparing import assert_same_run
from vit_jax.analysis.robustness.candidates import open_candidate
from vit_jax.config import load_config
from vit_jax.data.images.packing import unpack
from vit_jax.errors import UserError
from vit_jax.inference import load_model
from vit_jax.models import create_model
from vit_jax.models.summary.cost import cost
from vit_jax.training import fit
from vit_jax.training.logging import reporter
from vit_jax.training.setup.build import build

TINY = {
    "model.image_size": "12",
    "model.patch_size": "4",
    "model.width": "16",
    "model.depth": "1",
    "model.heads": "2",
    "model.mlp_width": "16",
    "data.max_tokens": "12",
    "augment.shift": "0.1",
    "objective.label_smoothing": "0",
    "batch_size": "16",
    "optimizer.learning_rate": "0.01",
    "schedule.warmup": "0",
    "log.every": "7",
    "evaluate.every": "100%",
    "checkpoint.every": "100%",
    "duration": "60 steps",
    "compile_cache": "none",
}


def draw(label, rng):
    """Stripes along the longer side or across it: the grid alone, and pixels alone, say nothing."""
    short, long = rng.integers(6, 14), rng.integers(20, 40)
    height, width = (short, long) if rng.random() < 0.5 else (long, short)
    along = (width > height) == (label == "along")
    rows, columns = np.indices((height, width))
    pixels = 255 * ((rows if along else columns) // 2 % 2)
    return np.repeat(pixels[..., None].astype(np.uint8), 3, axis=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root, rng = tmp_path_factory.mktemp("mixed"), np.random.default_rng(0)
    for split, count in (("train", 40), ("test", 10)):
        for label in ("across", "along"):
            (root / split / label).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(draw(label, rng)).save(root / split / label / f"{number}.png")
    return root


@pytest.fixture
def config_of(folder):
    def make(changes=None):
        values = {"dataset": f"folder:{folder}", **TINY, **(changes or {})}
        return load_config(str(CONFIGS / "naflex" / "images.py"), list(values.items()))

    return make


def test_a_run_learns_from_mixed_aspect_ratios_and_resumes_to_the_same_bits(
    config_of, folder, tmp_path, monkeypatch
):
    config = config_of({"evaluate.batch_size": "6"})
    whole = fit(config, tmp_path / "whole")
    assert whole.result["accuracy"] >= 0.8

    shown = reporter.Reporter.progress

    def progress(self, step, wait_for):
        shown(self, step, wait_for)
        if step == 11:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(reporter.Reporter, "progress", progress)
    assert fit(config, tmp_path / "parts").step == 11
    monkeypatch.setattr(reporter.Reporter, "progress", shown)
    assert fit(config, tmp_path / "parts").step == 60
    assert_same_run(tmp_path / "whole", tmp_path / "parts", 60)

    classifier = vit_jax.load(tmp_path / "whole")
    assert classifier.preprocessing.max_tokens == 12
    assert json.loads((tmp_path / "whole" / "model.json").read_text())["preprocessing"][
        "patch_size"
    ] == [4, 4]
    right = [
        guess.label == label
        for label in ("across", "along")
        for [guess] in classifier.predict(folder / "test" / label, top=1)
    ]
    assert np.mean(right) == pytest.approx(whole.result["accuracy"])
    assert classifier.inputs["images"].shape == ("batch", 13, 16, 3)
    with pytest.raises(UserError, match="robustness tests change images of one size"):
        open_candidate(tmp_path / "whole")
    looked_into = load_model(tmp_path / "whole")
    assert looked_into.preprocessing.shape == (12, 12, 3)
    assert len(looked_into.predict(folder / "test" / "along")) == 10


def test_batches_hold_the_whole_images_in_any_order_of_augmentation(config_of):
    experiment = build(config_of({"augment.flip": "1.0", "augment.shift": "0"}))
    [batch] = [batch for batch, _ in zip(experiment.train_batches(0), range(1), strict=False)]
    sizes = {unpack(np.asarray(image), (4, 4)).shape for image in batch["image"]}
    assert len(sizes) > 2
    assert all(height * width <= 12 * 16 for height, width, _ in sizes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.name": "ViT"}, "data.max_tokens = 12 .* ViT takes images of one size; use a NaFl"),
        ({"augment.mixup": "0.2"}, "augment.mixup = 0.2 mixes images of one size"),
        ({"augment.random_resized_crop": "0.5"}, "random_resized_crop = 0.5 makes images of one"),
        ({"log.diagnostics": "10%"}, "log.diagnostics = '10%' needs one grid for all"),
        ({"data.crop": "0.9"}, "crop is 0.9, but max_tokens keeps the whole image"),
        (
            {"task": "simmim", "objective.mask_unit": "4", "model.pool": "mean"},
            "the task 'simmim' needs images of one size",
        ),
        ({"data.max_tokens": "-1"}, "data.max_tokens"),
        ({"model.patch_size": "1"}, "patches of 1 x 1 pixels and 3 channels are too small"),
    ],
)
def test_what_needs_images_of_one_size_is_refused(config_of, changes, message):
    with pytest.raises(UserError, match=message):
        build(config_of(changes))


def test_the_config_costs_what_it_says():
    text = (CONFIGS / "naflex" / "images.py").read_text()
    config = load_config(CONFIGS / "naflex" / "images.py")
    fields = {**config.model.to_dict(), "num_classes": 10}
    found = cost(create_model(fields.pop("name"), **fields))
    assert f"{found.parameters:,} parameters and {found.macs / 1e9:.2f} GMACs" in text
