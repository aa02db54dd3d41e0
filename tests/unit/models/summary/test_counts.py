"""The kept table of costs has all registered models, and what tracing them gives."""

import pytest

from vit_jax.models import list_models
from vit_jax.models.registry import MODELS, get_preset, register
from vit_jax.models.summary.counts import Counts, counts, table, traced


def smallest_of_each_family():
    by_family = {}
    kept = [name for name in list_models() if name in table()]
    for name in sorted(kept, key=lambda name: table()[name].macs):
        by_family.setdefault(get_preset(name).architecture.__name__, name)
    return list(by_family.values())


def test_the_table_has_exactly_the_registered_models_in_their_order():
    assert list(table()) == list_models()


@pytest.mark.parametrize("name", smallest_of_each_family())
def test_a_row_is_what_tracing_the_model_gives(name):
    assert counts(name) == traced(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", list_models())
def test_every_row_is_what_tracing_the_model_gives(name):
    assert counts(name) == traced(name)


def test_published_numbers_stand_in_the_table():
    """ResNet-50 has 25,557,032 parameters in torchvision; B/16's MACs are its closed form's."""
    assert counts("ResNet-50").parameters == 25_557_032
    assert counts("ViT-B/16") == Counts(197, 86_567_656, 17_563_828_224)


def test_a_model_that_is_not_in_the_table_is_traced():
    preset = get_preset("Digits-ViT-64/4")
    register("Mine", preset.architecture, "here", **preset.fields)
    try:
        assert counts("Mine") == counts("Digits-ViT-64/4")
    finally:
        del MODELS["Mine"]


def test_an_unknown_name_is_told():
    with pytest.raises(ValueError, match="ViT-B/16"):
        counts("ViT-B/15")
