"""Spaces of sweeps: texts of `--over`, grids and draws."""

import math

import pytest

from vit_jax.errors import UserError
from vit_jax.studies.sweep.space import Range, drawn, grid, in_words, parse_space, seeds_of


def test_a_grid_has_every_combination_without_the_seed():
    space = parse_space(["optimizer.learning_rate=1e-3,3e-3", "seed=0,1", "model.depth=2,4"])
    assert [in_words(one) for one in grid(space)] == [
        "optimizer.learning_rate=1e-3, model.depth=2",
        "optimizer.learning_rate=1e-3, model.depth=4",
        "optimizer.learning_rate=3e-3, model.depth=2",
        "optimizer.learning_rate=3e-3, model.depth=4",
    ]
    assert seeds_of(space) == ("0", "1")


def test_commas_in_brackets_and_quotes_separate_nothing():
    space = parse_space(["data.mean=(0.5,0.4,0.3),0.5", "duration='5 epochs, at most 9 steps',1%"])
    assert space["data.mean"].texts == ("(0.5,0.4,0.3)", "0.5")
    assert space["duration"].texts == ("5 epochs, at most 9 steps", "1%")


def test_more_draws_begin_with_the_same_ones():
    space = parse_space(["optimizer.learning_rate=1e-4..1e-2:log", "model.depth=2..4", "seed=0,1"])
    few, many = drawn(space, 3, 5), drawn(space, 3, 40)
    assert many[:5] == few and drawn(space, 4, 5) != few
    assert {one["model.depth"] for one in many} == {"2", "3", "4"}
    rates = [float(one["optimizer.learning_rate"]) for one in many]
    assert all(1e-4 <= rate <= 1e-2 for rate in rates)
    # Half of the draws lie below the geometric mean, 1e-3: within 3 deviations of 40 coins.
    assert abs(sum(rate < 1e-3 for rate in rates) - 20) < 3 * math.sqrt(10)


def test_a_number_stays_in_its_range_when_it_is_rounded():
    assert Range(0.123456, 0.123457).text(0.1234565) == "0.1234565"
    assert Range(1e-4, 1e-2).text(0.00123456) == "0.001235"


def test_a_space_can_be_exhausted():
    with pytest.raises(UserError, match="more than the settings of the space, 3"):
        drawn(parse_space(["model.depth=2,3,4"]), 0, 4)


@pytest.mark.parametrize(
    ("over", "sentence"),
    [
        ("optimizer.learning_rate", "use KEY=VALUE,VALUE"),
        ("seed=", "use KEY=VALUE,VALUE"),
        ("seed=1,,2", "an empty value"),
        ("seed=1,2,1", "has 1 twice"),
        ("optimizer.learning_rate=1e-2..1e-4", "LOW below HIGH"),
        ("optimizer.learning_rate=0..1:log", "above 0"),
        ("duration=5..10", "list its values"),
        ("data.test=test,train", "looks at the test images once"),
        ("log.every=1,2", "does not influence the result"),
        ("evaluate.every=1 epochs,2 epochs", "does not influence the result"),
    ],
)
def test_invalid_spaces_are_refused_in_a_sentence(over, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_space([over])


def test_a_key_is_given_once():
    with pytest.raises(UserError, match="twice"):
        parse_space(["seed=1", "--config.seed=2"])


def test_a_grid_and_seeds_need_values():
    with pytest.raises(UserError, match="--sampler=random"):
        grid(parse_space(["optimizer.learning_rate=1e-4..1e-2"]))
    with pytest.raises(UserError, match="list the seeds"):
        seeds_of(parse_space(["seed=0..5"]))
