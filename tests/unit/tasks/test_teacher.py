"""A teacher sees the student's image at its own size and statistics, and speaks its classes."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.support.shapes import run
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.runs import RunDir, unnamed_classes
from vit_jax.tasks.classification import Classification
from vit_jax.tasks.distillation import Distillation
from vit_jax.tasks.teacher import Teacher, open_teacher

RGB = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
DIGITS = tuple("0123456789")


class Observation(nn.Module):
    """A model whose output is its image."""

    @nn.compact
    def __call__(self, images, train=False):
        assert not train
        return images


def teacher(its, of_student, model=None, variables=None):
    return Teacher(
        "a test", model or Observation(), variables or {}, its, of_student, "softmax", ""
    )


def pixels(*shape):
    return np.random.RandomState(0).randint(0, 256, shape, np.uint8)


def test_images_get_the_statistics_that_the_teacher_was_trained_on():
    student = Preprocessing((6, 4), mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
    its = Preprocessing((6, 4), **RGB)
    images = pixels(2, 6, 4, 3)
    seen = teacher(its, student)(student.normalize(images))
    by_hand = (images / 255.0 - np.array(RGB["mean"])) / np.array(RGB["std"])
    np.testing.assert_allclose(seen, by_hand, atol=1e-5)


def test_where_nothing_differs_not_a_bit_does():
    student = Preprocessing((6, 4), **RGB)
    images = student.normalize(pixels(2, 6, 4, 3))
    its = dataclasses.replace(student, crop=0.875)  # was taken when the image was cut out
    np.testing.assert_array_equal(teacher(its, student)(images), images)


@pytest.mark.parametrize(
    ("interpolation", "resample"),
    [
        ("bilinear", Image.Resampling.BILINEAR),
        ("bicubic", Image.Resampling.BICUBIC),
        ("lanczos", Image.Resampling.LANCZOS),
    ],
)
@pytest.mark.parametrize("size", [(5, 7), (23, 30)], ids=["smaller", "larger"])
def test_images_are_resized_as_pillow_resizes_them(interpolation, resample, size):
    """To rounding: Pillow gives whole numbers, and rounds after each of the two axes.

    The images are of middling brightness, or Pillow would also cut off after the first axis.
    """
    student = Preprocessing((12, 16), mean=(0.2,), std=(0.7,))
    its = Preprocessing(size, interpolation=interpolation, **RGB)
    image = 80 + pixels(12, 16, 3) // 3
    seen = teacher(its, student)(student.normalize(image[None]))[0]
    resized = np.asarray(Image.fromarray(image).resize(size[::-1], resample))
    expected = (resized / 255.0 - np.array(RGB["mean"])) / np.array(RGB["std"])
    off = np.abs(np.asarray(seen) - expected) * np.array(RGB["std"]) * 255
    assert off.max() < 1.6 and off.mean() < 0.5


def test_running_statistics_are_read_and_stay_as_they_are():
    class WithStatistics(nn.Module):
        @nn.compact
        def __call__(self, images, train=False):
            return nn.BatchNorm(use_running_average=not train, epsilon=0.0)(images)

    images = jnp.array([[3.0, 1.0], [5.0, -1.0]])
    variables = WithStatistics().init(jax.random.key(0), images)
    statistics = {"mean": jnp.array([1.0, 0.0]), "var": jnp.array([4.0, 1.0])}
    variables = {"params": variables["params"], "batch_stats": {"BatchNorm_0": statistics}}
    plain = Preprocessing((1, 1), 1)

    class Images(nn.Module):  # of the student
        @nn.compact
        def __call__(self, images, train=False):
            return images[:, 0, 0]

    class Flat(WithStatistics):
        @nn.compact
        def __call__(self, images, train=False):
            return super().__call__(images[:, 0, 0], train)

    knows = teacher(plain, plain, Flat(), variables)
    np.testing.assert_allclose(knows(images[:, None, None]), [[1.0, 1.0], [2.0, -1.0]], rtol=1e-6)
    objective = Distillation(Classification(Images()), knows, "hard", alpha=1.0)
    batch = {"image": images[:, None, None], "label": jnp.array([0, 0])}
    loss, *_, state = objective.loss({"params": {}}, batch, jax.random.key(0), train=True)
    # Its answers are class 0 for both: of equals, the first.
    assert float(loss) == pytest.approx(np.log1p(np.exp(-2.0)) + np.log1p(np.exp(-6.0)), rel=1e-5)
    assert state == {}


def test_its_variables_are_those_that_the_objective_holds(finished_run):
    """The step holds traced ones in their place, or they would be compiled into it."""
    student = finished_run.read_model().preprocessing
    knows = open_teacher(str(finished_run.path), student, DIGITS)
    objective = Distillation(Classification(knows.model), knows)
    images = student.normalize(pixels(2, 16, 16, 1))
    zeros = jax.tree.map(np.zeros_like, objective.frozen)
    logits = jax.jit(lambda held: objective.with_frozen(held).teacher(images))
    assert np.any(logits(objective.frozen)) and not np.any(logits(zeros))
    program = jax.make_jaxpr(lambda held: objective.with_frozen(held).teacher(images))(
        objective.frozen
    )
    largest = max(np.size(constant) for constant in [*program.consts, 0])
    assert largest <= images.size


def test_a_run_folder_is_opened_with_its_own_preprocessing(finished_run):
    record = finished_run.read_model()
    student = Preprocessing((8, 8), 1, mean=(0.1,), std=(0.9,))
    knows = open_teacher(str(finished_run.path), student, DIGITS)
    assert knows.preprocessing == record.preprocessing and knows.preprocessing.size == (16, 16)
    variables, _ = finished_run.read_variables()
    image = pixels(1, 8, 8, 1)
    large = jax.image.resize(image / 255.0, (1, 16, 16, 1), "cubic").clip(0, 1)
    expected = run(record.create_model(), variables, (large - 0.5) / 0.5)
    logits = jax.jit(lambda images: knows(student.normalize(images)))(image)
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    half = open_teacher(str(finished_run.path), student, DIGITS, dtype="bfloat16")
    assert half.model.dtype == "bfloat16" and half.fingerprint == knows.fingerprint


def changed_run(run, folder, **changes):
    """A folder with the parameters of a run and another record."""
    changed = RunDir(folder)
    changed.write_model(dataclasses.replace(run.read_model(), **changes))
    changed.write_variables(run.read_variables()[0])
    return str(changed.path)


def test_classes_have_to_be_the_students_in_its_order(finished_run, tmp_path):
    student = finished_run.read_model().preprocessing
    turned = changed_run(finished_run, tmp_path / "turned", class_names=DIGITS[::-1])
    with pytest.raises(
        UserError, match="in a different order: '9', '8', '7' .*convert SOURCE FOLDER"
    ):
        open_teacher(turned, student, DIGITS)
    letters = changed_run(finished_run, tmp_path / "letters", class_names=tuple("abcdefghij"))
    with pytest.raises(UserError, match="not those of the student's data: 'a', 'b', 'c'.* '0'"):
        open_teacher(letters, student, DIGITS)
    with pytest.raises(UserError, match="it has 10 outputs but the student's data have 3 classes"):
        open_teacher(str(finished_run.path), student, ("0", "1", "2"))
    unnamed = changed_run(finished_run, tmp_path / "unnamed", class_names=unnamed_classes(10))
    assert open_teacher(unnamed, student, DIGITS).source == unnamed


def test_a_teacher_without_a_classifier_is_refused(finished_run, tmp_path):
    record = finished_run.read_model()
    fields = {**record.fields, "num_classes": 0}
    headless = changed_run(finished_run, tmp_path / "run", fields=fields, class_names=())
    with pytest.raises(UserError, match="no classifier but the student's data have 10 classes"):
        open_teacher(headless, record.preprocessing, DIGITS)


def test_equal_parameters_have_one_fingerprint_and_others_another(finished_run, tmp_path):
    student = finished_run.read_model().preprocessing
    one = open_teacher(str(finished_run.path), student, DIGITS)
    same = open_teacher(changed_run(finished_run, tmp_path / "same"), student, DIGITS)
    variables, _ = finished_run.read_variables()
    variables["params"]["norm"]["bias"] = variables["params"]["norm"]["bias"] + 1e-3
    other = RunDir(tmp_path / "other")
    other.write_model(finished_run.read_model())
    other.write_variables(variables)
    other = open_teacher(str(other.path), student, DIGITS)
    assert one.fingerprint == same.fingerprint != other.fingerprint
