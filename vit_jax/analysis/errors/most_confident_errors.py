"""Figures of the most confident errors with saliency maps, and of attention samples.

    explain_errors(classifier, source, predictions)   # image, gradients, attention
    attention_samples(classifier, source)

Both draw what the model sees: the image after preprocessing.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vit_jax.analysis.attention.compute import compute_attention, over_image
from vit_jax.analysis.errors.saliency import Margin, input_gradient, integrated_gradients, strength
from vit_jax.analysis.figures import short_name, show_image
from vit_jax.analysis.report.figures import most_confident_errors
from vit_jax.data import Source
from vit_jax.errors import UserError
from vit_jax.evaluation.metrics import Predictions
from vit_jax.inference import Classifier

MISTAKES = 5
SAMPLES = 8
_MOST_OF_A_PAIR = 2  # errors between the same two classes, so that no pair fills the figure


def explain_errors(
    classifier: Classifier,
    source: Source,
    predictions: Predictions,
    count: int = MISTAKES,
    steps: int = 32,
) -> Figure:
    """Draw the most confident errors, one per row: image, gradient, integrated gradients.

    Each pair of classes occurs at most twice.

    Gradients are of the predicted class's logit minus that of the true class: where a change of the
    image has the largest effect (`input_gradient`), and its composition in comparison with a black
    image (`integrated_gradients`). For models with attention, that of the last layer is added.

    Args:
        source, predictions: test data, and the predictions of the model.
        count: maximum number of errors.
        steps: of the integrated gradients.

    Raises:
        UserError: there is no error, or the predictions are of other data.
    """
    rows = most_confident_errors(predictions, _MOST_OF_A_PAIR)
    rows = rows[predictions.answered[rows]][:count]
    if not len(rows):
        raise UserError("the predictions have no errors to explain")
    examples = [_example(source, int(predictions.index[row])) for row in rows]
    true, said = predictions.labels[rows], predictions.predicted[rows]
    if any(example["label"] != label for example, label in zip(examples, true, strict=True)):
        raise UserError(
            f"{source.name} {source.split} does not match the predictions: labels differ"
        )
    seen = np.stack([classifier.preprocessing(example["image"]) for example in examples])
    images = classifier.preprocessing.normalize(seen)
    margin = Margin(classifier.model, classifier.variables, said, true)
    gradient = strength(input_gradient(margin, images))
    black = classifier.preprocessing.normalize(np.zeros_like(seen[:1]))
    parts = integrated_gradients(margin, images, black, steps).sum(axis=-1)
    try:
        attended = attention_maps(classifier, seen)
    except UserError:  # a model without attention
        attended = None

    titles = ["model input", "gradient", "for (red), against (blue)"]
    titles += [] if attended is None else ["attention"]
    figure = Figure(figsize=(2.2 * len(titles), 0.4 + 2.45 * len(rows)), layout="constrained")
    panels = figure.subplots(len(rows), len(titles), squeeze=False)
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title, fontsize=10)
    for row, line in enumerate(panels):
        _show(line[0], seen[row])
        _show(line[1], gradient[row], "magma")
        largest = max(float(np.abs(parts[row]).max()), np.finfo(np.float32).tiny)
        _show(line[2], parts[row], "RdBu_r", (-largest, largest))
        if attended is not None:
            _show_overlay(line[3], seen[row], attended[row], attended[row].max())
        said_name, true_name = (
            short_name(source.class_names[numbers[row]]) for numbers in (said, true)
        )
        confidence = 100 * predictions.confidence[rows[row]]
        line[0].set_xlabel(
            f"{true_name}, taken for\n{said_name} ({confidence:.0f} %)",
            fontsize=9,
            parse_math=False,  # a class name may be $5_$
        )
    return figure


def attention_samples(classifier: Classifier, source: Source, count: int = SAMPLES) -> Figure:
    """Draw images sampled from a source, above, and overlays of the last layer's attention, below.

    It is the attention of the class token (without one, the mean over the patches), mean of the
    heads, in units of uniform attention. Raises UserError for a model without attention.
    """
    places = np.unique(np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int))
    examples = [_example(source, int(place)) for place in places]
    seen = np.stack([classifier.preprocessing(example["image"]) for example in examples])
    maps = attention_maps(classifier, seen)
    answers = classifier.predict(seen, top=1) if classifier.class_names else [[None]] * len(seen)
    figure = Figure(figsize=(1.7 * len(seen) + 0.9, 3.9), layout="constrained")
    panels = figure.subplots(2, len(seen), squeeze=False)
    for column, (example, [answer]) in enumerate(zip(examples, answers, strict=True)):
        _show(panels[0, column], seen[column])
        shown = _show_overlay(panels[1, column], seen[column], maps[column], maps.max())
        if answer is not None:
            true = _true_names(source, example["label"])
            said = "" if true == answer.label else f"\npredicted {short_name(answer.label)}"
            panels[0, column].set_title(short_name(true) + said, fontsize=9, parse_math=False)
    figure.colorbar(shown, ax=panels[1, -1], label="times uniform", shrink=0.9)
    return figure


def attention_maps(
    classifier: Classifier, seen: UInt8[np.ndarray, "batch height width channels"]
) -> Float[np.ndarray, "batch height width"]:
    """Return the attention to every pixel, mean of the heads, in units of uniform attention.

    It is that of the last layer, or of the attention pooling if the model has it.

    Args:
        seen: preprocessed images.

    Raises:
        UserError: the model has no attention.
    """
    found = compute_attention(
        classifier.model, classifier.variables, classifier.preprocessing.normalize(seen)
    )
    asks = found.pooling or found.layers[-1]
    return over_image(asks.keys * asks.map(), asks, seen.shape[1:3])


def _show(panel: Axes, image: np.ndarray, *colours_and_limits) -> None:
    show_image(panel, image, *colours_and_limits)
    panel.spines[:].set_visible(False)


def _show_overlay(panel: Axes, image: np.ndarray, attention: np.ndarray, highest: float):
    """Draw an image with an attention map from 0 to `highest`; return it for a colour bar."""
    _show(panel, image.mean(axis=-1), "gray", (0, 255))  # colours show the map
    return panel.imshow(attention, cmap="inferno", alpha=0.6, vmin=0, vmax=highest)


def _example(source: Source, index: int):
    if index >= len(source):
        raise UserError(
            f"{source.name} {source.split} does not match the predictions: it has "
            f"{len(source):,} images, but the predictions have image {index:,}"
        )
    return source[index]


def _true_names(source: Source, label: int | Sequence[int]) -> str:
    """Return the name of a class, or the names of several."""
    if not isinstance(label, np.ndarray):
        return source.class_names[label]
    return ", ".join(source.class_names[number] for number in np.flatnonzero(label)) or "no class"
