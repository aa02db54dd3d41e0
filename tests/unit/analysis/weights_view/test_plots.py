"""The figures of what was learned: what they hold, and names that would break a drawing."""

import io

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from vit_jax.analysis.weights_view.plots import (
    MOST_NAMED_CLASSES,
    cut_name,
    draw_biases,
    draw_features,
    draw_filters,
    draw_neighbours,
    draw_positions,
    draw_receptive_fields,
    some_of,
)
from vit_jax.analysis.weights_view.tables import Projection, Table, position_similarity
from vit_jax.evaluation.knn import Neighbours

RNG = np.random.default_rng(0)
ODD_NAMES = ("$5_$ {bill}", "a name that is longer than there is room for it", "Ä_ö^ß")


def drawn(figure):
    """The figure, after it could be written."""
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    return figure


def images_of(figure):
    return [np.asarray(image.get_array()) for panel in figure.axes for image in panel.images]


def test_similarities_of_a_small_grid_are_all_there():
    table = Table(RNG.normal(size=(1, 1 + 6, 8)), (2, 3), prefix=1)
    mosaic, spectrum = images_of(drawn(draw_positions(table, "positions")))[:2]
    similar = position_similarity(table.rows, (2, 3), 1)
    assert mosaic.shape == (2 * 3 - 1, 3 * 4 - 1)
    np.testing.assert_allclose(mosaic[3:5, 8:11], similar[1, 2])  # row 1, column 2
    assert np.ma.getmaskarray(np.ma.masked_invalid(mosaic))[2].all()  # the line between
    assert spectrum.sum() == pytest.approx(100)


def test_of_a_large_grid_some_patches_are_shown_from_corner_to_corner():
    table = Table(RNG.normal(size=(1, 14 * 20, 4)), (14, 20))
    figure = draw_positions(table, "positions")
    ticks = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert (ticks[0], ticks[-1], len(ticks)) == ("0", "19", 8)
    assert images_of(figure)[0].shape == (8 * 15 - 1, 8 * 21 - 1)
    assert some_of(range(12), 6) == [0, 2, 4, 7, 9, 11]
    assert some_of("ab", 6) == ["a", "b"]
    assert some_of("abc", 1) == ["a"]


def test_a_bias_for_keys_on_the_right_is_drawn_on_the_right():
    rows = np.zeros((3 + 3 * 5, 2))
    rows[3 + 1 * 5 + 1, 0] = 1.0  # row 0 and column -1 of query - key: the key is one to the right
    figure = drawn(draw_biases({"blocks_0": Table(rows, (3, 5), prefix=3)}))
    first, second = images_of(figure)[:2]
    assert np.argwhere(first).tolist() == [[1, 3]]
    assert not second.any()


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_filters_are_shown_in_their_colours(channels):
    kernel = np.zeros((2, 2, channels, 3))
    kernel[0, 1, :, 0] = 2.0
    kernel[1, 0, :, 1] = -1.0
    kernel[1, 1, 0, 2] = 0.5
    figure = drawn(draw_filters(kernel, "stem"))
    filters = images_of(figure)[0]
    assert filters.shape[:2] == (2, 3 * 3 - 1)
    assert filters.shape[2:] == ((3,) if channels == 3 else ())
    # The strongest first: 0 is grey, the largest value white, its negative black.
    assert (filters[0, 1] == 1).all()
    assert (filters[0, 0] == 0.5).all()
    assert (filters[1, 3] == 0).all()
    if channels == 3:
        np.testing.assert_array_equal(filters[1, 7], [1, 0.5, 0.5])


def test_points_have_the_colours_of_their_classes_and_odd_names_are_drawn():
    labels = np.array([0, 1, 2, 0, 1, 2])
    planes = {
        "PCA": Projection(RNG.normal(size=(6, 2)), np.array([0.6, 0.25])),
        "t-SNE": Projection(RNG.normal(size=(6, 2))),
    }
    figure = drawn(draw_features(planes, labels, ODD_NAMES, "$x"))
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [cut_name(n) for n in ODD_NAMES]
    assert figure.axes[0].get_xlabel() == "60 % of the variance"
    dots = {tuple(dot) for c in figure.axes[1].collections for dot in c.get_offsets().tolist()}
    assert dots == {tuple(point) for point in planes["t-SNE"].points.tolist()}


def test_of_many_classes_the_fullest_are_named_and_the_others_grey():
    labels = np.concatenate([np.arange(50), np.repeat(np.arange(30, 47), 2)])
    plane = {"t-SNE": Projection(RNG.normal(size=(len(labels), 2)))}
    figure = drawn(draw_features(plane, labels, [f"class {n}" for n in range(50)]))
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(names) == MOST_NAMED_CLASSES
    assert names[:-1] == [f"class {n}" for n in range(30, 47)]
    assert names[-1] == "33 other classes"
    colours = {tuple(c.get_facecolor()[0][:3]) for c in figure.axes[0].collections}
    assert len(colours) == len(names)
    greys = [c for c in colours if len(set(c)) == 1]
    assert greys == [to_rgb("lightgray")]
    assert sum(len(c.get_offsets()) for c in figure.axes[0].collections) == len(labels)


def test_a_long_name_keeps_its_beginning_and_its_end():
    assert cut_name("Labrador retriever, a dog (208)") == "Labrador r…dog (208)"
    assert cut_name("x" * 20) == "x" * 20


@pytest.mark.parametrize("channels", [1, 3])
def test_neighbours_of_another_class_are_red(channels):
    images = RNG.integers(0, 256, (4, 6, 6, channels)).astype(np.uint8)
    found = Neighbours(np.array([[1, 2], [0, 3], [3, 0], [2, 1]]), np.full((4, 2), 0.5))
    labels = np.array([0, 0, 1, 1])
    figure = drawn(draw_neighbours(images, [0, 3], found, labels, ODD_NAMES))
    red = [to_rgb(panel.title.get_color()) == to_rgb("tab:red") for panel in figure.axes]
    assert red == [False, False, True, False, False, True]
    assert [panel.title.get_text() for panel in figure.axes[:2]] == [
        ODD_NAMES[0],
        f"{ODD_NAMES[0]}\n0.500",
    ]


def test_receptive_fields_of_models_stand_below_each_other():
    vit = {f"blocks_{n}": RNG.random((8, 12)) for n in range(9)}
    resnet = {"stages_0": np.pad(np.ones((3, 3)), 4), "stages_1": np.ones((11, 11))}
    regions = {"ResNet": {"stages_0": (slice(4, 7), slice(3, 9))}}
    figure = drawn(draw_receptive_fields({"ViT": vit, "ResNet": resnet}, regions))
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert [t.split("\n")[0] for t in titles[:6]] == [f"blocks_{n}" for n in (0, 2, 3, 5, 6, 8)]
    assert titles[6:] == ["stages_0\nhalf within 3 px", "stages_1\nhalf within 9 px"]
    [frame] = [patch for panel in figure.axes[:12] for patch in panel.patches]
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((2.5, 3.5), 6, 3)
