"""Merged and kept tokens, drawn on the image."""

import numpy as np
import pytest

from tests.support.shapes import VIT, random_images, random_variables
from vit_jax.analysis.attention.compute import attention_blocks
from vit_jax.analysis.attention.tokens import draw_tokens, painted, shown_blocks
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference import Classifier
from vit_jax.models import ViT


def test_patches_of_a_token_get_their_mean_and_lost_ones_are_dark():
    image = np.arange(16, dtype=np.uint8).reshape(4, 4, 1) * 10
    groups = np.array([[0, 1], [1, -1]])
    merged = painted(image, groups, merged=True)[..., 0]
    np.testing.assert_array_equal(merged[:2, :2], image[:2, :2, 0])
    both = np.concatenate([image[:2, 2:].ravel(), image[2:, :2].ravel()])
    assert set(merged[:2, 2:].ravel()) == set(merged[2:, :2].ravel()) == {round(both.mean())}
    np.testing.assert_allclose(merged[2:, 2:], image[2:, 2:, 0] / 4, atol=0.5)
    kept = painted(image, groups, merged=False)[..., 0]
    np.testing.assert_allclose(kept[:2, 2:], image[:2, 2:, 0] / 4, atol=0.5)
    assert shown_blocks(range(12)) == [2, 5, 8, 11]
    assert shown_blocks(range(2)) == [0, 1]


def test_a_figure_has_a_panel_for_every_drawn_block():
    model = ViT(**VIT, tome_r=2)
    params = random_variables(model, random_images(1, 16, 16, 3))["params"]
    classifier = Classifier(model, params, "abc", Preprocessing((16, 16)))
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), np.uint8)
    figure = draw_tokens(classifier, list(images))
    titles = [panel.get_title() for panel in figure.axes]
    assert titles[:3] == ["image", "after block 0: 15 tokens", "after block 1: 13 tokens"]
    assert len(titles) == 6
    classifier.model = model.clone(tome_r=0)
    with pytest.raises(UserError, match="keeps all tokens"):
        draw_tokens(classifier, list(images))
    with pytest.raises(UserError, match=r"tome_r=2 .* attention maps need the whole grid; use"):
        attention_blocks(model, (16, 16))
