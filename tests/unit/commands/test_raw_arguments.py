"""`--raw`: every command that has it uses the learned parameters and not their average."""

import inspect
import json

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from PIL import Image

from tests.support.two_towers import write_tiny_run
from vit_jax.cli import main
from vit_jax.commands.app import app
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.runs import ModelRecord, RunDir, checkpoint_files

FIELDS = {"num_classes": 2, "image_size": 8, "in_channels": 1, "patch_size": 8}
FIELDS |= {"width": 4, "depth": 1, "heads": 1}

# What each of them needs besides the run; {data} is a folder of images, {image} one of them.
COMMANDS = {
    "attention": ["{image}", "--output={out}.png"],
    "evaluate": ["folder:{data}"],
    "export": ["{out}"],
    "inspect": ["--only=positions", "--output={out}"],
    "predict": ["{image}"],
    "prune": ["{out}", "--mlp=0.5", "--by=magnitude"],
    "quantize": ["{out}"],
    "serve": ["--port=0"],
    "probe": ["--dataset=folder:{data}", "--neighbours=1", "--output={out}.png"],
    "robustness": ["folder:{data}", "--only=contrast", "--output={out}"],
    "embed": ["{image}", "--output={out}.npy"],
    "search": ["{data}", "an ant", "--output="],
    "zero-shot": ["{image}", "--classes=ant,bee"],
}
OF_TEXTS = {"search", "zero-shot"}  # need a run that has learned captions
OF_SUPERNETS = {"autoformer-search", "autoformer-extract"}  # tests/unit/compress/search tries them


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A model that answers the same to all: raw "ant" with 0.75, averaged "bee" with 0.9."""
    folder = RunDir(tmp_path_factory.mktemp("runs") / "run")
    folder.path.mkdir()
    record = ModelRecord("ViT", FIELDS, Preprocessing((8, 8), 1), ("ant", "bee"))
    folder.write_model(record)
    images = np.zeros((1, 8, 8, 1), np.float32)
    params = record.create_model().init(jax.random.key(0), images)["params"]

    def answering(*probabilities):
        kernel = np.zeros_like(params["head"]["kernel"])
        return {**params, "head": {"kernel": kernel, "bias": np.log(np.float32(probabilities))}}

    state = {"params": answering(0.75, 0.25), "ema_params": answering(0.1, 0.9)}
    with ocp.CheckpointManager(folder.checkpoints.resolve()) as manager:
        manager.save(1, args=checkpoint_files.save_args(state, {"data": {}, "versions": {}}))
    return folder


@pytest.fixture(scope="module")
def of_texts(tmp_path_factory):
    return write_tiny_run(tmp_path_factory.mktemp("runs") / "clip")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Images of one ant and one bee to train on, and of three ants and one bee to test on."""
    folder = tmp_path_factory.mktemp("insects")
    names = ["train/ant", "train/bee", "test/ant", "test/ant", "test/ant", "test/bee"]
    for number, name in enumerate(names):
        (folder / name).mkdir(parents=True, exist_ok=True)
        pixels = np.full((8, 8), 40 * number, np.uint8)
        Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def test_predict_answers_with_the_parameters_asked_for(run, data, capsys):
    for options, label, probability in (([], "bee", 0.9), (["--raw"], "ant", 0.75)):
        image = str(data / "test/ant/2.png")
        assert main(["predict", str(run.path), image, "--json", *options]) == 0
        first, _ = json.loads(capsys.readouterr().out)["classes"]
        assert first["label"] == label and first["probability"] == pytest.approx(probability)


def test_evaluate_measures_the_parameters_asked_for(run, data, capsys):
    for options, accuracy in (([], 0.25), (["--raw"], 0.75)):
        arguments = ["evaluate", str(run.path), f"folder:{data}", "--json", *options]
        assert main(arguments) == 0
        assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(accuracy)


def test_every_command_with_this_option_is_tried_here():
    with_raw = {
        command.name or command.callback.__name__
        for command in app.registered_commands
        if "raw" in inspect.signature(command.callback).parameters
    }
    assert with_raw == set(COMMANDS) | OF_SUPERNETS


@pytest.mark.parametrize("options", [[], ["--raw"]])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reads_the_parameters_asked_for(
    run, of_texts, data, tmp_path, monkeypatch, command, options
):
    asked = []
    run = of_texts if command in OF_TEXTS else run

    def read_variables(self, which="last", *, raw=False, in_float=False, record=None):
        asked.append(raw)
        raise UserError("that is all this test wants to know")

    monkeypatch.setattr(RunDir, "read_variables", read_variables)
    names = {"data": data, "image": data / "test/ant/2.png", "out": tmp_path / "out"}
    arguments = [argument.format(**names) for argument in COMMANDS[command]]
    assert main([command, str(run.path), *arguments, *options]) == 2
    assert asked == [bool(options)]
