"""The images of probes show the numbers they were given, under the names of the layers."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from vit_jax.analysis.representations.probe import LayerProbe, Measured
from vit_jax.analysis.representations.probe_plots import draw_probes, show_similarity
from vit_jax.evaluation.few_shot import FewShotAccuracy


def probes(layers, shots=(1, 5)):
    return [
        LayerProbe(
            f"blocks_{number}",
            8,
            Measured(0.5, 0.4, 0.55),
            Measured(0.6, 0.5, 0.65),
            tuple(FewShotAccuracy(count, 0.3, 0.05, 0.2, 0.4) for count in shots),
        )
        for number in range(layers)
    ]


def names_of(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_every_probe_has_a_line_with_its_intervals():
    similarity = np.eye(3)
    sides = ("runs/$a_b$", ["blocks_0", "blocks_1", "blocks_2"])
    figure = draw_probes({"runs/$a_b$": probes(3)}, similarity, sides, sides)
    figure.draw_without_rendering()
    accuracy, alike = figure.axes[:2]
    legend = [text.get_text() for text in accuracy.get_legend().get_texts()]
    expected = ["linear probe", "neighbours", "1 image per class", "5 images per class"]
    assert legend == expected
    line, _, bars = accuracy.containers[0]
    np.testing.assert_allclose(line.get_ydata(), 50)
    np.testing.assert_allclose(bars[0].get_segments()[0][:, 1], [40, 55])
    assert names_of(accuracy.xaxis) == names_of(alike.yaxis) == sides[1]
    np.testing.assert_array_equal(alike.images[0].get_array(), similarity)
    assert accuracy.get_title() == "runs/$a_b$"


def test_two_models_have_a_panel_each_and_one_map():
    here, there = probes(2), probes(4, shots=())
    sides = [("one", [p.layer for p in here]), ("x" * 200, [p.layer for p in there])]
    figure = draw_probes(
        {"one": here, "x" * 200: there}, np.full((2, 4), np.nan), sides[0], sides[1]
    )
    figure.draw_without_rendering()
    assert len(figure.axes) == 4  # the last is the scale of colours
    assert figure.axes[1].get_title() == "…" + "x" * 43
    assert not figure.axes[2].texts  # NaN is no number to show


@pytest.mark.parametrize(("layers", "shown"), [(32, 32), (33, 17), (100, 25)])
def test_of_many_layers_some_go_without_a_name_but_not_the_last(layers, shown):
    names = [f"blocks_{number}" for number in range(layers)]
    panel = Figure().subplots()
    show_similarity(panel, np.zeros((layers, layers)), ("a", names), ("a", names))
    assert len(names_of(panel.xaxis)) == shown and names_of(panel.xaxis)[-1] == names[-1]
