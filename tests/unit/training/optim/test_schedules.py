import json

import numpy as np
import optax
import pytest

from tests.folders import GOLDENS
from vit_jax.config import default_config
from vit_jax.config.durations import Clock
from vit_jax.errors import UserError
from vit_jax.training.optim.schedules import make_decay_schedule, make_schedule

TOTAL = 20


def schedule_of(total=TOTAL, peak=1.0, **settings):
    config = default_config()
    config.duration = str(total)
    config.optimizer.learning_rate = peak
    config.schedule.update(settings)
    return make_schedule(config, Clock(examples=100, batch_size=10, total_steps=total))


def rates(total=TOTAL, **settings):
    """The learning rate of every update of a run, and the one after it."""
    schedule = schedule_of(total, **settings)
    return np.array([float(schedule(update)) for update in range(total + 1)])


def test_cosine_is_a_linear_warmup_then_half_a_cosine():
    reference = json.loads((GOLDENS / "training/lr_warmup5_total20.json").read_text())
    schedule = schedule_of(peak=reference["peak"], warmup="5")
    for update, expected in reference["lr_used_by_update"].items():
        assert float(schedule(int(update))) == pytest.approx(expected, abs=1e-6)


def test_cosine_without_warmup_starts_at_the_peak_and_ends_where_told():
    got = rates(total=10, peak=0.5, warmup="0", end=0.1)
    assert got[[0, 5, 10]] == pytest.approx([0.5, 0.5 * 0.55, 0.05])  # halfway: mean of 1 and 0.1


def test_linear_falls_in_a_straight_line():
    got = rates(total=9, name="linear", warmup="4", end=0.5)
    assert got == pytest.approx([0, 0.25, 0.5, 0.75, 1, 0.9, 0.8, 0.7, 0.6, 0.5])


def test_constant_stays_at_the_peak_and_cools_down_linearly():
    got = rates(total=10, name="constant", warmup="2", cooldown="50%", end=0.5)
    assert got == pytest.approx([0, 0.5, 1, 1, 1, 1, 0.9, 0.8, 0.7, 0.6, 0.5])
    assert rates(name="constant", warmup="0") == pytest.approx(1)


def test_rsqrt_halves_after_three_timescales_and_cools_down_from_there():
    got = rates(total=20, name="rsqrt", warmup="2", timescale="4 steps", cooldown="6")
    assert got[[0, 1, 2]] == pytest.approx([0, 0.5, 1])
    assert got[6] == pytest.approx(0.5**0.5)  # one timescale
    assert got[14] == pytest.approx(0.5)  # three: 1 / sqrt(1 + 3)
    assert got[14:] == pytest.approx(np.linspace(0.5, 0, 7))


def test_rsqrt_without_cooldown_does_not_depend_on_the_length_of_the_run():
    settings = {"name": "rsqrt", "warmup": "3", "timescale": "1 epoch"}  # of 10 steps
    assert rates(total=40, **settings)[:21] == pytest.approx(rates(total=20, **settings))
    assert rates(total=40, **settings)[33] == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["cosine", "linear", "rsqrt", "constant"])
@pytest.mark.parametrize("warmup", [0, 1, 7, 19])
def test_every_schedule_rises_as_optax_does_and_never_again(name, warmup):
    got = rates(name=name, warmup=str(warmup))
    rise = optax.linear_schedule(0.0, 1.0, warmup) if warmup else lambda update: 1.0
    expected = [float(rise(update)) for update in range(warmup + 1)]
    assert got[: warmup + 1] == pytest.approx(expected)
    assert (np.diff(got[warmup:]) <= 1e-7).all()


@pytest.mark.parametrize("name", ["rsqrt", "constant"])
def test_warmup_and_cooldown_may_fill_the_run(name):
    got = rates(total=10, name=name, warmup="4", cooldown="6")
    assert got[4] == pytest.approx(1) and got[10] == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"warmup": "20"}, r"schedule.warmup = '20' is 20 steps.* is 20 steps.*shorter"),
        ({"name": "constant", "warmup": "100%"}, "the warm-up must be shorter"),
        ({"cooldown": "10%"}, "schedule.cooldown = '10%', but the schedule 'cosine' decays"),
        ({"name": "linear", "cooldown": "1"}, "schedule 'linear'.*name=constant or rsqrt"),
        ({"timescale": "5"}, "schedule.timescale = '5' belongs to the schedule 'rsqrt'.*'cosine'"),
        ({"name": "constant", "timescale": "5"}, "'rsqrt', but schedule.name = 'constant'"),
        ({"name": "rsqrt", "end": 0.1}, "schedule.end = 0.1 .* has no cooldown.*schedule.cooldown"),
        ({"name": "rsqrt", "warmup": "11", "cooldown": "10"}, "11 and 10 steps.* is 20 steps"),
        (
            {"name": "rsqrt", "warmup": "0", "timescale": "1", "cooldown": "5", "end": 0.5},
            "above the learning rate at the start of the cooldown, 0.25 of the peak",
        ),
        ({"warmup": "soon"}, "schedule.warmup: 'soon' is not a duration"),
    ],
)
def test_a_mistake_is_one_sentence(settings, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        rates(**settings)
    assert "\n" not in str(caught.value)


def decay_of(**settings):
    config = default_config()
    config.optimizer.update(settings)
    return make_decay_schedule(config, Clock(examples=100, batch_size=10, total_steps=TOTAL))


def test_weight_decay_is_a_number_or_follows_half_a_cosine_over_the_whole_run():
    assert decay_of(weight_decay=0.05) == decay_of(weight_decay=0.05, weight_decay_end=0.05) == 0.05
    decay = decay_of(weight_decay=0.04, weight_decay_end=0.4)
    # cos(60 degrees) is 1/2, so a third of the way is a quarter of the difference.
    found = [float(decay(count)) for count in (0, TOTAL / 3, TOTAL / 2, TOTAL, TOTAL + 1)]
    assert found == pytest.approx([0.04, 0.13, 0.22, 0.4, 0.4])
    assert float(decay_of(weight_decay=0.0, weight_decay_end=0.1)(TOTAL)) == pytest.approx(0.1)
