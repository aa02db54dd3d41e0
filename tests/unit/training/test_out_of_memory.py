from types import SimpleNamespace

import jax
import numpy as np
import pytest

from vit_jax.cli import main
from vit_jax.errors import Diverged, UserError
from vit_jax.runs import RunDir
from vit_jax.training import fit
from vit_jax.training.out_of_memory import (
    EVALUATION,
    START,
    TRAINING,
    explain_out_of_memory,
    explained,
    find_out_of_memory,
)
from vit_jax.training.setup.experiment import Experiment

# As XLA words them: while it runs, while it compiles for a GPU and for a TPU, through CUDA.
DEVICE_ERRORS = [
    "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 2147483648 bytes.",
    "RESOURCE_EXHAUSTED: Out of memory allocating 40000000000000 bytes.",
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. "
    "Used 20.5G of 15.48G hbm.",
    "INTERNAL: Failed to load in-memory CUBIN: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
    "INTERNAL: cuBLAS: CUBLAS_STATUS_ALLOC_FAILED",
]


def fake(batch_size=256, devices=4, platform="gpu", remat="none", **changes):
    """What the sentence is made of, of an experiment that nobody has to build."""
    config = {"batch_size": batch_size, "precision": "float32", "evaluate": {"batch_size": 0}}
    mesh = np.array([SimpleNamespace(platform=platform)] * devices)
    return SimpleNamespace(
        config={**config, **changes},
        mesh=SimpleNamespace(size=devices, devices=mesh),
        model=SimpleNamespace(remat=remat),
        record=SimpleNamespace(name="ViT-B/16"),
        preprocessing=SimpleNamespace(size=(224, 192)),
    )


def explain(doing=TRAINING, error=None, **changes):
    error = error or jax.errors.JaxRuntimeError(DEVICE_ERRORS[0])
    return explain_out_of_memory(error, fake(**changes), doing)


def in_order(text, *parts):
    places = [text.index(part) for part in parts]
    return places == sorted(places)


def test_the_sentence_tells_batch_per_device_size_model_and_the_remedies_in_order():
    text = explain()
    assert "of a gpu was not enough, which asked for 2.00 GiB more" in text
    assert "ViT-B/16, images of 224 x 192, 64 of them on each of 4 devices" in text
    assert in_order(
        text,
        "(1) a smaller batch, --config.batch_size=128",
        "(2) the same batch in 2 parts, --config.accumulate_steps=2",
        "(3) recomputed activations, --config.model.remat=full",
        "(4) activations in half the bytes, --config.precision=bfloat16",
        "(5) sharded parameters and optimizer state, --config.mesh.fsdp=4",
        "(6) a smaller model or image_size",
        "(7) if other programs use the GPU, XLA_PYTHON_CLIENT_PREALLOCATE=false",
    )


def test_what_is_done_already_is_not_proposed():
    text = explain(remat="full", precision="bfloat16", mesh={"fsdp": 4}, accumulate_steps=2)
    assert "32 of them on each" in text
    assert "batch_size=128" in text and "accumulate_steps=4" in text  # of 32 at a time, 16
    for done in ("remat", "precision", "fsdp"):
        assert done not in text


def test_looks_inside_the_model_are_the_first_to_go():
    assert "(1) no diagnostics, --config.log.diagnostics=;" in explain(log={"diagnostics": "5%"})
    assert "diagnostics" not in explain(log={"diagnostics": ""})


def test_proposed_numbers_are_legal():
    text = explain(batch_size=60, devices=4)  # 15 on each: 7 of them, or three parts of 5
    assert "--config.batch_size=28" in text and "--config.accumulate_steps=3" in text
    one_each = explain(batch_size=4, devices=4)
    assert "batch_size" not in one_each and "accumulate_steps" not in one_each


def test_one_device_is_told_that_more_would_help():
    assert "on N devices, --config.mesh.fsdp=N" in explain(devices=1)


def test_an_evaluation_has_a_batch_of_its_own():
    text = explain(EVALUATION, evaluate={"batch_size": 1024})
    assert "while evaluating" in text and "256 of them on each" in text
    assert "--config.evaluate.batch_size=512" in text and "accumulate_steps" not in text


def test_a_start_is_not_about_the_batch():
    text = explain(START)
    assert "--config.batch_size" not in text and "accumulate_steps" not in text and "fsdp=4" in text


def test_host_memory_is_told_from_device_memory():
    text = explain(error=MemoryError("Unable to allocate 7.00 GiB for an array"))
    assert "the memory of this machine" in text and "data.workers" in text
    assert "PREALLOCATE" not in text


@pytest.mark.parametrize("message", DEVICE_ERRORS)
def test_every_wording_is_understood_also_behind_another_error(message):
    error = jax.errors.JaxRuntimeError(message)
    assert find_out_of_memory(error) is error
    try:
        try:
            raise error
        except RuntimeError as cause:
            raise ValueError("while doing something") from cause
    except ValueError as outer:
        assert find_out_of_memory(outer) is error


@pytest.mark.parametrize(
    "error",
    [
        jax.errors.JaxRuntimeError("INTERNAL: the device was lost"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Shared memory size limit exceeded"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem"),
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Too many open files"),
        ValueError("out of memory lane"),
    ],
)
def test_other_faults_keep_their_traceback(error):
    with pytest.raises(type(error)) as caught, explained(fake(), TRAINING):
        raise error
    assert caught.value is error


@pytest.mark.parametrize("error", [UserError("a mistake"), Diverged("lost")])
def test_sentences_pass_through(error):
    with pytest.raises(type(error), match=str(error)), explained(fake(), TRAINING):
        raise error


def test_a_real_error_of_xla_is_understood():
    with pytest.raises(UserError, match="asked for .* GiB more"), explained(fake(), TRAINING):
        jax.numpy.zeros((10**5, 10**5, 10**3)).block_until_ready()


def fail_at(monkeypatch, step):
    """Makes the training step run out of memory as it is called for the `step`th time."""
    made = Experiment.train_step

    def train_step(self):
        taken, real = 0, made(self)

        def failing(*arguments):
            nonlocal taken
            taken += 1
            if taken == step:
                raise jax.errors.JaxRuntimeError(DEVICE_ERRORS[0])
            return real(*arguments)

        return failing

    monkeypatch.setattr(Experiment, "train_step", train_step)


@pytest.mark.slow
def test_a_run_that_runs_out_of_memory_ends_with_the_sentence_and_goes_on_later(
    overrides, tmp_path, monkeypatch, capsys
):
    command = ["train", "--config=configs/digits.py", f"--workdir={tmp_path / 'run'}"]
    command += [f"--config.{key}={value}" for key, value in overrides()]
    with monkeypatch.context() as broken:
        fail_at(broken, step=5)
        assert main(command) == 2
    said = capsys.readouterr().err
    assert "error: out of memory while training: the memory of this machine was not enough" in said
    assert "Digits-ViT-64/4, images of 16 x 16, 32 of them on each of 1 device" in said
    assert "--config.batch_size=16" in said and "XLA_PYTHON_CLIENT_PREALLOCATE" in said
    assert "Traceback" not in said
    assert RunDir(tmp_path / "run").steps() == [3]  # and it is whole:
    assert main(command) == 0
    assert RunDir(tmp_path / "run").steps() == [3, 6]


def test_an_evaluation_that_runs_out_of_memory_says_so(tiny_config, tmp_path, monkeypatch):
    def eval_step(self, evaluator):
        def failing(*_):
            raise MemoryError

        return failing

    monkeypatch.setattr(Experiment, "eval_step", eval_step)
    with pytest.raises(UserError, match=r"while evaluating.*evaluate\.batch_size=16"):
        fit(tiny_config(), tmp_path / "run")
