"""Contenders of a latency table: a model by JAX, as an exported file, quantized, with fewer tokens.

Each is made of a run folder. A model that has only a name gets one with random numbers, since its
speed does not depend on them.
"""

import dataclasses
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.errors import UserError, nearest
from vit_jax.inference.loading import load
from vit_jax.inference.predictor import Predictor
from vit_jax.models import create_model
from vit_jax.models.dense import gives
from vit_jax.models.description.blocks import block_infos
from vit_jax.models.fields import pair
from vit_jax.models.inputs import abstract_input, abstract_variables, num_frames
from vit_jax.models.quantized import dequantized
from vit_jax.models.summary.cost import macs_of
from vit_jax.process_setup import cores
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.runs.record import unnamed_classes
from vit_jax.tasks.registry import TASK_OF

_ALL_TOKENS = 2  # ToMe leaves about one of so many


@dataclass(frozen=True)
class Contender:
    """Way to compute a model.

    Attributes:
        title: its name, with what was chosen for it.
        prepare: returns, for a number of images, a function that computes them and waits.
        parameters, macs: their number, and multiply-adds of one image.
        stored: bytes of its weights, or of its files.
        memory: returns, for a number of images, the bytes of weights, inputs, outputs and
            temporaries of the compiled program; None if they are not known.
    """

    title: str
    prepare: Callable[[int], Callable[[], None]]
    parameters: int
    macs: int
    stored: int
    memory: Callable[[int], int | None]


def random_run(name: str, folder: Path, image_size: tuple[int, int] | None = None) -> RunDir:
    """Write the run folder of a registered model with random numbers as parameters.

    Args:
        name: of the model. folder: made here.
        image_size: pixels (height, width); None: the model's own.

    Raises:
        UserError: there is no such model, or it does not take that size.
    """
    sized = {} if image_size is None else {"image_size": image_size}
    try:
        model = create_model(name, **sized)
    except ValueError as error:
        raise UserError(str(error)) from error
    kind = gives(model)
    task = "classification" if kind == "classes" else TASK_OF[kind]
    record = ModelRecord(
        name,
        sized,
        Preprocessing((1, 1)).for_images(
            pair(model.image_size), model.in_channels, None, num_frames(model)
        ),
        unnamed_classes(model.num_classes),
        "softmax" if kind == "classes" else "none",
        task=task,
    )
    random = np.random.default_rng(0)
    variables: dict[str, Any] = {}
    for collection, tree in abstract_variables(model, abstract_input(model)).items():
        if collection == "params":
            variables[collection] = jax.tree.map(
                lambda x: 0.02 * random.standard_normal(x.shape, np.float32), tree
            )
        else:  # variances are positive
            variables[collection] = jax.tree.map(lambda x: np.ones(x.shape, x.dtype), tree)
    folder.mkdir()
    run = RunDir(folder)
    run.write_variables(variables, record)
    run.write_model(record)
    return run


def open_contender(way: str, run: RunDir, checkpoint: int | str = "last") -> Contender:
    """Return a contender by name, one of `WAYS`.

    Raises:
        UserError: no such way, the model cannot be computed that way, or a package is missing.
    """
    check_way(way)
    return WAYS[way](way, run, checkpoint)


def check_way(way: str) -> None:
    """Raise UserError for a way that is not one of `WAYS`."""
    if way not in WAYS:
        raise UserError(f"--with={way} is unknown{nearest(way, WAYS)}; use {', '.join(WAYS)}")


# ------------------------------------------------------------------------------------------- by JAX


def of_predictor(title: str, predictor: Predictor) -> Contender:
    """Return a predictor as a contender: its function, compiled."""
    compiled: dict[int, jax.stages.Compiled] = {}

    def program(batch: int) -> jax.stages.Compiled:
        if batch not in compiled:
            images = predictor.inputs["images"].of_batch(batch)
            lowered = jax.jit(predictor.function).lower(predictor.variables, images)
            compiled[batch] = lowered.compile()
        return compiled[batch]

    def prepare(batch: int) -> Callable[[], None]:
        run, images = program(batch), random_images(predictor, batch)
        return lambda: jax.block_until_ready(run(predictor.variables, images))

    def memory(batch: int) -> int | None:
        found = program(batch).memory_analysis()
        if found is None:  # a device that does not say
            return None
        names = ("argument_size", "output_size", "temp_size")
        return sum(getattr(found, f"{name}_in_bytes") for name in names)

    in_float = jax.eval_shape(dequantized, predictor.variables)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(in_float.get("params", {})))
    macs = macs_of(predictor.function, in_float, predictor.inputs["images"].of_batch(1))
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves(predictor.variables))
    return Contender(title, prepare, parameters, macs, stored, memory)


def random_images(predictor: Predictor, batch: int) -> np.ndarray:
    """Return preprocessed images of random pixels."""
    shape = predictor.inputs["images"].of_batch(batch).shape
    return np.random.RandomState(0).randint(0, 256, shape).astype(np.uint8)


def _jit(way: str, run: RunDir, checkpoint: int | str, **fields: Any) -> Contender:
    return of_predictor(way, load(run.path, checkpoint, **fields))


def _tome(way: str, run: RunDir, checkpoint: int | str) -> Contender:
    """Return the model with about half of its tokens merged at the end."""
    model = run.read_model().create_model()
    blocks = [one for one in block_infos(model, pair(model.image_size)) if one.kind == "attention"]
    if not blocks:
        raise UserError(f"--with=tome merges tokens of a ViT; {type(model).__name__} has none")
    patches = int(np.prod(blocks[0].grid))
    merged = max(1, round((1 - 1 / _ALL_TOKENS) * patches / len(blocks)))
    predictor = load(run.path, checkpoint, tome_r=merged)
    return of_predictor(f"tome_r={merged}", predictor)


def _quantized(way: str, run: RunDir, checkpoint: int | str, **how: Any) -> Contender:
    from vit_jax.compress.quantize import quantize

    with tempfile.TemporaryDirectory() as folder:
        quantize(run.path, folder, checkpoint=run.find_step(checkpoint), **how)
        return of_predictor(way, load(folder))


# -------------------------------------------------------------------------------- by exported files


def _exported(way: str, run: RunDir, checkpoint: int | str, to: str, **how: Any) -> Contender:
    from vit_jax.export.targets import export_run

    step = run.find_step(checkpoint)
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "exported"
        export_run(run.path, folder, to, checkpoint=step, **how)
        files = [path for path in folder.iterdir() if path.suffix != ".json"]
        stored = sum(path.stat().st_size for path in files)
        predictor = load(run.path, step)
        plain = of_predictor(way, predictor)
        if to == "stablehlo":
            from vit_jax.export.exported import load_exported

            opened = of_predictor(way, load_exported(folder))
            inside = 0 if opened.stored else stored  # weights that are part of the program

            def memory(batch: int) -> int | None:
                found = opened.memory(batch)
                return None if found is None else found + inside

            changes = {"prepare": opened.prepare, "memory": memory}
            return dataclasses.replace(plain, stored=stored, **changes)
        run_file = (_onnxruntime if to == "onnx" else _openvino)(folder)

    def prepare(batch: int) -> Callable[[], None]:
        images = random_images(predictor, batch)
        return lambda: run_file(images)

    return dataclasses.replace(plain, prepare=prepare, stored=stored, memory=lambda batch: None)


def _onnxruntime(folder: Path) -> Callable[[np.ndarray], Any]:
    import onnxruntime

    from vit_jax.export.onnx import GRAPH

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = cores()
    session = onnxruntime.InferenceSession(
        str(folder / GRAPH), options, providers=["CPUExecutionProvider"]
    )
    [name] = [one.name for one in session.get_inputs()]
    return lambda images: session.run(None, {name: images})


def _openvino(folder: Path) -> Callable[[np.ndarray], Any]:
    import openvino

    from vit_jax.export.openvino import MODEL, PRECISION

    settings = {**PRECISION, "INFERENCE_NUM_THREADS": cores()}
    compiled = openvino.Core().compile_model(folder / MODEL, "CPU", settings)
    return lambda images: compiled([images])


WAYS: dict[str, Callable[[str, RunDir, int | str], Contender]] = {
    "jit": _jit,
    "bfloat16": partial(_jit, dtype="bfloat16"),
    "stablehlo": partial(_exported, to="stablehlo"),
    "onnxruntime": partial(_exported, to="onnx"),
    "onnxruntime-int8": partial(_exported, to="onnx", int8=True),
    "openvino": partial(_exported, to="openvino"),
    "int8": _quantized,
    "int8xint8": partial(_quantized, activations="int8"),
    "int4": partial(_quantized, bits=4),
    "tome": _tome,
}
