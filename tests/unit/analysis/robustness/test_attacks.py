"""FGSM and PGD: on a linear model by hand, and on a tiny ViT what must hold of any attack."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from tests.support.shapes import random_variables
from vit_jax import create_model
from vit_jax.analysis.robustness.attacks import cross_entropy, fgsm, pgd, random_change
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError

EPS = 4 / 255


class Linear(nn.Module):
    """Logits linear in the inputs."""

    @nn.compact
    def __call__(self, images, train=False):
        return nn.Dense(2, use_bias=False, name="head")(images.reshape(len(images), -1))


def halves(images):
    """A normaliser that is easy to follow: from -1 to 1."""
    return 2 * images - 1


WEIGHTS = np.array([[1.0, -2.0], [0.5, 0.0], [-1.0, 3.0], [2.0, 1.5]], np.float32)


@pytest.fixture
def linear():
    """A model of four pixels, and an image in the middle of the range of pixels."""
    pixels = np.array([0.4, 0.5, 0.6, 0.5], np.float32).reshape(1, 2, 2, 1)
    return Linear(), {"params": {"head": {"kernel": WEIGHTS}}}, pixels


def loss_of_margin(margin):
    """The loss of an image of class 0 whose logit is behind that of class 1 by `margin`."""
    return np.log1p(np.exp(margin))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_fgsm_raises_the_loss_of_a_linear_model_as_far_as_can_be(norm, linear):
    model, variables, pixels = linear
    changed = fgsm(model, variables, halves, pixels, np.array([0]), 0.05, norm)
    difference = WEIGHTS[:, 1] - WEIGHTS[:, 0]  # (-3, -0.5, 4, -0.5)
    margin = halves(pixels).ravel() @ difference  # of what is 2 eps times as far in the inputs
    reach = np.abs(difference).sum() if norm == "linf" else np.sqrt((difference**2).sum())
    found = _losses(model, variables, halves, changed, np.array([0]))
    np.testing.assert_allclose(found, [loss_of_margin(margin + 2 * 0.05 * reach)], rtol=1e-5)
    if norm == "linf":
        expected = pixels.ravel() + 0.05 * np.array([-1, -1, 1, -1])
        np.testing.assert_allclose(np.ravel(changed), expected, atol=1e-6)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_finds_the_same_maximum_of_a_linear_model(norm, linear):
    model, variables, pixels = linear
    arguments = (model, variables, halves, pixels, np.array([0]), 0.05, norm)
    by_fgsm, by_pgd = (
        _losses(model, variables, halves, changed, np.array([0]))
        for changed in (fgsm(*arguments), pgd(*arguments, steps=20))
    )
    np.testing.assert_allclose(by_pgd, by_fgsm, rtol=1e-4)


@pytest.fixture(scope="module")
def vit():
    """A tiny ViT whose head is not zero, with images of noise and labels."""
    model = create_model(
        "Digits-ViT-64/4", num_classes=5, patch_size=8, width=16, depth=1, heads=2, in_channels=3
    )
    variables = random_variables(model, np.zeros((1, 16, 16, 3), np.float32))
    rng = np.random.default_rng(0)
    variables["params"]["head"]["kernel"] = 0.5 * rng.normal(size=(16, 5)).astype(np.float32)
    images = rng.integers(0, 256, (12, 16, 16, 3)).astype(np.uint8)
    normalise = Preprocessing((16, 16)).normalize_unit
    return model, variables, normalise, images / np.float32(255), np.arange(12) % 5


def losses(vit, pixels):
    model, variables, normalise, _, labels = vit
    return np.asarray(_losses(model, variables, normalise, pixels, labels))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _losses(model, variables, normalise, pixels, labels):
    return cross_entropy(model.apply(variables, normalise(pixels)), labels)


def distances(changed, pixels, norm):
    change = np.asarray(changed, np.float64) - pixels
    flat = change.reshape(len(change), -1)
    return np.abs(flat).max(axis=1) if norm == "linf" else np.linalg.norm(flat, axis=1)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("attack", [fgsm, pgd])
def test_an_attack_keeps_its_bound_and_the_range_of_pixels(attack, norm, vit):
    for eps in (EPS, 0.7):
        changed = np.asarray(attack(*vit, eps, norm))
        assert (distances(changed, vit[3], norm) <= eps + 1e-6).all()
        assert changed.min() >= 0 and changed.max() <= 1


@pytest.mark.parametrize(("norm", "eps"), [("linf", EPS), ("l2", 0.4)])
def test_attacks_raise_the_loss_above_that_of_noise_and_pgd_above_fgsm(norm, eps, vit):
    pixels = vit[3]
    noise = np.array(random_change(pixels.shape[1:], 0, np.arange(12), norm))
    noise *= (eps / distances(noise, 0, norm))[:, None, None, None]  # as large as the attack's
    clean, noisy = losses(vit, pixels), losses(vit, np.clip(pixels + noise, 0, 1))
    by_fgsm, by_pgd = losses(vit, fgsm(*vit, eps, norm)), losses(vit, pgd(*vit, eps, norm))
    assert by_fgsm.mean() > max(clean.mean(), noisy.mean()) + 0.1
    assert (by_pgd >= by_fgsm - 1e-3).all() and by_pgd.mean() > by_fgsm.mean()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("attack", [fgsm, pgd])
def test_an_eps_of_zero_changes_nothing(attack, norm, vit):
    np.testing.assert_array_equal(attack(*vit, 0.0, norm), vit[3])


def test_a_image_is_attacked_the_same_in_any_company(vit):
    model, variables, normalise, pixels, labels = vit
    short = {"step_size": EPS / 10}  # the steps do not lead from any start to one corner
    together = pgd(*vit, EPS, seed=3, **short)
    one = (model, variables, normalise, pixels[7:8], labels[7:8], EPS)
    alone = pgd(*one, seed=3, numbers=np.array([7]), **short)
    # A gradient near zero may have either sign, by the order of a sum.
    assert np.mean(np.abs(alone[0] - together[7]) > 1e-6) < 0.01
    elsewhere = pgd(*one, seed=4, **short)
    assert np.mean(np.abs(elsewhere[0] - together[7]) > 1e-6) > 0.05


def test_random_changes_are_uniform_and_of_norm_one_at_most():
    linf, l2 = (
        np.asarray(random_change((4, 4, 3), 0, np.arange(500), norm)) for norm in ("linf", "l2")
    )
    assert np.abs(linf).max() <= 1
    assert abs(linf.mean()) < 0.02 and abs(linf.var() - 1 / 3) < 0.02  # uniform from -1 to 1
    lengths = np.linalg.norm(l2.reshape(500, -1), axis=1)
    assert lengths.max() <= 1 + 1e-6
    assert abs(lengths.mean() - 1 / 2) < 0.05 and abs(lengths.var() - 1 / 12) < 0.02


def test_a_single_output_is_the_logit_of_the_second_class():
    found = jax.jit(cross_entropy)(np.array([[2.0], [2.0]]), np.array([0, 1]))
    np.testing.assert_allclose(found, np.log1p(np.exp([2.0, -2.0])), rtol=1e-6)


def test_floats_are_normalised_as_bytes_are():
    preprocessing = Preprocessing((1, 1), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    pixels = np.arange(256, dtype=np.uint8)[:, None].repeat(3, axis=1)
    np.testing.assert_allclose(
        preprocessing.normalize_unit(pixels / np.float32(255)),
        preprocessing.normalize(pixels),
        atol=1e-6,
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [({"norm": "l1"}, "norm=l1 is invalid; use one of linf, l2"), ({"steps": 0}, "one step")],
)
def test_what_is_no_attack_is_one_sentence(options, told, vit):
    with pytest.raises(UserError, match=told):
        pgd(*vit, EPS, **options)


def as_it_is(images):
    """A normaliser that changes nothing."""
    return images


class BlindInTheDark(nn.Module):
    """Logits of a mean, and NaN where that is below one half less a little."""

    @nn.compact
    def __call__(self, images, train=False):
        mean = images.mean(axis=(1, 2, 3))
        return jnp.where(mean < 0.48, jnp.nan, mean)[:, None] * jnp.array([1.0, -1.0])


def test_a_image_without_finite_logits_is_what_an_attack_looks_for():
    """Darker is less of class 0, and beyond the border there is no answer at all."""
    pixels = np.full((1, 2, 2, 1), 0.5, np.float32)
    changed = pgd(BlindInTheDark(), {}, as_it_is, pixels, np.array([0]), 0.1)
    assert np.isfinite(changed).all() and np.abs(changed - pixels).max() <= 0.1 + 1e-6
    assert np.isnan(BlindInTheDark().apply({}, changed)).all()
