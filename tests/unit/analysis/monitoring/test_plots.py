import numpy as np
import pytest

from vit_jax.analysis.monitoring.plots import draw_diagnostics
from vit_jax.analysis.report.figures import _figures
from vit_jax.errors import UserError


def looks(depth=2, attention=True, warned=()):
    """Lines of a log with three looks at a network of some blocks."""
    lines = [{"kind": "train", "step": 5, "epoch": 0.1, "loss": 1.0}]
    for step in (0, 10, 20):
        line = {"kind": "diagnostics", "step": step, "epoch": step / 40, "warned": list(warned)}
        for i in range(depth):
            line |= {f"rank/blocks_{i}": 5.0 + i, f"update_norm/blocks_{i}": 0.01 * step}
            if attention:
                heads = {"": 1.0, "_min": 0.5, "_max": 1.5, "_uniform": 2.0}
                line |= {f"entropy{end}/blocks_{i}": value for end, value in heads.items()}
        lines.append({**line, "update_norm/head": 0.5})
    return lines


def panels(figure):
    return {axis.get_title().split("\n")[0]: axis for axis in figure.axes if axis.get_title()}


def test_what_a_network_has_no_numbers_of_has_no_panel():
    assert len(panels(draw_diagnostics(looks()))) == 3
    assert len(panels(draw_diagnostics(looks(attention=False)))) == 2


def test_entropies_are_drawn_as_shares_of_those_of_uniform_attention():
    axis = panels(draw_diagnostics(looks()))["attention entropy (uniform: 1)"]
    curve = axis.get_lines()[0]
    np.testing.assert_array_equal(curve.get_xdata(), [0, 10, 20])
    np.testing.assert_array_equal(curve.get_ydata(), [0.5, 0.5, 0.5])
    band = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0.25, 0.75)


def test_a_logarithmic_panel_leaves_zeros_out():
    axis = panels(draw_diagnostics(looks()))["update norm"]
    np.testing.assert_array_equal(axis.get_lines()[0].get_xdata(), [10, 20])


def test_a_collapse_is_marked_where_it_was_seen():
    def crosses(figure):
        axis = panels(figure)["attention entropy (uniform: 1)"]
        return sum(len(x.get_xdata()) for x in axis.get_lines() if x.get_marker() == "x")

    assert crosses(draw_diagnostics(looks())) == 0
    assert crosses(draw_diagnostics(looks(warned=["blocks_1"]))) == 3


def test_of_many_blocks_the_legend_names_the_first_the_last_and_some_in_their_order():
    [legend] = draw_diagnostics(looks(depth=40)).legends
    names = [text.get_text() for text in legend.get_texts()]
    numbers = [int(name.removeprefix("blocks_")) for name in names if name != "head"]
    assert (numbers[0], numbers[-1]) == (0, 39) and numbers == sorted(numbers)
    assert len(numbers) < 20 and names[-1] == "head"


def test_a_run_that_nobody_looked_into_has_no_figure():
    training = looks()[:1]
    names = [[name for name, _ in _figures(lines, None, None, {})] for lines in (training, looks())]
    assert names == [["curves"], ["curves", "diagnostics"]]
    with pytest.raises(UserError, match="log.diagnostics=5%"):
        draw_diagnostics(training)
