"""Ensembles against means computed in NumPy."""

import numpy as np
import pytest
from scipy.special import softmax

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.classifier import Classifier
from vit_jax.inference.ensembles.ensemble import Ensemble
from vit_jax.inference.ensembles.evaluation import evaluate_ensemble
from vit_jax.inference.ensembles.views import views

SIZE = Preprocessing((8, 8), mean=(0.5,), std=(0.5,))


class Fixed(Classifier):
    """Logits that are a linear function of the mean of each image's left and right half."""

    def __init__(self, matrix, names=("cat", "dog", "fox"), activation="softmax", size=SIZE):
        super().__init__(None, {}, names, size, activation=activation)
        self.matrix = np.array(matrix, np.float32)

    def logits(self, images):
        self.check(np.asarray(images))
        halves = np.asarray(images).reshape(len(images), -1, 2, images.shape[-2] // 2, 3)
        return halves.mean((1, 3, 4)) / 255 @ self.matrix


ONE, OTHER = Fixed([[2, 0, 1], [0, 1, 0]]), Fixed([[0, 3, 1], [1, 0, 2]])
IMAGES = np.random.default_rng(0).integers(0, 256, (5, 8, 8, 3), np.uint8)


def logits(classifier, images=IMAGES):
    return classifier.logits(images).astype(np.float64)


def answers(ensemble, images=IMAGES):
    return np.array([one.probabilities for one in ensemble.iter_predict(images, batch_size=2)])


def test_the_mean_of_probabilities_with_weights():
    expected = 0.75 * softmax(logits(ONE), 1) + 0.25 * softmax(logits(OTHER), 1)
    found = answers(Ensemble([ONE, OTHER], weights=[3, 1]))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_mean_of_logits():
    expected = softmax((logits(ONE) + logits(OTHER)) / 2, 1)
    found = answers(Ensemble([ONE, OTHER], average="logits"))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_each_member_has_its_own_temperature():
    expected = (softmax(logits(ONE) / 2, 1) + softmax(logits(OTHER) / 0.5, 1)) / 2
    found = answers(Ensemble([ONE, OTHER], temperatures=[2, 0.5]))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_classes_in_another_order_are_matched_by_name():
    turned = Fixed(OTHER.matrix[:, [2, 0, 1]], ("fox", "cat", "dog"))
    np.testing.assert_array_equal(answers(Ensemble([ONE, turned])), answers(Ensemble([ONE, OTHER])))


def test_mirrored_images_are_averaged():
    expected = (softmax(logits(ONE), 1) + softmax(logits(ONE, IMAGES[:, :, ::-1]), 1)) / 2
    np.testing.assert_allclose(answers(Ensemble([ONE], tta="flip")), expected, atol=1e-6)


def test_members_of_other_sizes_read_each_image_for_themselves():
    small = Fixed(OTHER.matrix, size=Preprocessing((4, 4), mean=(0.5,), std=(0.5,)))
    reduced = np.stack([small.preprocessing(image) for image in IMAGES])
    expected = (softmax(logits(ONE), 1) + softmax(logits(small, reduced), 1)) / 2
    found = answers(Ensemble([ONE, small]), iter(list(IMAGES)))  # a stream can be read once
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_single_output_of_two_classes_is_the_logit_of_the_second():
    pair = ("cat", "dog")
    single = Fixed([[2], [-1]], pair, "sigmoid")
    double = Fixed([[0, 2], [0, -1]], pair)
    single.__dict__["_traced"] = lambda name: np.zeros((1, 1))
    np.testing.assert_allclose(
        answers(Ensemble([single, single])), answers(Ensemble([double])), atol=1e-6
    )


def test_outputs_that_are_not_finite_are_an_error_of_their_image():
    broken = Fixed([[np.inf, 0, 0], [0, 0, 0]])
    [result] = Ensemble([ONE, broken]).iter_predict(IMAGES[0])
    assert "not finite" in str(result.error) and result.probabilities is None


@pytest.mark.parametrize(
    ("members", "options", "sentence"),
    [
        ([ONE, Fixed([[0, 0], [0, 0]], ("cat", "emu"))], {}, r"\('dog', 'emu', 'fox' only in one"),
        ([ONE, Fixed(ONE.matrix, activation="sigmoid")], {}, "by softmax and .* by sigmoid"),
        ([ONE, OTHER], {"weights": [1]}, "1 weights for 2 runs"),
        ([ONE, OTHER], {"weights": [1, -1]}, "at least 0"),
        ([ONE, OTHER], {"average": "votes"}, "use probabilities or logits"),
        ([ONE], {"tta": "flips"}, "did you mean 'flip'"),
    ],
)
def test_what_cannot_be_averaged_is_refused_in_a_sentence(members, options, sentence):
    with pytest.raises(UserError, match=sentence):
        Ensemble(members, **options)


# ------------------------------------------------------------------------------------------ views


def test_the_number_of_views():
    counts = {"": 1, "flip": 2, "crops": 6, "scales": 3, "flip,crops": 12, "flip,crops,scales": 14}
    assert {text: len(views(text)) for text in counts} == counts


def test_crops_show_the_corners_at_the_size_of_the_image():
    image = np.zeros((1, 16, 16, 3), np.uint8)
    image[:, 0, 0] = 255  # only the corner at the top on the left has a bright pixel
    bright = [np.asarray(view(image)).max(-1)[0] > 60 for view in views("crops")]
    assert [one.shape for one in bright] == [(16, 16)] * 6
    assert [bool(one.any()) for one in bright] == [True, True, False, False, False, False]


def test_parts_of_a_plain_image_are_plain():
    image = np.full((1, 9, 12, 3), 200, np.uint8)
    for view in views("flip,crops,scales"):
        np.testing.assert_array_equal(view(image), image)


# ------------------------------------------------------------------------------------- evaluation


class Images:
    """Some images with labels, as a source."""

    multi_label, features = False, {}


def test_the_metrics_are_those_of_the_mean_probabilities(monkeypatch):
    labels = np.array([0, 1, 2, 0, 1])
    batches = [
        {"image": IMAGES[:3], "label": labels[:3], "mask": np.array([1, 1, 1])},
        {"image": IMAGES[2:], "label": labels[2:], "mask": np.array([0, 1, 1])},
    ]
    module = "vit_jax.inference.ensembles.evaluation.eval_batches"
    monkeypatch.setattr(module, lambda *_, **__: iter(batches))
    ensemble = Ensemble([ONE, OTHER])
    result, members = evaluate_ensemble(ensemble, Images())
    expected = answers(ensemble)
    true = expected[np.arange(5), labels]
    assert result.metrics["loss"] == pytest.approx(-np.log(true).mean(), abs=1e-5)
    assert result.metrics["accuracy"] == np.mean(expected.argmax(1) == labels)
    assert result.metrics["examples"] == 5 and result.table.index.tolist() == [0, 1, 2, 4, 5]
    alone = softmax(logits(OTHER), 1).argmax(1)
    assert members[1].metrics["accuracy"] == np.mean(alone == labels)


def test_the_loss_is_against_soft_labels(monkeypatch):
    soft = np.array([[0.7, 0.2, 0.1], [0.5, 0.5, 0], [0, 0, 1], [0.25, 0, 0.75], [0, 1, 0]])
    batch = {"image": IMAGES, "label": soft.argmax(1), "soft_label": soft, "mask": np.ones(5)}
    module = "vit_jax.inference.ensembles.evaluation.eval_batches"
    monkeypatch.setattr(module, lambda *_, **__: iter([batch]))
    ensemble = Ensemble([ONE, OTHER])
    monkeypatch.setattr(Images, "features", {"soft_label": None})
    result, _ = evaluate_ensemble(ensemble, Images())
    expected = answers(ensemble)
    agreement = soft[np.arange(5), expected.argmax(1)]
    np.testing.assert_array_equal(result.table.agreement, agreement)
    loss = -(soft * np.log(expected)).sum(1).mean()
    assert result.metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert result.metrics["accuracy"] == np.mean(expected.argmax(1) == soft.argmax(1))
