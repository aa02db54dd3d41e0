"""How far heads look, measured over images, and the figure of it."""

import numpy as np
import pytest
from PIL import Image

from vit_jax.analysis.attention.compute import Attention, Layer
from vit_jax.analysis.attention.plots import draw_distances, measure_reach
from vit_jax.cli import main
from vit_jax.errors import UserError
from vit_jax.models.attention.windows import fit_windows


def look_at(distance, images):
    """One layer of 1 x 3 patches: the first two look so far to the right, the last at itself."""
    weights = np.zeros((images, 1, 3, 3))
    for query in range(3):
        weights[:, 0, query, min(query + distance, 2)] = 1
    return Attention((Layer(weights, (1, 3), patch_size=(4, 4)),), np.zeros((images, 2)))


def test_means_are_over_images_and_not_over_batches():
    near, far = look_at(0, images=3), look_at(1, images=1)
    assert measure_reach(near).distances[0] == pytest.approx([0])
    assert measure_reach(far).distances[0] == pytest.approx([4 * 2 / 3])
    reach = measure_reach(one for one in (near, far))
    assert reach.distances[0] == pytest.approx([4 * 2 / 3 / 4])
    assert reach.images == 4
    # Even attention: distances 0, 1, 2 of the ends and 1, 0, 1 of the middle, in patches of 4.
    assert reach.even_distances == pytest.approx([4 * (3 + 2 + 3) / 9])
    assert reach.even_entropies == pytest.approx([np.log(3)])


def test_every_head_is_a_dot_and_stages_are_divided():
    windows = fit_windows((4, 4), (2, 2), shifted=False)
    first = Layer(np.full((4, 2, 4, 4), 0.25), (4, 4), (0), (4, 4), windows=windows)
    last = Layer(np.full((1, 3, 4, 4), 0.25), (2, 2), 0, (8, 8), stage=1)
    left, right = draw_distances(Attention((first, last), np.zeros((1, 2)))).axes
    dots = [c.get_offsets() for c in left.collections if len(c.get_offsets()) > 1]
    assert [len(of_layer) for of_layer in dots] == [2, 3]
    hand = (2 + np.sqrt(2)) / 4
    np.testing.assert_allclose(dots[0][:, 1], 4 * hand)
    np.testing.assert_allclose(dots[1][:, 1], 8 * hand)
    assert "stages" in left.get_xlabel() and left.get_ylim()[1] > 8 * hand
    assert "pixels" in left.get_ylabel() and "nats" in right.get_ylabel()


def test_the_command_measures_several_images(finished_run, tmp_path, capsys):
    images = []
    for number in range(3):
        images.append(str(tmp_path / f"{number}.png"))
        Image.fromarray(np.eye(8 + number, dtype=np.uint8) * 255).save(images[-1])
    output = tmp_path / "distances.png"
    options = ["--distances", str(output)]
    assert main(["attention", str(finished_run.path), *images, *options]) == 0
    assert capsys.readouterr().out == f"The figure is {output}.\n"
    pixels = np.asarray(Image.open(output).convert("RGB"))
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 50


def test_no_images_are_said_to_be_none():
    with pytest.raises(UserError, match="no images to measure attention on"):
        measure_reach([])
