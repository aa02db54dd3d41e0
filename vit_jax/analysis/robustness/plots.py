"""Figures of robustness: accuracy over perturbation strength, for several models, and examples.

Each function takes the results of `measure` and returns a figure, or None if there is nothing of
its kind to draw.
"""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.analysis.figures import short_name
from vit_jax.analysis.robustness.evaluate import Result
from vit_jax.analysis.robustness.perturbations import ImageArray
from vit_jax.analysis.robustness.shape_texture import Decisions
from vit_jax.analysis.robustness.suite import Perturbation

_COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:red", "tab:purple", "tab:brown")
_MARKERS = "os^Dvp"
_MOST_EXAMPLES = 6  # in a row
_LONGEST_NAME = 40


def corruption_curves(results: Sequence[Result]) -> Figure | None:
    """Draw accuracy over severity, a panel for each corruption and one for their mean."""
    names = list(dict.fromkeys(t.name for r in results for t in r.of_kind("corruptions")))
    if not names:
        return None
    figure, panels = _panels(len(names) + 1)
    for panel, name in zip(panels, names, strict=False):
        for result, style in _styled(results):
            [test] = [test for test in result.tests if test.name == name]
            values = [result.clean.accuracy, *result.accuracies(name)]
            panel.plot([0, *test.levels], 100 * np.array(values), **style)
        panel.set_title(_words(name), fontsize=10)
    for result, style in _styled(results):
        mean = np.mean([result.accuracies(name) for name in names], axis=0)
        values = [result.clean.accuracy, *mean]
        panels[len(names)].plot(range(len(values)), 100 * np.array(values), **style)
    panels[len(names)].set_title(f"mean of {len(names)}", fontsize=10, fontweight="bold")
    for panel in panels[: len(names) + 1]:
        panel.set_xticks(range(6), ["clean", *"12345"])
    return _finish(figure, panels, len(results), "severity of the corruption")


def curves(results: Sequence[Result]) -> Figure | None:
    """Draw accuracy over the level of every other test, a panel for each."""
    tests = [t for r in results for t in r.tests if t.kind != "corruptions" and not t.places]
    names = list(dict.fromkeys(test.name for test in tests))
    if not names:
        return None
    figure, panels = _panels(len(names))
    for panel, name in zip(panels, names, strict=False):
        axes: dict[str, None] = {}
        for result, style in _styled(results):
            [test] = [test for test in result.tests if test.name == name]
            values = [result.clean.accuracy, *result.accuracies(name)]
            levels = np.array([1.0 if test.kind == "shuffle" else 0.0, *test.levels])
            shown, axis = in_units(test, levels)
            axes[axis] = None
            panel.plot(shown, 100 * np.array(values), **style)
        panel.set_title(_words(name), fontsize=10)
        panel.set_xlabel("\n".join(axes), fontsize=8)
    return _finish(figure, panels, len(results), "")


def occlusion_maps(results: Sequence[Result]) -> Figure | None:
    """Draw accuracy by the position of a hidden square, as a map for each model."""
    mapped = [(result, test) for result in results for test in result.tests if test.places]
    if not mapped:
        return None
    figure = Figure(figsize=(0.8 + 3.6 * len(mapped), 4.1), layout="constrained")
    values = [100 * result.accuracies(test.name).reshape(test.places) for result, test in mapped]
    least = min(value.min() for value in values)
    panels = figure.subplots(1, len(mapped), squeeze=False)[0]
    for panel, (result, test), value in zip(panels, mapped, values, strict=True):
        image = panel.imshow(value, cmap="viridis", vmin=least, vmax=100)
        for (row, column), accuracy in np.ndenumerate(value):
            dark = accuracy < (least + 100) / 2
            style = {"color": "white" if dark else "black", "fontsize": 8}
            panel.text(column, row, f"{accuracy:.0f}", ha="center", va="center", **style)
        panel.set(xticks=[], yticks=[])
        square = test.axis.removeprefix("position of a square of ")
        panel.set_title(
            f"{short_name(result.name, _LONGEST_NAME)}\n"
            f"clean {100 * result.clean.accuracy:.1f} %, square {square}",
            fontsize=9,
            parse_math=False,
        )
    figure.colorbar(image, ax=list(panels), label="accuracy, %", shrink=0.8)
    figure.suptitle("accuracy by position of the occluding square", fontsize=11)
    return figure


def examples(
    original: ImageArray, suite: Sequence[Perturbation], seed: int = 0, number: int = 0
) -> Figure | None:
    """Draw an image under each model-independent test: a row for each, with some levels.

    seed, number: of the random numbers and of the image, as in `Perturbation.apply`.
    """
    tests = [test for test in suite if test.change]
    if not tests:
        return None
    columns = 1 + min(_MOST_EXAMPLES, max(len(test.levels) for test in tests))
    figure = Figure(figsize=(1.6 + 1.1 * columns, 0.6 + 1.25 * len(tests)), layout="constrained")
    rows = figure.subplots(len(tests), columns, squeeze=False)
    for row, test in zip(rows, tests, strict=True):
        chosen = np.linspace(0, len(test.levels) - 1, min(len(test.levels), columns - 1))
        levels = [test.levels[i] for i in chosen.round().astype(int)]
        shown = [("original", original)]
        shown += [
            (level_name(test, level), test.apply(original, level, seed, number)) for level in levels
        ]
        for panel, entry in itertools.zip_longest(row, shown):
            panel.axis("off")
            if entry is not None:
                title, image = entry
                panel.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255)
                panel.set_title(title, fontsize=8)
        row[0].text(
            *(-0.12, 0.5, _words(test.name)),
            **{"transform": row[0].transAxes, "ha": "right", "va": "center", "fontsize": 9},
        )
    return figure


def shape_plot(decisions: Mapping[str, Decisions]) -> Figure:
    """Draw shape bias by category of the shape, a mark for each model, and a line for its mean.

    decisions: by model name.
    """
    categories = next(iter(decisions.values())).categories
    shown = [c for c in categories if any(len(d.of_shape(c).decided) for d in decisions.values())]
    figure = Figure(figsize=(7.5, 1.6 + 0.32 * len(shown)), layout="constrained")
    panel = figure.subplots()
    for place, (name, made) in enumerate(decisions.items()):
        colour, marker = _COLOURS[place % 6], _MARKERS[place % 6]
        biases = [made.of_shape(category).shape_bias for category in shown]
        there = [row for row, bias in enumerate(biases) if bias is not None]
        whole = "none" if made.shape_bias is None else f"{100 * made.shape_bias:.1f} %"
        panel.plot(
            [100 * biases[row] for row in there],
            there,
            **{"linestyle": "", "marker": marker, "color": colour},
            label=f"{short_name(name, _LONGEST_NAME)} ({whole})",
        )
        if made.shape_bias is not None:
            panel.axvline(100 * made.shape_bias, color=colour, linewidth=1)
    panel.set_yticks(
        range(len(shown)), [short_name(c, _LONGEST_NAME) for c in shown], parse_math=False
    )
    panel.set(xlim=(-3, 103), ylim=(len(shown) - 0.5, -0.5))
    panel.set_xlabel("shape bias, % (0: always texture, 100: always shape)")
    panel.set_title("shape decisions among shape or texture decisions", fontsize=11)
    panel.grid(alpha=0.3)
    _legend(figure, panel, len(decisions))
    return figure


def in_units(test: Perturbation, levels: np.ndarray) -> tuple[np.ndarray, str]:
    """Convert levels to display units, with their name: eps of `linf` in steps of 1/255."""
    if test.attack is not None and test.attack.norm == "linf":
        return 255 * levels, "largest change of a pixel, in 1/255"
    return levels, test.axis


def level_name(test: Perturbation, level: float) -> str:
    """Format a level in a few characters."""
    if test.attack is not None and test.attack.norm == "linf":
        return f"{255 * level:g}/255"
    return f"{level:g}"


# --------------------------------------------------------------------------------- plot helpers


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(4, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(max(4.5, 0.4 + 2.9 * columns), 1.1 + 2.4 * rows), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).ravel())
    for panel in panels[count:]:
        panel.axis("off")
    for place, panel in enumerate(panels[:count]):
        panel.set_ylim(-3, 103)
        panel.grid(alpha=0.3)
        panel.tick_params(labelsize=8, labelleft=place % columns == 0)
    return figure, panels


def _styled(results: Sequence[Result]):
    for place, result in enumerate(results):
        yield (
            result,
            {
                "label": short_name(result.name, _LONGEST_NAME),
                "color": _COLOURS[place % 6],
                "marker": _MARKERS[place % 6],
                "markersize": 3.5,
                "linewidth": 1.3,
                "linestyle": "-" if place < 6 else "--",
            },
        )


def _finish(figure: Figure, panels: Sequence[Axes], runs: int, axis: str) -> Figure:
    figure.supylabel("accuracy, %", fontsize=10)
    if axis:
        figure.supxlabel(axis, fontsize=10)
    _legend(figure, panels[0], runs)
    return figure


def _legend(figure: Figure, panel: Axes, entries: int) -> None:
    """Draw the legend of a panel above the whole figure, without parsing the names as math."""
    handles, labels = panel.get_legend_handles_labels()
    longest = max(map(len, labels))
    columns = max(1, min(entries, int(figure.get_figwidth() * 9 // (longest + 6))))
    legend = figure.legend(handles, labels, loc="outside upper center", ncols=columns, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _words(name: str) -> str:
    return name.replace("_", " ")
