"""Plots of robustness: what is on them, of results and decisions written by hand."""

import io

import numpy as np
import pytest

from vit_jax.analysis.robustness.candidates import Score
from vit_jax.analysis.robustness.evaluate import Result
from vit_jax.analysis.robustness.plots import (
    corruption_curves,
    curves,
    examples,
    occlusion_maps,
    shape_plot,
)
from vit_jax.analysis.robustness.shape_texture import Decisions
from vit_jax.analysis.robustness.suite import make_suite

LONG = "a_run_whose_$name$_is_" + "very_" * 12 + "long"


def result(name, right, only=()):
    """A model that has 10 of 10 clean images right, and `right` of them under every test."""
    tests = make_suite((16, 16), only)
    scores = {test.name: (Score(right, 1.0, 10),) * len(test.levels) for test in tests}
    return Result(name, (16, 16), tests, Score(10, 1.0, 10), scores)


def drawn(figure):
    """The panels that are used, by title; saving shows that nothing is in the way of it."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    assert len(file.getvalue()) > 5000
    return {axes.get_title(): axes for axes in figure.axes if axes.axison and axes.get_title()}


@pytest.mark.parametrize("draw", [corruption_curves, curves])
def test_every_run_has_its_line_in_every_panel(draw):
    panels = drawn(figure := draw([result("one", 7), result(LONG, 2)]))
    names = {"fog", "mean of 15"} if draw is corruption_curves else {"pgd linf", "shuffle"}
    assert names < set(panels) and len(panels) == (16 if draw is corruption_curves else 11)
    for panel in panels.values():
        lines = [line.get_ydata() for line in panel.get_lines()]
        assert [line[0] for line in lines] == [100, 100]
        assert [set(np.round(line[1:], 9)) for line in lines] == [{70}, {20}]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0] == "one" and labels[1].endswith("…")


def test_eps_is_shown_in_grey_levels():
    panel = drawn(curves([result("one", 5, ["pgd_linf"])]))["pgd linf"]
    np.testing.assert_allclose(panel.get_lines()[0].get_xdata(), [0, 0.5, 1, 2, 4, 8, 16])


def test_what_was_not_tested_is_not_drawn():
    of_shifts = [result("one", 5, ["shift"])]
    assert corruption_curves(of_shifts) is None and occlusion_maps(of_shifts) is None
    assert curves([result("one", 5, ["fog"])]) is None
    assert examples(np.zeros((16, 16, 1), np.uint8), make_suite((16, 16), ["pgd"])) is None


def test_a_map_has_the_accuracy_of_each_place_where_the_square_was():
    one = result("one", 0, ["occlusion_map"])
    scores = tuple(Score(right % 11, 1.0, 10) for right in range(49))
    one.scores["occlusion_map"] = scores
    panel = drawn(occlusion_maps([one, result("other", 10, ["occlusion_map"])])).popitem()[1]
    assert "other" in panel.get_title()
    figure = occlusion_maps([one])
    shown = figure.axes[0].get_images()[0].get_array()
    assert shown.shape == (7, 7)
    assert [shown[0, 3], shown[1, 0], shown[6, 6]] == [30, 70, 40]  # places 3, 7 and 48


@pytest.mark.parametrize("channels", [1, 3])
def test_a_image_is_shown_under_every_test_that_knows_no_model(channels):
    image = np.random.default_rng(0).integers(0, 256, (16, 16, channels)).astype(np.uint8)
    suite = make_suite((16, 16), ["fog", "shuffle", "pgd"])
    figure = examples(image, suite, seed=0, number=3)
    shown = [axes.get_images()[0].get_array() for axes in figure.axes if axes.get_images()]
    assert len(shown) == 6 + 4  # as it is and five severities; as it is and 2, 4 and 8 pieces
    np.testing.assert_array_equal(shown[3], suite[0].apply(image, 3, 0, 3).squeeze())


def test_shape_bias_is_drawn_for_each_shape_that_there_is():
    names = ("cat", "clock", "a category with a name that goes on and on without an end in sight")
    one = Decisions(names, np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), np.array([0, 1, 1, 1]))
    none = Decisions(names, np.array([0, 0, 1, 1]), np.array([1, 1, 0, 0]), np.array([2, 2, 2, 2]))
    figure = shape_plot({"one": one, LONG: none})
    [panel] = drawn(figure).values()
    assert panel.get_lines()[0].get_xdata().tolist() == [50, 100]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels[0] == "one (75.0 %)" and labels[1].endswith("(none)")
