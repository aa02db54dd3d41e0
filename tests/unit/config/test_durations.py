import pytest

from vit_jax.config.durations import Clock, Duration, parse_duration

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
def test_anything_else_is_refused_with_the_valid_forms(text):
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


@pytest.mark.parametrize(
    ("examples", "batch", "steps"),
    [
        (20, 20, 500),  # 10 epochs are 10 steps
        (240, 240, 500),
        (50_000, 512, 977),  # 500,000 / 512 = 976.6
        (1_281_167, 512, 20_000),  # 12,811,670 / 512 = 25,023
    ],
)
def test_bounds_hold_a_run_between_few_images_and_many(examples, batch, steps):
    text = "10 epochs, at least 500 steps, at most 20_000 steps"
    assert Clock(examples, batch).steps(text) == steps


def test_a_bound_may_be_a_share_of_the_run_and_may_stand_alone():
    assert CLOCK.steps("5 epochs, at most 10%") == 100  # 7,185 / 64 = 112.3
    assert CLOCK.steps("2 epochs, at most 10%") == 45
    assert CLOCK.steps("0.1%, at least 30 steps") == 30


def test_the_most_holds_where_a_run_is_too_short_for_the_least():
    assert CLOCK.steps("1 epoch, at least 500 steps, at most 5%") == 50


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1 epoch, at least", "is not a duration.*at least 500 steps"),
        ("1 epoch, 2 epochs", "is not a duration"),
        ("1 epoch, at least 1 step, at least 2 steps", "is not a duration"),
        ("1 epoch, at least 500 steps, at most 50", "at least 500 and at most 50 steps"),
        ("3_000_000_000 steps", "3,000,000,000 steps; use at most 2,147,483,647"),
    ],
)
def test_bounds_that_make_no_sense_are_told(text, sentence):
    with pytest.raises(ValueError, match=sentence):
        CLOCK.steps(text)


@pytest.mark.parametrize(
    "text",
    ["٣ epochs", "1e400", 10**5000, float("nan"), [1], "\0", "1\0"],
    ids=lambda value: type(value).__name__,
)
def test_what_looks_like_a_number_is_refused_too(text):
    with pytest.raises(ValueError, match="duration|too long"):
        parse_duration(text)
