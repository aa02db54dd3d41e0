import pytest

from vit_jax.durations import Clock, Duration, parse_duration

CLOCK = Clock(examples=1437, batch_size=64, total_steps=1000)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("90 epochs", Duration(90, "epochs")),
        ("1 epoch", Duration(1, "epochs")),
        ("2epochs", Duration(2, "epochs")),
        ("0.5 epochs", Duration(0.5, "epochs")),
        ("5%", Duration(5, "percent")),
        ("10_000 steps", Duration(10_000, "steps")),
        ("10k steps", Duration(10_000, "steps")),
        ("1.2M examples", Duration(1_200_000, "examples")),
        ("300", Duration(300, "steps")),
        (300, Duration(300, "steps")),
    ],
)
def test_durations_read_as_people_say_them(text, duration):
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text", ["", "ten epochs", "-5 steps", "5 parsecs", "5 % of it", True, None]
)
def test_anything_else_is_refused_with_the_legal_forms(text):
    with pytest.raises(ValueError, match="90 epochs"):
        parse_duration(text)


def test_more_than_the_whole_run_is_refused():
    with pytest.raises(ValueError, match="100%"):
        parse_duration("101%")


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("10 epochs", 225),  # 14,370 / 64 = 224.53
        ("1 epoch", 22),  # 22.45
        ("5%", 50),
        ("6400 examples", 100),
        ("0%", 0),
        ("1 examples", 1),  # never nothing where something was asked for
    ],
)
def test_steps_are_exact_to_rounding(text, steps):
    assert CLOCK.steps(text) == steps


def test_a_run_cannot_be_a_percentage_of_itself():
    with pytest.raises(ValueError, match="percentage of itself"):
        Clock(examples=10, batch_size=2).steps("50%")


def test_epochs_count_examples_seen():
    assert CLOCK.epochs(1437) == 64.0
