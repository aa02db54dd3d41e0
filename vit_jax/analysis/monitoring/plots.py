"""Figure of the diagnostics during training: `figures/diagnostics.png`.

draw_diagnostics(run.read_metrics())
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from vit_jax.errors import UserError
from vit_jax.runs import DIAGNOSTICS

_MOST_NAMES = 14  # in the legend; of more blocks only some are listed
# Panels: the name in the log's lines, the title, and whether the scale is logarithmic.
_PANELS = (
    ("entropy", "attention entropy (uniform: 1)\nmean and range of the heads", False),
    ("distance", "attention distance (pixels)\nmean and range of the heads", False),
    ("rank", "effective rank of the\noutput tokens of a block", False),
    ("gradient_norm", "gradient norm", True),
    ("update_norm", "update norm", True),
    ("update_ratio", "update norm / parameter norm", True),
)
_OF_BLOCKS = ("entropy", "distance", "rank")  # panels that only blocks have
_OUTSIDE = ("tab:orange", "tab:brown", "tab:pink", "tab:gray", "black", "tab:cyan")  # of blocks

Curve = tuple[Float[np.ndarray, " looks"], Float[np.ndarray, " looks"]]


def draw_diagnostics(lines: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw curves over the steps, one for each block: attention, ranks, gradients and updates.

    Bands cover the heads of a layer. Crosses mark steps at which a layer's attention has collapsed.
    Quantities that the model does not have get no panel.

    Args:
        lines: of a run's log.

    Raises:
        UserError: the run has no diagnostics.
    """
    looks = [line for line in lines if line["kind"] == DIAGNOSTICS]
    if not looks:
        raise UserError(
            "the log has no diagnostics; train with --config.log.diagnostics=5% "
            "(or another interval)"
        )
    blocks, others = _layers(looks)
    styles = _styles(blocks, others)
    panels = [panel for panel in _PANELS if any(_names(looks, panel[0]))]
    rows, columns = -(-len(panels) // 3), min(3, len(panels))
    figure = Figure(figsize=(4.0 * columns + 1.9, 3.1 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis, (name, title, logarithmic) in zip(axes, panels, strict=False):
        axis.set(title=title, xlabel="step")
        axis.grid(alpha=0.3)
        for layer, style in styles.items():
            _draw_layer(axis, looks, name, layer, style)
        if name == "entropy":
            axis.set_ylim(-0.03, 1.03)
        if logarithmic:
            axis.set_yscale("log")
    for axis in axes[len(panels) :]:
        axis.axis("off")
    _legend(figure, styles, len(blocks), crossed=any(look.get("warned") for look in looks))
    return figure


def _draw_layer(
    axis: Any, looks: Sequence[Mapping[str, Any]], name: str, layer: str, style: dict[str, Any]
) -> None:
    """Draw one curve of a panel, with the band of its heads and crosses at its collapses."""
    steps, values = _curve(looks, name, layer)
    if not len(steps):
        return
    axis.plot(steps, values, marker="." if len(steps) < 30 else "", linewidth=1.2, **style)
    least, most = (_curve(looks, f"{name}_{end}", layer)[1] for end in ("min", "max"))
    if len(least) == len(most) == len(steps):
        axis.fill_between(steps, least, most, color=style["color"], alpha=0.12, linewidth=0)
    if name == "entropy":
        wrong = {look["step"] for look in looks if layer in look.get("warned", ())}
        crossed = np.isin(steps, list(wrong))
        axis.plot(steps[crossed], values[crossed], "x", color="crimson", markersize=7)


def _curve(looks: Sequence[Mapping[str, Any]], name: str, layer: str) -> Curve:
    """Return steps and values of a number; entropies as fractions of the uniform entropy."""
    key, uniform = f"{name}/{layer}", f"entropy_uniform/{layer}"
    there = [look for look in looks if key in look]
    if name.startswith("entropy"):
        there = [look for look in there if look.get(uniform, 0) > 0]
    if name.endswith(("_norm", "_ratio")):  # a logarithmic scale has no zero
        there = [look for look in there if look[key] > 0]
    values = [look[key] / (look[uniform] if name.startswith("entropy") else 1.0) for look in there]
    return np.array([look["step"] for look in there]), np.array(values, np.float64)


def _names(looks: Sequence[Mapping[str, Any]], name: str) -> list[str]:
    """Return the layers that have a number, each once, in the order of the lines."""
    found = (key.split("/", 1) for look in looks for key in look)
    return list(dict.fromkeys(rest[0] for first, *rest in found if first == name and rest))


def _layers(looks: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return blocks and other layers, in their order; the former have numbers of their tokens."""
    layers = {layer for name, _, _ in _PANELS for layer in _names(looks, name)}
    blocks = {layer for name in _OF_BLOCKS for layer in _names(looks, name)}
    return sorted(blocks, key=_numbers), sorted(layers - blocks, key=_numbers)


def _styles(blocks: Sequence[str], others: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return line styles: blocks from dark to bright in their order, other layers dashed."""
    shades = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.9, len(blocks)))
    styles = {layer: {"color": shade} for layer, shade in zip(blocks, shades, strict=True)}
    for i, layer in enumerate(others):
        dashes = "--" if i < len(_OUTSIDE) else ":"
        styles[layer] = {"color": _OUTSIDE[i % len(_OUTSIDE)], "linestyle": dashes}
    return styles


def _legend(
    figure: Figure, styles: Mapping[str, dict[str, Any]], count: int, crossed: bool
) -> None:
    """Draw the names of the layers beside the panels; of the `count` blocks only some."""
    blocks, others = list(styles)[:count], list(styles)[count:]
    places = np.linspace(0, len(blocks) - 1, min(len(blocks), _MOST_NAMES)).round().astype(int)
    named = [blocks[i] for i in places] + others[:_MOST_NAMES]
    handles = [Line2D([], [], label=layer, **styles[layer]) for layer in named]
    if crossed:
        cross = {"marker": "x", "linestyle": "", "color": "crimson"}
        handles.append(Line2D([], [], label="collapsed", **cross))
    figure.legend(handles=handles, loc="outside right upper", fontsize=8, frameon=False)


def _numbers(layer: str) -> tuple:
    """Return a key that sorts `blocks_10` after `blocks_9`."""
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", layer))
