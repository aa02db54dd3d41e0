"""Robustness measured: on models whose answers are known, by hand, and by the command."""

import csv
import json
import re
import shutil

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from vit_jax import progress
from vit_jax.analysis.robustness.candidates import Candidate, Score, choose_images
from vit_jax.analysis.robustness.evaluate import Result, corruption_errors, measure
from vit_jax.analysis.robustness.report import notes, record
from vit_jax.analysis.robustness.suite import KINDS, Options, Perturbation, make_suite, usual_cells
from vit_jax.cli import main
from vit_jax.data import DecodeErrors, Preprocessing, Source, open_source
from vit_jax.data.sources.examples import MemoryExamples
from vit_jax.errors import UserError
from vit_jax.inference import Classifier
from vit_jax.text import to_json


class Brightest(nn.Module):
    """The class is the quadrant with the most light, counted from the upper left by rows."""

    @nn.compact
    def __call__(self, images, train=False):
        batch, height, width, channels = images.shape
        parts = images.reshape(batch, 2, height // 2, 2, width // 2, channels)
        return parts.mean(axis=(2, 4, 5)).reshape(batch, 4)


def candidate(source, size=(16, 16), **changes):
    classifier = Classifier(Brightest(), {}, source.class_names, Preprocessing(size, channels=1))
    return Candidate(**{"name": "brightest", "classifier": classifier, "source": source, **changes})


@pytest.fixture
def quadrants():
    """Images of 16 x 16 pixels with one white quadrant, whose number is the label."""
    labels = np.arange(20) % 4
    images = np.zeros((20, 2, 8, 2, 8, 1), np.uint8)
    images[np.arange(20), labels // 2, :, labels % 2] = 255
    return source_of(images.reshape(20, 16, 16, 1), labels)


def source_of(images, labels, classes=4):
    names = tuple(f"quadrant {number}" for number in range(classes))
    examples = MemoryExamples(images, labels)
    return Source("quadrants", "test", names, "quadrants", True, examples)


def test_what_turns_and_moves_a_quadrant_is_told_apart(quadrants):
    [result] = measure([candidate(quadrants)], only=["rotation", "shift"])
    assert result.clean == Score(20, pytest.approx(result.clean.loss), 20)
    by_degrees = dict(zip(result.tests[1].levels, result.accuracies("rotation"), strict=True))
    assert by_degrees[5] == by_degrees[20] == 1
    assert by_degrees[90] == by_degrees[180] == by_degrees[135] == 0  # it has left its quadrant
    assert result.tests[0].levels == (1, 2, 3, 4)
    assert (result.accuracies("shift") == 1).all()  # 4 of 8 pixels stay, and the border's repeat


def test_a_hidden_square_costs_nothing_where_it_hides_a_part_only(quadrants):
    [result] = measure([candidate(quadrants)], only=["occlusion_map"])
    assert result.accuracies("occlusion_map").shape == (49,)
    assert (result.accuracies("occlusion_map") == 1).all()


def test_the_loss_is_the_cross_entropy_on_the_images(quadrants):
    [result] = measure([candidate(quadrants)], only=["shift"], batch_size=8)
    # Inputs are 1 in one quadrant and -1 in the others, and so are the logits.
    expected = np.log(np.exp(1) + 3 * np.exp(-1)) - 1
    assert result.clean.loss / result.clean.images == pytest.approx(expected, rel=1e-6)


def test_results_do_not_depend_on_the_batch_nor_on_the_company(quadrants):
    noisy = np.random.default_rng(0).integers(0, 256, (20, 16, 16, 1)).astype(np.uint8)
    source = source_of(noisy, quadrants.labels)
    only = ["gaussian_noise", "patch_drop_random", "shuffle", "pgd_l2"]
    entrant = candidate(source)
    [alone] = measure([entrant], only=only, batch_size=3)
    together = measure([candidate(source, name="other"), entrant], only=only, batch_size=64)

    def counts(result):
        return {name: [score.right for score in scores] for name, scores in result.scores.items()}

    assert counts(alone) == counts(together[0]) == counts(together[1])
    [other_seed] = measure([entrant], only=only, options=Options(seed=1))
    assert counts(other_seed) != counts(alone)


def test_changes_hang_on_seed_test_and_image():
    image = np.full((16, 16, 3), 128, np.uint8)
    gaussian, shot = make_suite((16, 16), ["gaussian_noise", "shot_noise"])
    one = gaussian.apply(image, 3, 0, 5)
    np.testing.assert_array_equal(one, gaussian.apply(image, 3, 0, 5))
    for other in (gaussian.apply(image, 3, 1, 5), gaussian.apply(image, 3, 0, 6)):
        assert (other != one).mean() > 0.5
    # The same draws at every level: noise of severity 1 (0.08) is a part of that of 3 (0.18).
    weak = gaussian.apply(image, 1, 0, 5).astype(float) - 128
    inside = (one > 0) & (one < 255)
    assert np.corrcoef(weak[inside], one[inside].astype(float))[0, 1] > 0.99
    assert shot.name != gaussian.name


def test_an_attack_costs_more_with_every_eps(quadrants):
    [result] = measure([candidate(quadrants)], only=["fgsm_linf", "pgd_linf"])
    for name in ("fgsm_linf", "pgd_linf"):
        losses = [result.clean.loss, *(score.loss for score in result.scores[name])]
        assert (np.diff(losses) > 0).all()
    # Linear: white pixels lose eps and the others win it, so the logits of the true class and of
    # the others close in by 4 eps (inputs are 2 pixels - 1), until the image is at its limits.
    eps = 16 / 255
    expected = np.log(1 + 3 * np.exp(-2 + 4 * eps))
    assert result.scores["fgsm_linf"][-1].loss / 20 == pytest.approx(expected, rel=1e-4)


def test_answers_may_be_chosen_among_the_classes_of_the_data(quadrants):
    labels = np.array([0, 2, 0, 2])
    images = np.zeros((4, 16, 16, 1), np.uint8)
    images[:, :8, 8:] = 200  # most light is in quadrant 1, which is nobody's label
    images[labels == 0, :8, :8] = 100
    images[labels == 2, 8:, :8] = 100
    source = source_of(images, labels)
    [free] = measure([candidate(source)], only=["shift"])
    [among] = measure([candidate(source, among=(0, 2))], only=["shift"])
    assert (free.clean.right, among.clean.right) == (0, 4)


def test_images_are_drawn_by_the_seed_and_have_labels(quadrants):
    labels = np.where(np.arange(20) < 8, -1, quadrants.labels)  # the first are kept secret
    source = source_of(quadrants.examples.images, labels)
    assert choose_images(source, 0, 0).tolist() == list(range(8, 20))
    drawn = choose_images(source, 5, 0)
    assert len(set(drawn)) == 5 and min(drawn) >= 8 and (np.diff(drawn) > 0).all()
    assert drawn.tolist() == choose_images(source, 5, 0).tolist()
    assert any(choose_images(source, 5, seed).tolist() != drawn.tolist() for seed in (1, 2))
    assert len(choose_images(source, 99, 0)) == 12


def test_a_image_that_cannot_be_read_is_left_out(tmp_path):
    for number in range(4):
        folder = tmp_path / f"quadrant {number}"
        folder.mkdir()
        pixels = np.zeros((2, 2), np.uint8)
        pixels[number // 2, number % 2] = 255
        Image.fromarray(np.kron(pixels, np.ones((8, 8), np.uint8))).save(folder / "1.png")
    (tmp_path / "quadrant 2" / "bad.png").write_text("no image")
    source = open_source(f"folder:{tmp_path}", "train", holdout=0)
    bad = DecodeErrors(say=lambda sentence: None)
    [result] = measure([candidate(source)], only=["shift"], bad=bad)
    assert (result.clean.right, result.clean.images) == (4, 4)
    assert [name.endswith("bad.png") for name in bad.found] == [True]


def test_grids_and_amounts_fit_the_size_of_the_images():
    assert [usual_cells((side, side)) for side in (224, 384, 32, 16, 2)] == [14, 14, 8, 4, 1]
    for side in (1, 8, 28, 224):
        suite = make_suite((side, side))
        assert {test.kind for test in suite} == set(KINDS)
        image = np.full((side, side, 3), 90, np.uint8)
        for test in suite:
            for level in test.levels if test.change and test.kind != "corruptions" else ():
                assert test.apply(image, level, 0, 0).shape == image.shape


def result_of(errors, clean, name="run"):
    """Errors of two corruptions at two severities, in 10 images."""
    tests = [Perturbation(test, "corruptions", (1, 2), "severity") for test in errors]
    scores = {
        test: tuple(Score(10 - round(10 * e), 0.0, 10) for e in values)
        for test, values in errors.items()
    }
    return Result(name, (8, 8), tuple(tests), Score(10 - round(10 * clean), 0.0, 10), scores)


def test_corruption_errors_are_those_of_the_paper():
    ours = result_of({"snow": (0.2, 0.4), "fog": (0.1, 0.3)}, clean=0.1)
    base = result_of({"snow": (0.4, 0.8), "fog": (0.2, 0.2)}, clean=0.0)
    found = corruption_errors(ours, base)
    assert found.mean_error == pytest.approx((0.2 + 0.4 + 0.1 + 0.3) / 4)
    assert found.mean_rise == pytest.approx(0.25 - 0.1)
    assert found.mce == pytest.approx((0.6 / 1.2 + 0.4 / 0.4) / 2)
    assert found.relative_mce == pytest.approx((0.4 / 1.2 + 0.2 / 0.4) / 2)
    assert corruption_errors(base, base)[2:] == (1, 1)


def test_a_ratio_to_nothing_is_not_defined():
    ours = result_of({"snow": (0.2, 0.4), "fog": (0.1, 0.3)}, clean=0.1)
    assert corruption_errors(ours)[2:] == (None, None)
    unharmed = result_of({"snow": (0.4, 0.8), "fog": (0.2, 0.2)}, clean=0.2)
    found = corruption_errors(ours, unharmed)
    assert found.mce is not None and found.relative_mce is None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fogg", "no robustness test 'fogg'; did you mean 'fog'.*corruptions, patch_drop"),
        ("pgd_l1", "did you mean 'pgd_l2'"),
    ],
)
def test_a_test_that_is_not_there_is_one_sentence(name, told):
    with pytest.raises(UserError, match=told):
        make_suite((16, 16), [name])


# ----------------------------------------------------------------------------------- the command


def rows_of(folder):
    with (folder / "robustness.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_writes_tables_and_images(finished_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS", 0.0)  # else only long work is told of
    options = ["--only=fog,zoom_blur,shift,occlusion_map,fgsm_linf", f"--output={tmp_path}"]
    assert main(["robustness", str(finished_run.path), *options]) == 0
    shown = capsys.readouterr()
    assert "digits test: 360 images, 10 of the model's 10 classes" in shown.err
    assert "tested: 360 of 360 images" in shown.err
    for words in (
        "fog",
        "16/255",
        "worst position",
        "increase over clean",
        "at most 2.6 points",
    ):  # 50/√360
        assert words in shown.out
    rows = rows_of(tmp_path)
    assert len(rows) == 1 + 2 * 5 + 4 + 49 + 6
    assert float(rows[0]["accuracy"]) == pytest.approx(finished_run.result()["accuracy"])
    assert float(rows[0]["loss"]) == pytest.approx(finished_run.result()["loss"], rel=1e-5)
    told = json.loads((tmp_path / "robustness.json").read_text())
    [run] = told["runs"]
    assert run["clean"]["accuracy"] == pytest.approx(finished_run.result()["accuracy"])
    assert [len(test["accuracy"]) for test in run["tests"]] == [5, 5, 49, 4, 6]
    names = ("corruptions", "curves", "occlusion_map", "examples", "examples_corruptions")
    for name in names:
        assert np.asarray(Image.open(tmp_path / f"{name}.png")).std() > 0


def test_a_run_compared_with_its_copy_is_as_good(finished_run, tmp_path, capsys):
    copy = tmp_path / "copy"
    shutil.copytree(finished_run.path, copy)
    options = ["--only=fog,contrast", "--images=40", f"--output={tmp_path / 'out'}", "--json"]
    assert main(["robustness", str(finished_run.path), f"--compare={copy}", *options]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["run"] for run in runs] == ["tiny", "copy"]
    assert runs[0]["tests"] == runs[1]["tests"] and runs[0]["images"] == 40
    assert runs[1]["corruptions"]["mce"] == 1


@pytest.fixture(scope="module")
def some_digits(data_dir, tmp_path_factory):
    """A folder with images of two digits."""
    folder = tmp_path_factory.mktemp("some")
    source = open_source("digits", "test[:80]", data_dir=data_dir)
    for number in range(80):
        example = source[number]
        name = source.class_names[example["label"]]
        if name in ("3", "7"):
            (folder / name).mkdir(exist_ok=True)
            Image.fromarray(example["image"].squeeze()).save(folder / name / f"{number}.png")
    return folder


def test_data_may_have_some_of_the_classes(finished_run, some_digits, tmp_path, capsys):
    def accuracy(*options):
        arguments = [f"folder:{some_digits}", "--only=clean", f"--output={tmp_path}", *options]
        assert main(["robustness", str(finished_run.path), *arguments]) == 0
        return float(rows_of(tmp_path)[0]["accuracy"]), capsys.readouterr().err

    among_all, said = accuracy()
    assert "2 of the model's 10 classes; predictions are chosen among all 10 (--among=data" in said
    among_two, said = accuracy("--among=data")
    assert "predictions are chosen among these 2" in said
    assert among_two >= among_all and among_two > 0.5


def test_weights_that_were_not_trained_here_need_data_and_nothing_else(
    finished_run, some_digits, tmp_path, capsys
):
    converted = tmp_path / "converted"
    shutil.copytree(finished_run.path, converted)
    (converted / "config.json").unlink()
    for split in ("train", "test"):  # neither is there: the folder is not divided
        options = [f"folder:{some_digits}", f"--split={split}", "--only=clean"]
        assert main(["robustness", str(converted), *options, f"--output={tmp_path / split}"]) == 0
    assert rows_of(tmp_path / "train") == rows_of(tmp_path / "test")
    # As with the run's own configuration at hand, by another way.
    options = [f"--dataset=folder:{some_digits}", "--json"]
    assert main(["evaluate", str(converted), *options]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    [row] = rows_of(tmp_path / "test")
    assert told["accuracy"] == pytest.approx(float(row["accuracy"]))
    assert main(["robustness", str(converted)]) == 2
    assert "has no data; add a dataset after it" in capsys.readouterr().err


def test_shape_and_texture_by_the_command(finished_run, some_digits, tmp_path, capsys):
    cues, categories = tmp_path / "cues", {"three": ["3"], "seven": ["7"]}
    for shape, texture in (("three", "seven"), ("seven", "three"), ("three", "three")):
        image = min((some_digits / categories[shape][0]).iterdir())
        (cues / shape).mkdir(parents=True, exist_ok=True)
        shutil.copy(image, cues / shape / f"{shape}1-{texture}2.png")
    file = tmp_path / "categories.json"
    file.write_text(json.dumps(categories))
    options = [f"--cue-conflict={cues}", f"--categories={file}", f"--output={tmp_path / 'out'}"]
    assert main(["robustness", str(finished_run.path), *options]) == 0
    assert re.search(r"tiny +│ +2 │", capsys.readouterr().out)
    [shapes] = json.loads((tmp_path / "out" / "robustness.json").read_text())["cue_conflict"]
    assert shapes["images"] == 2 and shapes["by_shape"] + shapes["by_texture"] == 2
    assert (tmp_path / "out" / "cue_conflict.png").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--only=fogs"], "no robustness test 'fogs'"),
        (["--among=all"], "--among=all is invalid; use model or data"),
        (["--fill=white"], "fill=white is invalid; use one of black, mean"),
        (["--constants=x"], "constants=x is invalid; use one of imagenet, cifar"),
        (["--grid=17"], "17 x 17 patches does not fit images of 16 x 16 pixels"),
        (["--split=val"], "has no split 'val'"),
        (["--categories=x.json"], "--categories needs --cue-conflict"),
        (["--cue-conflict=nowhere"], "nowhere is not a folder; expected layout"),
        (["digits", "--checkpoint=late"], "--checkpoint=late is invalid"),
    ],
)
def test_a_mistake_is_one_sentence(options, told, finished_run, tmp_path, capsys):
    assert main(["robustness", str(finished_run.path), *options, f"--output={tmp_path}"]) == 2
    said = capsys.readouterr().err
    assert told in said and "Traceback" not in said


@pytest.mark.parametrize("ending", ["", "/", "/../tiny"])
def test_a_run_named_twice_is_one_sentence(ending, finished_run, capsys):
    path = str(finished_run.path)
    assert main(["robustness", path, f"--compare={path}{ending}"]) == 2
    assert "has the same run twice" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_told_before_the_work(finished_run, tmp_path, capsys):
    file = tmp_path / "file"
    file.touch()
    for options, told in (
        ([f"--output={file}"], f"--output: {file} is a file"),
        ([f"--output={file}/deeper"], f"--output: {file} is a file"),
        ([f"--output={tmp_path}", f"--csv={file}/x.csv"], f"--csv: {file} is a file"),
        ([f"--output={tmp_path}", f"--csv={tmp_path}"], "is a folder; name a file"),
    ):
        assert main(["robustness", str(finished_run.path), "--only=clean", *options]) == 2
        said = capsys.readouterr().err
        assert told in said and "images" not in said
    assert list(tmp_path.iterdir()) == [file]


def test_names_of_tests_may_have_spaces_between_them(finished_run, tmp_path):
    options = ["--only=fog, contrast", "--images=8", f"--output={tmp_path}"]
    assert main(["robustness", str(finished_run.path), *options]) == 0
    assert {row["test"] for row in rows_of(tmp_path)} == {"clean", "fog", "contrast"}


def test_runs_with_different_data_are_not_compared(quadrants):
    other = source_of(quadrants.examples.images[:8], quadrants.labels[:8])
    with pytest.raises(UserError, match="different data: 20 images.* and 8 of.*use one dataset"):
        measure([candidate(quadrants), candidate(other)])


def test_models_that_see_other_sizes_are_compared_too(quadrants):
    entrants = [candidate(quadrants), candidate(quadrants, size=(32, 32), name="larger")]
    small, large = measure(entrants, only=["shift", "rotation"])
    assert (small.size, large.size) == ((16, 16), (32, 32))
    assert jnp.all(small.accuracies("rotation")[[0, 8]] == large.accuracies("rotation")[[0, 8]])
    assert len(large.of_kind("shift")[0].levels) > len(small.of_kind("shift")[0].levels)


class Undecided(Brightest):
    """Gives no finite logits to images whose first quadrant is the brightest."""

    @nn.compact
    def __call__(self, images, train=False):
        light = super().__call__(images, train)
        return jnp.where(light.argmax(-1, keepdims=True) == 0, jnp.nan, light)


@pytest.mark.parametrize("among", [None, (0, 1)])
def test_images_without_finite_logits_are_wrong_and_counted(quadrants, among):
    one = candidate(quadrants, among=among)
    one.classifier.model = Undecided()
    [result] = measure([one], only=["shift"])
    right = 10 if among else 15  # of classes 2 and 3 nothing is right where they are no answers
    assert result.clean[0] == right - 5 * bool(among) and result.clean.nonfinite == 5
    assert any("brightest: logits were not finite" in note for note in notes([result]))
    text = to_json(record([result], {}))
    assert json.loads(text)["runs"][0]["clean"] == {"accuracy": result.clean.accuracy, "loss": None}
