"""Every task keeps what a run promises: it resumes to the same bits, skips, shards, reports."""

import signal

import jax
import numpy as np
import pytest

import vit_jax
from tests.support.comparing import assert_same_run
from tests.support.example_tasks import NAMES, Decoded
from tests.support.processes import on_eight_devices
from vit_jax.analysis.report.run_report import draw_all
from vit_jax.cli import main
from vit_jax.errors import UserError
from vit_jax.evaluation.registry import make_evaluator
from vit_jax.inference import Classifier, Encoder, load_model
from vit_jax.inference.dense.depth import DepthEstimator
from vit_jax.inference.dense.segmenter import Segmenter
from vit_jax.inference.dense.universal import Universal
from vit_jax.inference.detector import Detector
from vit_jax.inference.two_towers import TwoTowers
from vit_jax.runs import EVALUATE, EVALUATOR, RESULT, RunDir
from vit_jax.tasks import list_tasks
from vit_jax.training import fit, reuse
from vit_jax.training.callbacks import Observation
from vit_jax.training.setup.build import build
from vit_jax.training.setup.pretrained_init import load_pretrained_init

PLUGIN = {"plugins": "tests.support.example_tasks"}
STEPS = 6
TASKS = [
    "classification",
    "contrastive",
    "depth",
    "detection",
    "masked_autoencoding",
    "multitask",
    "segmentation",
    "self_distillation",
    "simmim",
    "supernet",
    *NAMES,
]
# Fields with which a task is as small as the model.
SMALL = {
    "contrastive": {
        "dataset": "captions:digits",
        "objective.embed_width": "4",
        "objective.text_width": "8",
        "objective.text_depth": "1",
        "objective.text_heads": "2",
    },
    "depth": {
        "dataset": "scenes:digits:40",
        "data.test": "test[:40]",
        "data.labels": "False",
        "model.name": "DPT",
        "model.image_size": "16",
        "model.in_channels": "1",
        "model.blocks": "(0, 0, 0, 0)",
        "model.widths": "(4, 4, 4, 4)",
        "model.fusion_width": "4",
        "model.head_width": "4",
        "model.max_depth": "15.0",
        "model.backbone_name": "ViT",
    },
    "detection": {
        "dataset": "scenes:digits:40",
        "data.test": "test[:40]",
        "data.labels": "False",
        "model.name": "YOLOS",
        "model.image_size": "16",
        "model.in_channels": "1",
        "model.queries": "6",
        "model.backbone_name": "ViT",
    },
    "masked_autoencoding": {
        "objective.decoder_width": "8",
        "objective.decoder_depth": "1",
        "objective.decoder_heads": "2",
    },
    "multitask": {
        "dataset": "scenes:digits:40",
        "data.test": "test[:40]",
        "data.labels": "False",
        "model.name": "UniversalViT",
        "model.image_size": "16",
        "model.in_channels": "1",
        "model.backbone_name": "ViT",
        "model.task_heads": "{'segmentation': {'model': 'Segmentation', 'num_classes': 11}}",
        "objective.learned_weights": "True",
    },
    "segmentation": {
        "dataset": "scenes:digits:40",
        "data.test": "test[:40]",
        "data.labels": "False",
        "model.name": "Segmentation",
        "model.image_size": "16",
        "model.in_channels": "1",
        "model.decoder": "mask",
        "model.decoder_width": "4",
        "model.decoder_depth": "1",
        "model.backbone_name": "ViT",
    },
    "self_distillation": {
        "objective.head_width": "8",
        "objective.bottleneck": "4",
        "objective.prototypes": "8",
        "objective.local_crops": "2",
        **dict.fromkeys(("augment.rotate", "augment.shift", "augment.scale"), "0"),
    },
    "simmim": {"objective.mask_unit": "8"},
    "supernet": {
        "objective.widths": "(4, 8)",
        "objective.heads": "(1, 2)",
        "objective.mlp_ratios": "(1.0, 2.0)",
    },
}
CLASSIFIERS = ("classification", "supernet")

# The path of the encoder's parameters among all variables, where there are other modules.
ENCODERS = dict.fromkeys(("masked_autoencoding", "simmim", "autoencoder"), ("params", "encoder"))
ENCODERS["contrastive"] = ("params", "image")
ENCODERS["multitask"] = ("params", "model")
ENCODERS["self_distillation"] = ("teacher", "encoder")


def changes_of(task, **others):
    """The changes to the digits' run that make a tiny one of a task, with all that a run can have.

    others: of all tasks.
    """
    from tests.conftest import TINY as tiny

    data = {"data.train": "train[:80%]", "data.validation": "train[80%:]"}
    of_task = {"task": task, **SMALL.get(task, {})}
    if "model.backbone_name" in of_task:  # the fields of the tiny ViT are those of the backbone
        begin = "model.backbone_fields."
        tiny = {key.replace("model.", begin): value for key, value in tiny.items()}
    more = {"ema_decay": "0.5", "log.diagnostics": "1 steps", **data, **others}
    return {**tiny, **PLUGIN, **of_task, **more}


def ending(step_of_signal):
    """An observer that sends the process a signal before a step."""

    def watch(experiment):
        def look(step, state, batch):
            if step == step_of_signal:
                signal.raise_signal(signal.SIGTERM)
            return Observation({}, {})

        return look

    return watch


@pytest.fixture(scope="module", params=TASKS)
def task(request):
    return request.param


@pytest.fixture(scope="module")
def finished(task, data_dir, kept_programs, tmp_path_factory):
    """A finished run of a task, with its figures."""
    from tests.conftest import ROOT
    from vit_jax.config import load_config

    changes = changes_of(task, **{"data.dir": data_dir})
    config = load_config(str(ROOT / "configs" / "digits.py"), changes)
    workdir = tmp_path_factory.mktemp(task) / "run"
    with pytest.MonkeyPatch.context() as patched:
        # The code of the example tasks stays what it is while tests run.
        patched.setattr(reuse, "INSIDE", (*reuse.INSIDE, "tests.support.example_tasks"))
        fit(config, workdir, draw=draw_all, watch=ending(None))
        yield config, RunDir(workdir)


@pytest.fixture(scope="module")
def experiment(finished):
    """The experiment of the finished run, built anew."""
    return build(finished[0])


def test_a_run_that_is_stopped_resumes_to_the_same_bits(finished, tmp_path):
    config, whole = finished
    stopped = fit(config, tmp_path / "run", watch=ending(2))
    assert stopped.step == 3 and stopped.result is None
    fit(config, tmp_path / "run", watch=ending(None))
    assert_same_run(whole.path, tmp_path / "run", STEPS)


def test_the_log_has_the_metrics_and_the_best_step_of_the_task(finished, experiment):
    _, run = finished
    name, direction = experiment.task.monitor
    lines = run.read_metrics()
    judged = {line["step"]: line[name] for line in lines if line["kind"] == EVALUATE}
    best = (min if direction == "min" else max)(judged, key=judged.get)
    assert run.best_step() == best
    result = lines[-1]
    assert result["kind"] == RESULT and np.isfinite(result[name])
    others = [line for line in lines if line["kind"] == EVALUATOR]
    assert {line["evaluator"] for line in others} == {e.name for e in experiment.evaluators[1:]}


def test_a_step_that_is_not_finite_changes_nothing(experiment):
    state = experiment.initial_state()
    nan = jax.tree.map(lambda x: np.full(x.shape, np.nan, x.dtype), state.params)
    broken = state.replace(params=jax.device_put(nan, experiment.shardings.params))
    before = jax.device_get((broken.opt_state, broken.model_state, broken.ema_params))
    batch = next(experiment.train_batches(0))
    after = experiment.train_step()(broken, batch)
    assert int(after.nonfinite_steps.total) == 1
    kept = jax.device_get((after.opt_state, after.model_state, after.ema_params))
    jax.tree.map(np.testing.assert_array_equal, before, kept)


def test_the_report_and_the_command_know_the_task(finished, experiment, capsys):
    config, run = finished
    assert run.report_file.exists() and (run.figures / "curves.png").exists()
    text = run.report_file.read_text()
    assert "Results" in text and ("Confusion" in text) == (config.task in CLASSIFIERS)
    assert main(["evaluate", str(run.path)]) == 0
    name, _ = experiment.task.monitor
    assert name.replace("_", " ") in capsys.readouterr().out


def test_probes_judge_the_features_of_every_task(experiment):
    """Vectors of the model's width, from the images of an evaluation: neither views nor crops."""
    task, probe = experiment.task, make_evaluator("knn", experiment.task)

    def judged(variables, batch):
        return probe.step(variables, task.normalized(batch, experiment.preprocessing))

    batch = next(experiment.eval_batches(experiment.test_source))
    batch = {"label": np.zeros(32, np.int32), **batch}  # of data that have none
    _, rows = jax.eval_shape(judged, experiment.abstract_state().variables(), batch)
    assert (rows["features"].shape, rows["features"].dtype) == ((32, 8), np.float32)


def test_what_is_loaded_and_what_starts_other_runs_is_the_encoder(finished):
    """The averaged parameters, of the teacher where there is one."""
    config, run = finished
    expected = run.read_variables()[0]
    for name in ENCODERS.get(config.task, ("params",)):
        expected = expected[name]
    started = load_pretrained_init(str(run.path)).variables["params"]
    for found in (load_model(run.path).params, started):
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_a_run_is_loaded_as_the_predictor_of_its_task(finished, tmp_path, capsys):
    config, run = finished
    predictor = vit_jax.load(run.path)
    of_task = {"autoencoder": Decoded, "contrastive": TwoTowers}
    of_task |= dict.fromkeys(CLASSIFIERS, Classifier)
    of_task |= {"detection": Detector, "segmentation": Segmenter, "depth": DepthEstimator}
    of_task["multitask"] = Universal
    assert type(predictor) is of_task.get(config.task, Encoder)
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 1), np.uint8)
    results = predictor(images, batch_size=2)
    if config.task in CLASSIFIERS:
        assert [len(result) for result in results] == [10, 10, 10]
        return
    if config.task == "detection":
        assert [len(result) <= 6 for result in results] == [True] * 3
        return
    if config.task == "multitask":
        results = [result["segmentation"] for result in results]
    if config.task in ("segmentation", "multitask"):
        assert [result.classes.shape for result in results] == [(16, 16)] * 3
    else:
        shapes = {"autoencoder": (16, 16, 1), "contrastive": (4,), "depth": (16, 16)}
        assert [result.shape for result in results] == [shapes.get(config.task, (8,))] * 3
    assert main(["predict", str(run.path), str(tmp_path)]) == 2
    said = "use --output=FOLDER" if predictor.files else "is no classifier: it learned"
    assert said in capsys.readouterr().err


def states_on(devices, overrides):
    """Loss and state after an update on one and on eight devices."""
    from tests.conftest import ROOT
    from vit_jax.config import load_config

    found = []
    for count in devices:
        mesh = [("mesh.data", str(count))]
        experiment = build(load_config(str(ROOT / "configs/digits.py"), [*overrides, *mesh]))
        state = experiment.initial_state()
        state = experiment.train_step()(state, next(experiment.train_batches(0)))
        tree = (state.totals["loss"], state.params, state.model_state)
        found.append([np.asarray(x) for x in jax.tree.leaves(jax.device_get(tree))])
    return found


@pytest.mark.slow
def test_eight_devices_take_the_step_of_one(task, data_dir):
    changes = changes_of(task, **{"data.dir": data_dir})
    one, eight = on_eight_devices(states_on, (1, 8), list(changes.items()))
    for a, b in zip(one, eight, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_accumulation_that_would_change_the_loss_is_refused(tiny_config):
    config = tiny_config({**PLUGIN, "task": "whole_batch", "accumulate_steps": "2"})
    with pytest.raises(UserError, match=r"accumulate_steps = 2 .*depends on the whole batch"):
        build(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "regresion"}, r"task = 'regresion' is unknown; did you mean 'regression'"),
        ({"objective.scal": "2"}, r"objective\.scal: .*no such field; did you mean 'scale'"),
        ({"objective.scale": "big"}, r"objective\.scale = 'big' is invalid; use a float"),
        ({"model.num_classes": "3"}, r"model\.num_classes = 3, but the task 'regression' needs 1"),
    ],
)
def test_a_mistake_is_one_sentence(tiny_config, changes, message):
    with pytest.raises(UserError, match=message):
        build(tiny_config({**PLUGIN, "task": "regression", **changes}))


def test_the_classification_has_no_fields_but_the_keys(tiny_config):
    with pytest.raises(UserError, match=r"no key 'objective\.label_smoting'"):
        tiny_config({"objective.label_smoting": "0.1"})


def test_every_task_of_the_package_is_tested_here():
    assert set(list_tasks()) - set(NAMES) <= set(TASKS)


def test_the_record_names_the_module_of_a_task(finished):
    config, run = finished
    record = run.read_model()
    outside = ("tests.support.example_tasks",) if config.task in NAMES else ()
    assert record.task == config.task and set(outside) <= set(record.plugins)
