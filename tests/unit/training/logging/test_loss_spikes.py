import numpy as np
import pytest

from vit_jax.training.logging.loss_spikes import SpikeDetector


def warnings(losses, detector=None):
    """The steps at which a run with these losses is warned of."""
    detector = detector or SpikeDetector()
    lines = [{"kind": "train", "step": s, "loss": float(loss)} for s, loss in enumerate(losses)]
    return [line["step"] for line in lines if detector.look(line)]


def falling(lines, seed, noise=0.03):
    """A loss from 4 to about 1 with noise in proportion, as a cosine run with MixUp has it."""
    level = 1 + 3 * np.exp(-np.arange(lines) / (lines / 5))
    return level * (1 + noise * np.random.default_rng(seed).normal(size=lines))


@pytest.mark.parametrize("seed", range(50))
def test_a_falling_curve_with_noise_raises_no_alarm(seed):
    assert warnings(falling(100, seed)) == []


def test_a_curve_without_noise_raises_no_alarm():
    assert warnings(np.linspace(5, 1, 100)) == warnings(np.full(100, 2.0)) == []


@pytest.mark.parametrize("at", [12, 40, 90])
def test_a_jump_to_twice_the_loss_is_told_once(at):
    losses = falling(100, seed=1)
    losses[at : at + 3] *= 2
    assert warnings(losses) == [at]


def test_a_second_jump_is_told_again():
    losses = falling(100, seed=2)
    losses[[40, 70]] *= 2
    assert warnings(losses) == [40, 70]


def test_a_loss_that_stays_up_is_told_once():
    losses = np.concatenate([falling(60, seed=3), 2.5 + falling(60, seed=4)[20:]])
    assert warnings(losses) == [60]


def test_a_run_that_goes_on_knows_the_lines_before_and_is_quiet_about_them():
    losses = falling(60, seed=5)
    losses[30] *= 2
    losses[40] = float("nan")  # of bad steps; it says nothing of the noise
    lines = [{"kind": "train", "step": s, "loss": float(x)} for s, x in enumerate(losses)]
    other = {"kind": "evaluate", "step": 59, "split": "test", "loss": 100.0}
    detector = SpikeDetector([*lines, other])
    warning = detector.look({"kind": "train", "step": 60, "loss": 3.0})
    assert "to 3.0000 by step 60, from about 1." in warning and "learning_rate" in warning
