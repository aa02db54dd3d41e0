"""Figures of probes: accuracy by layer, and similarity of layers."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.analysis.representations.probe import LayerProbe, Measured
from vit_jax.evaluation.few_shot import FewShotAccuracy

_LONGEST_TITLE = 44  # characters
_MOST_NAMES = 32  # on an axis; with more layers some are unnamed


def draw_probes(
    probes: Mapping[str, Sequence[LayerProbe]],
    similarity: Float[np.ndarray, "rows columns"],
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
) -> Figure:
    """Draw accuracy by layer of one or more models, and a map of layer similarity.

    Args:
        probes: of every model, by its name.
        similarity: by `cka_matrix`.
        rows, columns: model name and layers of the rows and columns of the map.
    """
    panels = len(probes) + 1
    figure = Figure(figsize=(6.2 * panels, 5.6), layout="constrained")
    *of_models, of_similarity = figure.subplots(1, panels)
    for panel, (name, one) in zip(of_models, probes.items(), strict=True):
        show_accuracy(panel, one, name)
    for panel in of_models[1:]:
        panel.sharey(of_models[0])
    show_similarity(of_similarity, similarity, rows, columns)
    return figure


def show_accuracy(panel: Axes, probes: Sequence[LayerProbe], title: str) -> None:
    """Draw accuracy by layer of every probe, with bars for the 95 % intervals."""
    lines: dict[str, dict[int, Measured | FewShotAccuracy]] = {"linear probe": {}, "neighbours": {}}
    for place, probe in enumerate(probes):
        lines["linear probe"][place] = probe.linear
        lines["neighbours"][place] = probe.knn
        for few in probe.few_shot:
            label = f"{few.shots} image{'s' * (few.shots > 1)} per class"
            lines.setdefault(label, {})[place] = few
    for number, (label, by_place) in enumerate(lines.items()):
        values = 100 * np.array([(one.accuracy, one.low, one.high) for one in by_place.values()])
        if not len(values):
            continue
        accuracy, low, high = values.T
        # Overlapping points are shifted sideways.
        places = np.array(list(by_place)) + 0.08 * (number - (len(lines) - 1) / 2)
        bars = np.maximum(0, [accuracy - low, high - accuracy])
        panel.errorbar(places, accuracy, bars, label=label, marker="o", markersize=4, capsize=2)
    panel.set(ylabel="test accuracy, %", ylim=(0, 102))
    panel.set_title(_short(title), parse_math=False)
    names = [probe.layer for probe in probes]
    shown = _shown(names)
    panel.set_xticks(shown, [names[i] for i in shown], rotation=90)
    panel.grid(alpha=0.3)
    panel.legend(loc="lower right", fontsize=9)


def show_similarity(
    panel: Axes,
    similarity: Float[np.ndarray, "rows columns"],
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
) -> None:
    """Draw a map of alignment, clipped to 0 to 1; the first layers are at the bottom left."""
    shown = panel.imshow(similarity, cmap="magma", vmin=0, vmax=1, origin="lower", aspect="auto")
    (row_model, row_names), (column_model, column_names) = rows, columns
    across, up = _shown(column_names), _shown(row_names)
    panel.set_xticks(across, [column_names[i] for i in across], rotation=90)
    panel.set_yticks(up, [row_names[i] for i in up])
    panel.set_xlabel(_short(column_model), parse_math=False)
    panel.set_ylabel(_short(row_model), parse_math=False)
    panel.set_title("similarity of layers (linear CKA)")
    panel.figure.colorbar(shown, ax=panel, shrink=0.8)
    if similarity.size <= 225:  # as many numbers as are legible
        for (row, column), value in np.ndenumerate(similarity):
            if np.isfinite(value):
                color = "black" if value > 0.6 else "white"
                panel.text(
                    column, row, f"{value:.2f}", ha="center", va="center", color=color, fontsize=7
                )


def _short(title: str) -> str:
    """Return the end of a long title: paths differ at their ends."""
    return title if len(title) <= _LONGEST_TITLE else f"…{title[1 - _LONGEST_TITLE :]}"


def _shown(names: Sequence[str]) -> list[int]:
    """Return the layers named on an axis, always with the last one."""
    step = -(-len(names) // _MOST_NAMES)
    return sorted(range(len(names) - 1, -1, -step))
