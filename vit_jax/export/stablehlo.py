"""Export as StableHLO: the program of a predictor for CPUs, GPUs and TPUs in one file.

    program = jax.export.deserialize(bytearray(Path("OUT/model.stablehlo").read_bytes()))
    program.call(images)            # uint8 (batch, h, w, c) -> {"probabilities": ...}
    program.call(weights, images)   # where weights.safetensors is beside it

- Images are normalised in the program, and their number is any.
- Weights are inside up to 100 MB, else beside it, by their paths in the tree of variables.
- Attention is what every device computes (`portable`), not the fused kernel of one of them.
- JAX reads files of its own earlier versions: StableHLO keeps programs of the last five years.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array

from vit_jax.errors import writing
from vit_jax.export.obstacles import export_error
from vit_jax.inference.predictor import BATCH, Outputs, Predictor
from vit_jax.models.attention.implementations import portable
from vit_jax.runs.checkpoint_files import leaves
from vit_jax.weights.io.safetensors_file import write_safetensors

PROGRAM = "model.stablehlo"
WEIGHTS = "weights.safetensors"
PLATFORMS = ("cpu", "cuda", "tpu")
LARGEST_INSIDE = 100 * 10**6  # bytes of weights in the program

Weights = dict[str, np.ndarray]
"""Weights by their paths in the tree of variables."""


def write_stablehlo(folder: Path, predictor: Predictor) -> dict[str, Any]:
    """Write the program of a predictor, and its weights where they are beside it.

    Returns:
        Facts for the description: `platforms`, `weights` (the name of their file, or None).

    Raises:
        UserError: the model has an operation that StableHLO cannot take; with its layer.
    """
    [batch] = export.symbolic_shape(BATCH)
    images = predictor.inputs["images"].of_batch(batch)
    function, weights = traced(predictor, images)
    beside = sum(leaf.nbytes for leaf in weights.values()) > LARGEST_INSIDE
    exported = exported_program(function, weights, images, inside=not beside)
    with writing(folder / PROGRAM):
        (folder / PROGRAM).write_bytes(exported.serialize())
    if beside:
        write_safetensors(folder / WEIGHTS, weights, {})
    return {"platforms": list(PLATFORMS), "weights": WEIGHTS if beside else None}


def traced(
    predictor: Predictor, images: jax.ShapeDtypeStruct
) -> tuple[Callable[[Weights, Array], Outputs], Weights]:
    """Return the function of a predictor of weights by path and images, and the weights it uses.

    What it does not use, such as a text tower, is not among them.

    Args:
        images: their shape, the only one that the function takes.
    """
    weights = leaves(jax.device_get(predictor.variables))
    structure = jax.tree.structure(predictor.variables)

    def plain(values, images):
        return predictor.function(jax.tree.unflatten(structure, values), images)

    with portable():
        make = jax.make_jaxpr(plain, return_shape=True)
        program, outputs = make(list(weights.values()), images)
    used = {id(x) for equation in program.jaxpr.eqns for x in equation.invars}
    used |= {id(x) for x in program.jaxpr.outvars}
    places = zip(weights, program.jaxpr.invars, strict=False)  # images are the last input
    kept = [path for path, variable in places if id(variable) in used]
    run, structure_of_outputs = jaxpr_as_fun(program), jax.tree.structure(outputs)

    paths = list(weights)

    def function(weights: Weights, images: Array) -> Outputs:
        found = run(*(weights.get(path, 0) for path in paths), images)
        return jax.tree.unflatten(structure_of_outputs, found)

    return function, {path: weights[path] for path in kept}


def exported_program(
    function: Callable[[Weights, Array], Outputs],
    weights: Weights,
    images: jax.ShapeDtypeStruct,
    *,
    inside: bool,
) -> export.Exported:
    """Return a program for all platforms, with its weights inside or as its first argument.

    Raises:
        UserError: StableHLO cannot take an operation; with its layer.
    """

    def alone(images):
        # Behind a barrier XLA does not compute with them in advance, so that bits stay the same.
        return function(jax.lax.optimization_barrier(weights), images)

    shapes = {path: jax.ShapeDtypeStruct(x.shape, x.dtype) for path, x in weights.items()}
    chosen, specs = (alone, [images]) if inside else (function, [shapes, images])
    try:
        return export.export(jax.jit(chosen), platforms=PLATFORMS)(*specs)
    except Exception as error:  # JAX raises various types for what it cannot lower
        raise export_error("StableHLO", error, chosen, specs) from error
