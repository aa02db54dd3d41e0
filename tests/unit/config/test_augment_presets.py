"""The presets: what they set, that they are one dial, and that the papers' are the papers'."""

import dataclasses
import itertools

import pytest

from vit_jax.config.augment_presets import PRESET_KEYS, PRESETS
from vit_jax.data import Augment

OF_THE_PIPELINE = {"repeats"}
OF_THE_STEP = {"mixup", "cutmix", "mix_probability", "cutmix_probability"}


def test_every_preset_decides_the_same_keys():
    assert list(PRESETS) == ["none", "light", "medium", "strong", "deit", "deit3"]
    for preset in PRESETS.values():
        assert tuple(preset) == PRESET_KEYS


def test_every_key_is_an_option_of_augmentation():
    fields = {field.name for field in dataclasses.fields(Augment)}
    for key in PRESET_KEYS:
        section, name = key.split(".")
        assert section == "augment" and name in fields | OF_THE_PIPELINE | OF_THE_STEP


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_is_valid(preset):
    values = {key.removeprefix("augment."): value for key, value in PRESETS[preset].items()}
    augment = Augment.from_dict(
        {k: v for k, v in values.items() if k not in OF_THE_PIPELINE | OF_THE_STEP}
    )
    assert (augment == Augment()) == (preset == "none")
    assert values["repeats"] >= 1 and isinstance(values["repeats"], int)
    assert values["mixup"] >= 0 and values["cutmix"] >= 0
    assert 0 <= values["mix_probability"] <= 1 and 0 <= values["cutmix_probability"] <= 1


def strengths(preset):
    """Numbers that grow with the change that a preset makes, one per option."""
    values = PRESETS[preset]
    crop, policy = values["augment.random_resized_crop"], values["augment.policy"]
    return [
        1 - crop if crop else 0,
        values["augment.flip"],
        values["augment.rand_n"] * values["augment.rand_m"] if policy == "rand" else 0,
        values["augment.color_jitter"],
        values["augment.erase"],
        values["augment.repeats"],
        values["augment.mixup"],
        values["augment.cutmix"],
    ]


def test_the_dial_goes_one_way():
    dial = [strengths(preset) for preset in ("none", "light", "medium", "strong", "deit")]
    for weaker, stronger in itertools.pairwise(dial):
        assert all(low <= high for low, high in zip(weaker, stronger, strict=True))
        assert weaker != stronger


def test_deit_is_table_9_of_touvron_2021():
    """RandAugment 9/0.5, MixUp 0.8, CutMix 1.0, erasing 0.25, repeated augmentation."""
    expected = {
        "augment.random_resized_crop": 0.08,
        "augment.flip": 0.5,
        "augment.policy": "rand",
        "augment.rand_n": 2,
        "augment.rand_m": 9,
        "augment.rand_std": 0.5,
        "augment.rand_increasing": True,
        "augment.color_jitter": 0,
        "augment.erase": 0.25,
        "augment.repeats": 3,
        "augment.mixup": 0.8,
        "augment.cutmix": 1.0,
        "augment.mix_probability": 1,
        "augment.cutmix_probability": 0.5,
    }
    assert PRESETS["deit"] == expected


def test_deit3_is_the_config_of_touvron_2022():
    """3-Augment, colour jitter 0.3, MixUp 0.8, CutMix 1.0, repeated augmentation, no erasing."""
    preset = PRESETS["deit3"]
    assert preset["augment.policy"] == "three" and preset["augment.color_jitter"] == 0.3
    assert preset["augment.random_resized_crop"] == 0.08 and preset["augment.flip"] == 0.5
    assert (preset["augment.mixup"], preset["augment.cutmix"]) == (0.8, 1.0)
    assert preset["augment.repeats"] == 3 and preset["augment.erase"] == 0
