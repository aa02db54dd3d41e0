"""Every architecture learns the digits by its own config, through the front door."""

import re
from pathlib import Path

import pytest

from benchmarks.families import FAMILY, VARIANTS, accuracy, train
from tests.folders import ROOT
from tests.support.processes import compiled_for_speed
from vit_jax.config import load_config
from vit_jax.models import create_model, list_models
from vit_jax.models.summary.cost import cost

CONFIGS = sorted(FAMILY.glob("*.py"))


NAMES = [name for name in VARIANTS if name != "vit"]


# Variants of ViT's attention and positions are among the long tests: the contract of architectures
# and the tests of attention have them all.
OF_VIT = ("attention_", "positions_")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name.startswith(OF_VIT) else pytest.mark.slow)
        for name in NAMES
    ],
)
def test_every_family_reaches_80_percent_in_half_of_its_epochs(
    name, data_dir, tmp_path, monkeypatch
):
    compiled_for_speed(monkeypatch)
    variant = VARIANTS[name]
    config = load_config(str(ROOT / variant.config_file), list(variant.changes))
    epochs = round(0.5 * float(config.duration.removesuffix("epochs")))
    options = (f"--config.data.dir={data_dir}", f"--config.duration={epochs} epochs")
    train(name, tmp_path, *options)
    assert accuracy(tmp_path) >= 0.8


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_family_reaches_95_percent_on_the_digits(name, data_dir, tmp_path, monkeypatch):
    compiled_for_speed(monkeypatch)
    train(name, tmp_path, f"--config.data.dir={data_dir}")
    assert accuracy(tmp_path) >= 0.95


def test_every_config_is_trained():
    assert {Path(variant.config_file).name for variant in VARIANTS.values()} >= {
        config_file.name for config_file in CONFIGS
    }


@pytest.mark.parametrize("config_file", CONFIGS, ids=lambda path: path.stem)
def test_a_config_opens_with_its_command_and_what_it_reaches(config_file):
    docstring = config_file.read_text().split('"""')[1]
    assert f"python train.py --config=configs/family/{config_file.name}" in docstring
    assert re.search(r"Reached by us: \d+\.\d+ %", docstring), docstring
    config = load_config(str(config_file))
    assert config.model.name in list_models()
    fields = {"num_classes": 10, **config.model.to_dict()}
    fields = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
    model = create_model(fields.pop("name"), **fields)
    counts = cost(model)
    assert f"{counts.parameters:,} parameters" in docstring
    assert f"{counts.macs / 1e6:.1f} MMACs" in docstring
