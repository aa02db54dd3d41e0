"""Plots of learned weights and features: positions, filters, features, neighbours, fields.

Each function takes arrays, from `tables` and `receptive_field`, and returns a figure. Class names
are drawn without parsing them as math, and shortened if they are long.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int, UInt8
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from vit_jax.analysis.figures import show_image
from vit_jax.analysis.receptive_field.measure import extent
from vit_jax.analysis.weights_view.tables import (
    Projection,
    Table,
    patch_filters,
    position_similarity,
    position_spectrum,
)
from vit_jax.evaluation.knn import Neighbours

MOST_NAMED_CLASSES = 18  # more colours are not distinguishable
_MOST_MAPS = 8  # along a side of the grid of similarities
_MOST_LAYERS = 6  # side by side
_MOST_HEADS = 12
_LONGEST_NAME = 20
_GAP = (0.69, 0.77, 0.87)  # between filters: neither grey nor white


def draw_positions(table: Table, title: str) -> Figure:
    """Draw the similarity of position embeddings, and their frequency spectrum.

    On the left every small map is that of one patch: the cosine between its position and those of
    all patches (ViT paper, figure 7, in the middle). For large grids only some patches are shown.
    On the right is the power spectrum over the grid, without the mean.

    Args:
        table: of vectors, `(1, rows, width)`.
    """
    height, width = table.grid
    similar = position_similarity(table.rows, table.grid, table.prefix)
    rows, columns = (some_of(range(side), _MOST_MAPS) for side in table.grid)
    figure = Figure(figsize=(12, 5.6), layout="constrained")
    figure.suptitle(f"{title}, {height} x {width} patches", parse_math=False)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    maps = [similar[row, column] for row in rows for column in columns]
    shown = left.imshow(_mosaic(maps, len(columns)), vmax=1, interpolation="nearest")
    left.set_xticks(np.arange(len(columns)) * (width + 1) + (width - 1) / 2, columns)
    left.set_yticks(np.arange(len(rows)) * (height + 1) + (height - 1) / 2, rows)
    left.set(xlabel="column of the patch", ylabel="row of the patch", title="similarity to all")
    figure.colorbar(shown, ax=left, label="cosine similarity", shrink=0.85)
    spectrum = position_spectrum(table.rows, table.grid, table.prefix)
    edges = (
        -(width // 2) - 0.5,
        width - width // 2 - 0.5,
        height - height // 2 - 0.5,
        -(height // 2) - 0.5,
    )
    shown = right.imshow(100 * spectrum, cmap="magma", extent=edges, interpolation="nearest")
    right.set(
        xlabel="horizontal frequency",
        ylabel="vertical frequency",
        title="Fourier spectrum",
    )
    _whole_numbers(right)
    figure.colorbar(shown, ax=right, label="power (%)", shrink=0.85)
    return figure


def draw_biases(tables: Mapping[str, Table], title: str = "relative position biases") -> Figure:
    """Draw relative position biases by offset: a row for each block, a column for each head.

    The middle of a map is a patch's attention to itself; right of it are keys to the right of the
    query. If there are many blocks and heads, only some are shown, all on one scale.
    """
    names = some_of(list(tables), _MOST_LAYERS)
    heads = {name: some_of(range(tables[name].rows.shape[-1]), _MOST_HEADS) for name in names}
    columns = max(map(len, heads.values()))
    figure = Figure(
        figsize=(max(5.0, 1.5 * columns + 2.2), 1.0 + 1.6 * len(names)), layout="constrained"
    )
    figure.suptitle(title)
    axes = figure.subplots(len(names), columns, squeeze=False)
    limit = max(np.abs(tables[name].rows[tables[name].prefix :]).max() for name in names)
    for row, name in zip(axes, names, strict=True):
        table = tables[name]
        # Rows are offsets query - key; reversed they give the position of the key.
        maps = table.rows[table.prefix :].reshape(*table.grid, -1)[::-1, ::-1]
        reach = [side // 2 + 0.5 for side in table.grid]
        for panel in row:
            panel.set_axis_off()
        for panel, head in zip(row, heads[name], strict=False):
            panel.set_axis_on()
            shown = panel.imshow(
                maps[..., head],
                cmap="RdBu_r",
                vmin=-limit,
                vmax=limit,
                extent=(-reach[1], reach[1], reach[0], -reach[0]),
            )
            panel.set_title(f"head {head}", fontsize=8)
            _whole_numbers(panel)
            panel.tick_params(labelsize=6)
        row[0].set_ylabel(name.replace("/", "\n"), fontsize=8)
    figure.colorbar(shown, ax=axes, label="added to the logits", shrink=0.85)
    return figure


def draw_filters(
    kernel: Float[np.ndarray, "height width channels out"], title: str, count: int = 28
) -> Figure:
    """Draw the filters of the first convolution, their principal components and variance.

    Each is scaled by itself, with 0 halfway between dark and bright; three channels are red,
    green and blue, any other number is shown by its mean.

    Args:
        count: of filters, the strongest, and of components (ViT paper, figure 7, on the left).
    """
    height, width, channels, out = kernel.shape
    strongest = np.argsort(-np.linalg.norm(kernel.reshape(-1, out), axis=0), kind="stable")
    filters = [kernel[..., number] for number in strongest[:count]]
    found = patch_filters(kernel, height * width * channels)
    figure = Figure(figsize=(13, 4.6), layout="constrained")
    figure.suptitle(
        f"{title}: {out} filters of {height} x {width} pixels, {channels} "
        f"channel{'s' * (channels > 1)}"
    )
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 0.8))
    components = found.components[:count]
    greys = colormaps["gray"].with_extremes(bad=_GAP)
    for panel, shown, what in (
        (left, filters, f"the {len(filters)} strongest filters"),
        (middle, components, f"the first {len(components)} principal components"),
    ):
        tiles = [_as_image(one) for one in shown]
        columns = min(7, len(tiles))
        panel.imshow(_mosaic(tiles, columns, _GAP), cmap=greys, interpolation="nearest")
        panel.set_title(what)
        panel.set_axis_off()
    share = 100 * found.explained
    numbers = np.arange(1, len(share) + 1)
    right.bar(numbers[:count], share[:count], color="tab:blue", label="each")
    right.plot(numbers[:count], share.cumsum()[:count], "k.-", label="cumulative")
    right.set(xlabel="principal component", ylabel="variance of the filters (%)", ylim=(0, 103))
    right.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    right.grid(alpha=0.3)
    right.legend(loc="center right")
    return figure


def draw_features(
    planes: Mapping[str, Projection],
    labels: Int[np.ndarray, " images"],
    names: Sequence[str],
    title: str = "",
) -> Figure:
    """Draw images as points, coloured by class: one panel for each projection to the plane.

    With more than 18 classes only those with the most images have a colour and a name, all others
    are grey.
    """
    classes, counts = np.unique(labels, return_counts=True)
    most = classes[np.argsort(-counts, kind="stable")]
    many = len(most) > MOST_NAMED_CLASSES
    named = np.sort(most[: MOST_NAMED_CLASSES - 1] if many else most)
    palette = _colours(len(named))
    figure = Figure(figsize=(4.6 * len(planes) + 2.6, 4.9), layout="constrained")
    figure.suptitle(title, parse_math=False)
    panels = figure.subplots(1, len(planes), squeeze=False)[0]
    for panel, (way, plane) in zip(panels, planes.items(), strict=True):
        rest = ~np.isin(labels, named)
        panel.scatter(*plane.points[rest].T, s=8, color="lightgray")
        for number, color in zip(named, palette, strict=False):
            panel.scatter(*plane.points[labels == number].T, s=10, color=color, alpha=0.8)
        panel.set_title(way)
        if plane.explained is None:
            panel.set(xticks=[], yticks=[], xlabel="large distances have no meaning")
        else:
            first, second = (f"{100 * share:.0f} % of the variance" for share in _two(plane))
            panel.set(xlabel=first, ylabel=second)
    handles = [
        Line2D([], [], linestyle="", marker="o", color=color, label=cut_name(names[number]))
        for number, color in zip(named, palette, strict=False)
    ]
    if many:
        others = f"{len(most) - len(named)} other classes"
        handles.append(Line2D([], [], linestyle="", marker="o", color="lightgray", label=others))
    legend = figure.legend(handles=handles, loc="outside right upper", fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def draw_neighbours(
    images: UInt8[np.ndarray, "images height width channels"],
    queries: Sequence[int],
    found: Neighbours,
    labels: Int[np.ndarray, " images"],
    names: Sequence[str],
    title: str = "",
) -> Figure:
    """Draw images on the left, and to the right of each its nearest neighbours by features.

    Titles are the class and the cosine between the features; neighbours of another class than the
    image are red.

    Args:
        found: the neighbours of all images.
    """
    columns = 1 + found.numbers.shape[1]
    figure = Figure(figsize=(1.55 * columns + 0.5, 1.95 * len(queries) + 0.5), layout="constrained")
    figure.suptitle(title, parse_math=False)
    panels = figure.subplots(len(queries), columns, squeeze=False)
    for row, query in zip(panels, queries, strict=True):
        _show(row[0], images[query], cut_name(names[labels[query]]), "tab:blue")
        shown = zip(row[1:], found.numbers[query], found.similarity[query], strict=True)
        for panel, number, similarity in shown:
            wrong = labels[number] != labels[query]
            name = f"{cut_name(names[labels[number]])}\n{similarity:.3f}"
            _show(panel, images[number], name, "tab:red" if wrong else "black", frame=wrong)
    return figure


def draw_receptive_fields(
    models: Mapping[str, Mapping[str, Float[np.ndarray, "height width"]]],
    regions: Mapping[str, Mapping[str, tuple[slice, slice]]] | None = None,
) -> Figure:
    """Draw measured receptive fields: a row for each model, a column for each of its layers.

    Brightness is the square root of the gradient, relative to the largest. The dashed frame is the
    theoretical receptive field. Of many layers only some are shown, from the first to the last.

    Args:
        models: fields of layers, by the names of models.
        regions: theoretical receptive fields, by the same names, if known.
    """
    columns = min(_MOST_LAYERS, max(map(len, models.values())))
    figure = Figure(figsize=(2.25 * columns + 1.1, 2.95 * len(models) + 0.3), layout="constrained")
    grid = figure.subplots(len(models), columns, squeeze=False)
    for row, (model, fields) in zip(grid, models.items(), strict=True):
        layers = some_of(list(fields), columns)
        for panel in row[len(layers) :]:
            panel.set_axis_off()
        for panel, layer in zip(row, layers, strict=False):
            field = fields[layer]
            scale = PowerNorm(0.5, vmin=0, vmax=1)
            shown = panel.imshow(field / field.max(), norm=scale, cmap="magma")
            numbers = extent(field)
            panel.set_title(f"{layer}\nhalf within {numbers.half_side:.0f} px", fontsize=9)
            panel.set(xticks=[], yticks=[])
            if regions and layer in regions.get(model, {}):
                _frame(panel, regions[model][layer])
        height, width = field.shape
        row[0].set_ylabel(f"{cut_name(model)}\n{height} x {width} px", parse_math=False)
    label = "gradient, relative to the largest"
    figure.colorbar(shown, ax=grid, label=label, shrink=0.85, ticks=(0, 0.01, 0.1, 0.25, 0.5, 1))
    return figure


# ------------------------------------------------------------------------------------------ helpers


def some_of(items: Sequence, most: int) -> list:
    """Return at most so many of the items, evenly spaced, with the first and the last."""
    count = min(most, len(items))
    return [items[round(i * (len(items) - 1) / max(1, count - 1))] for i in range(count)]


def cut_name(name: str, longest: int = _LONGEST_NAME) -> str:
    """Shorten a name to fit beside an image, keeping its beginning and end."""
    begin = (longest - 1) // 2
    return name if len(name) <= longest else f"{name[: longest - 1 - begin]}…{name[-begin:]}"


def _mosaic(
    tiles: Sequence[np.ndarray], columns: int, gap: tuple[float, ...] | None = None
) -> np.ndarray:
    """Join images of one size side by side, with lines of RGB colour `gap` between them."""
    rows = -(-len(tiles) // columns)
    height, width, *channels = tiles[0].shape
    blank = gap if channels else np.nan
    whole = np.full((rows * (height + 1) - 1, columns * (width + 1) - 1, *channels), blank)
    for number, tile in enumerate(tiles):
        top, left = (number // columns) * (height + 1), (number % columns) * (width + 1)
        whole[top : top + height, left : left + width] = tile
    return whole


def _colours(count: int) -> Sequence[tuple[float, float, float]]:
    """Return distinct colours, also distinct from grey if there are more than ten."""
    if count <= 10:
        return colormaps["tab10"].colors
    twenty = colormaps["tab20"].colors
    return (*twenty[:14], *twenty[16:])


def _whole_numbers(panel: Axes) -> None:
    """Set ticks at whole numbers only."""
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _as_image(filter_: Float[np.ndarray, "height width channels"]) -> np.ndarray:
    """Return a filter scaled from 0 to 1 with zero at 0.5, in colour if it has three channels."""
    if filter_.shape[-1] != 3:
        filter_ = filter_.mean(axis=-1)
    return 0.5 + filter_ / (2 * max(np.abs(filter_).max(), np.finfo(np.float64).tiny))


def _two(plane: Projection) -> tuple[float, float]:
    """Return the explained variances of both axes, 0 for a missing one."""
    return tuple(np.pad(plane.explained, (0, 2))[:2])


def _show(panel: Axes, image: np.ndarray, title: str, color: str, frame: bool = False) -> None:
    show_image(panel, image, limits=(0, 255))
    panel.set_title(title, fontsize=8, color=color, parse_math=False)
    for side in panel.spines.values():
        side.set(visible=frame, color=color, linewidth=2.5)


def _frame(panel: Axes, seen: tuple[slice, slice]) -> None:
    rows, columns = seen
    corner = (columns.start - 0.5, rows.start - 0.5)
    size = (columns.stop - columns.start, rows.stop - rows.start)
    panel.add_patch(Rectangle(corner, *size, fill=False, color="cyan", linestyle="--"))
