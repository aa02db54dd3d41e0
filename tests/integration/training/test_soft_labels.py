"""A run on a table with the probability of each class: what it learns, and what it reports."""

import numpy as np
import pytest
from PIL import Image
from scipy.stats import entropy

from tests.folders import ROOT
from vit_jax.config import load_config
from vit_jax.inference import load_model
from vit_jax.runs import RunDir
from vit_jax.training import fit

SHARES = {"red": (0.7, 0.3, 0.0), "green": (0.1, 0.1, 0.8), "blue": (0.25, 0.5, 0.25)}


@pytest.mark.slow
def test_equal_images_get_the_shares_of_their_labels(overrides, tmp_path):
    lines = ["path,cat,dog,eel"]
    for colour, shares in SHARES.items():
        for number in range(4):
            Image.new("RGB", (8, 8), colour).save(tmp_path / f"{colour}{number}.png")
            lines.append(",".join([f"{colour}{number}.png", *map(str, shares)]))
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    changes = {
        "dataset": f"csv:{tmp_path / 'labels.csv'}",
        "data.holdout": "0.25",  # one image of each colour
        "data.workers": "0",
        "batch_size": "9",
        **{"model.image_size": "8", "model.in_channels": "3", "model.width": "16"},
        "optimizer.learning_rate": "0.03",
        "optimizer.weight_decay": "0",
        "objective.label_smoothing": "0",
        **{"duration": "60 steps", "schedule.warmup": "5 steps", "log.every": "20"},
        **{"evaluate.every": "100%", "checkpoint.every": "100%"},
        **{"augment.rotate": "0", "augment.scale": "0", "augment.shift": "0"},
    }
    config = load_config(str(ROOT / "configs/digits.py"), overrides(changes))
    result = RunDir(fit(config, tmp_path / "run").run.path).result()
    least = np.mean([entropy(shares) for shares in SHARES.values()])
    assert least <= result["loss"] < least + 0.01
    assert (result["accuracy"], result["examples"]) == (1.0, 3)

    classifier = load_model(tmp_path / "run")
    for colour, shares in SHARES.items():
        [answer] = classifier.iter_predict([tmp_path / f"{colour}0.png"])
        np.testing.assert_allclose(answer.probabilities, shares, atol=0.03)
