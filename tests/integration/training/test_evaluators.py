"""Named evaluators of a run: during training, at its end, and of what is trained already."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

from tests.conftest import ROOT, TINY
from vit_jax.analysis.report.run_report import draw_all
from vit_jax.cli import main
from vit_jax.config import differences, load_config
from vit_jax.data import open_source
from vit_jax.errors import UserError
from vit_jax.evaluation.registry import EVALUATORS
from vit_jax.runs import EVALUATE, EVALUATOR, RESULT, RunDir
from vit_jax.training import fit
from vit_jax.training.setup.build import build

PLUGIN = "tests.support.example_evaluators"
NO_LABELS = {"task": "autoencoder", "data.labels": "false"}
NO_LABELS |= {"plugins": f"tests.support.example_tasks,{PLUGIN}"}


@pytest.fixture(scope="module")
def run(data_dir, tmp_path_factory):
    """A run without labels: its encoder is judged by k-NN, and its images by a plugin."""
    changes = {**TINY, **NO_LABELS, "data.dir": data_dir, "evaluators": "knn,contrast"}
    changes |= {"data.train": "train[:80%]", "data.validation": "train[80%:]"}
    changes |= {"evaluate.probe_every": "2 steps", "evaluate.every": "6 steps"}
    config = load_config(str(ROOT / "configs" / "digits.py"), list(changes.items()))
    return fit(config, tmp_path_factory.mktemp("probed") / "run", draw=draw_all).run


def printed(capsys, *arguments):
    assert main(["evaluate", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_they_have_lines_of_their_own_and_are_in_the_result(run):
    lines = run.read_metrics()
    named = [line for line in lines if line["kind"] == EVALUATOR]
    assert [(line["step"], line["evaluator"]) for line in named] == [
        (step, name) for step in (2, 4, 6) for name in ("reconstruction", "knn", "contrast")
    ]
    assert all(line["split"] == "validation" for line in named)
    assert [line["step"] for line in lines if line["kind"] == EVALUATE] == [6]
    # 1,437 training images, of which 80 % are trained on.
    knn = [line for line in named if line["evaluator"] == "knn"]
    assert {(line["examples"], line["training_examples"]) for line in knn} == {(287, 1150)}
    result = lines[-1]
    assert result["kind"] == RESULT and 0.3 < result["knn_accuracy"] < 1
    assert result["loss"] > 0 and result["examples"] == 360
    assert "test knn accuracy" in run.report_file.read_text()


def test_the_metric_of_a_plugin_is_that_of_the_images(run, data_dir):
    source = open_source("digits", "test", data_dir=data_dir)
    preprocessing = run.read_model().preprocessing
    images = np.stack([preprocessing(source[i]["image"]) for i in range(len(source))])
    deviations = np.asarray(preprocessing.normalize(images)).std((1, 2, 3))
    result = run.result()
    assert result["contrast"] == pytest.approx(deviations.mean(), rel=1e-5)
    assert result["largest"] == pytest.approx(deviations.max(), rel=1e-5)


def test_another_process_finds_the_evaluator_by_the_record_of_the_run(run, capsys):
    assert PLUGIN in run.read_model().plugins
    sys.modules.pop(PLUGIN)
    EVALUATORS.pop("contrast")
    line = printed(capsys, run.path, "--evaluator=contrast")
    assert line["evaluator"] == "contrast"
    assert line["largest"] == run.result()["largest"]


def test_the_command_gives_the_metrics_of_the_result_and_of_other_data(run, capsys):
    line = printed(capsys, run.path, "--evaluator=knn")
    assert (line["step"], line["split"]) == (6, "test")
    assert line["knn_accuracy"] == run.result()["knn_accuracy"]
    # Of the 1,437 and 360 images of the whole data set, without the experiment of the run.
    line = printed(capsys, run.path, "--evaluator=knn", "--dataset=digits")
    assert (line["training_examples"], line["examples"]) == (1437, 360)
    assert 0.3 < line["knn_accuracy"] < 1
    assert main(["evaluate", str(run.path), "--evaluator=knn", "--split=validation"]) == 0
    assert "validation" in capsys.readouterr().out


def test_weights_that_were_not_trained_here_are_probed_on_any_data(run, tmp_path, capsys):
    """Black and white images are told apart by the features of any model."""
    weights = RunDir(tmp_path / "weights")
    variables, _ = run.read_variables()
    record = run.read_model()
    weights.write_variables(variables, record)
    weights.write_model(record)
    for name, value in (("black", 0), ("white", 250)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(20):
            image = Image.fromarray(np.full((16, 16), value + number % 5, np.uint8))
            image.save(tmp_path / "data" / name / f"{number}.png")
    line = printed(capsys, weights.path, "--evaluator=knn", f"--dataset=folder:{tmp_path}/data")
    assert line["knn_accuracy"] == 1 and (line["training_examples"], line["examples"]) == (32, 8)
    for arguments, sentence in (
        (["--evaluator=knn"], "was not trained here, so it has no data"),
        (["--evaluator=contrast", "--dataset=digits"], "needs the task of a run that was trained"),
    ):
        assert main(["evaluate", str(weights.path), *arguments]) == 2
        assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"evaluators": "knn,liner_probe"}, r"'liner_probe' is unknown; did you mean 'linear_pro"),
        ({"evaluate.probe_every": "soon"}, r"evaluate\.probe_every = 'soon' is invalid"),
        ({"evaluate.probe_data": "digts"}, r"evaluators = 'knn': there is no dataset 'digts'"),
        ({"data.train": "train[:5]"}, r"10 neighbours are more than the 5 .*evaluate\.probe_data="),
    ],
)
def test_mistakes_are_one_sentence_before_compiling(tiny_config, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        build(tiny_config({"evaluators": "knn", **changes}))


def test_images_without_labels_are_one_sentence_and_labels_of_others_will_do(tiny_config, tmp_path):
    for number in range(20):
        Image.fromarray(np.full((8, 8), 10 * number, np.uint8)).save(tmp_path / f"{number}.png")
    changes = {**NO_LABELS, "dataset": f"folder:{tmp_path}", "evaluators": "knn"}
    with pytest.raises(UserError, match=r"evaluators = 'knn': .*probe_data=DATASET") as caught:
        build(tiny_config(changes))
    assert "labels" in str(caught.value)
    experiment = build(tiny_config({**changes, "evaluate.probe_data": "digits"}))
    sources = experiment.judging.sources_of(experiment.evaluators[-1])
    assert (sources["train"].name, sources["test"].has_labels) == ("digits", True)
    assert experiment.train_source.name == f"folder:{tmp_path}"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--evaluator=kn"], "--evaluator = 'kn' is unknown; did you mean 'knn'?"),
        (["--evaluator=knn", "--split=val"], "has no split 'val'"),
        (["--evaluator=knn", "--per-class"], "--per-class needs the evaluator of the task"),
        (["--evaluator=knn", "--tta=flip"], "--tta needs the evaluator of the task"),
        (["--evaluator=knn", "--plugins=no_such"], "--plugins names the module 'no_such'"),
    ],
)
def test_mistakes_of_the_command_are_one_sentence(run, arguments, sentence, capsys):
    assert main(["evaluate", str(run.path), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_resumed_run_may_have_other_evaluators(run):
    config = load_config(str(ROOT / "configs" / "digits.py"))
    before = config.to_dict()
    config.evaluators, config.evaluate.probe_data = "few_shot", "folder:other"
    config.evaluate.probe_every = "1 epoch"
    assert differences(before, config.to_dict()) == []
