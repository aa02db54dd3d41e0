"""Export as StableHLO: the program of a predictor for CPUs, GPUs and TPUs in one file.

    program = jax.export.deserialize(bytearray(Path("OUT/model.stablehlo").read_bytes()))
    program.call(images)            # uint8 (batch, h, w, c) -> {"probabilities": ...}
    program.call(weights, images)   # where weights.safetensors is beside it

- Images are normalised in the program, and their number is any.
- Weights are inside up to 100 MB, else beside it, by their paths in the tree of variables.
- Attention is what every device computes (`portable`), not the fused kernel of one of them.
- JAX reads files of its own earlier versions: StableHLO keeps programs of the last five years.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

from vit_jax.errors import UserError, writing
from vit_jax.export.obstacles import export_error
from vit_jax.inference.predictor import BATCH, Predictor
from vit_jax.models.attention.implementations import portable
from vit_jax.runs.checkpoint_files import leaves
from vit_jax.weights.io.safetensors_file import write_safetensors

PROGRAM = "model.stablehlo"
WEIGHTS = "weights.safetensors"
PLATFORMS = ("cpu", "cuda", "tpu")
LARGEST_INSIDE = 100 * 10**6  # bytes of weights in the program


def write_stablehlo(folder: Path, predictor: Predictor) -> dict[str, Any]:
    """Write the program of a predictor, and its weights where they are beside it.

    Returns:
        Facts for the description: `platforms`, `weights` (the name of their file, or None).

    Raises:
        UserError: the model has an operation that StableHLO cannot take; with its layer.
    """
    weights = leaves(jax.device_get(predictor.variables))
    beside = sum(leaf.nbytes for leaf in weights.values()) > LARGEST_INSIDE
    exported = trace(predictor, weights if beside else None)
    with writing(folder / PROGRAM):
        (folder / PROGRAM).write_bytes(exported.serialize())
    if beside:
        write_safetensors(folder / WEIGHTS, weights, {})
    return {"platforms": list(PLATFORMS), "weights": WEIGHTS if beside else None}


def trace(predictor: Predictor, weights: dict[str, np.ndarray] | None) -> export.Exported:
    """Return the program of a predictor; with `weights` it takes them by path, else has its own."""
    [batch] = export.symbolic_shape(BATCH)
    images = predictor.inputs["images"].of_batch(batch)
    paths, structure = list(leaves(predictor.variables)), jax.tree.structure(predictor.variables)

    def with_weights(weights, images):
        # Not by splitting paths: kernels of a quantized run are no dictionaries.
        variables = jax.tree.unflatten(structure, [weights[path] for path in paths])
        return predictor.function(variables, images)

    def alone(images):
        # Behind a barrier XLA does not compute with them in advance, so that bits stay the same.
        return predictor.function(jax.lax.optimization_barrier(predictor.variables), images)

    function, specs = alone, (images,)
    if weights is not None:
        shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in weights.items()}
        function, specs = with_weights, (shapes, images)
    try:
        with portable():
            return export.export(jax.jit(function), platforms=PLATFORMS)(*specs)
    except UserError:
        raise
    except Exception as error:  # JAX raises various types for what it cannot lower
        raise export_error("StableHLO", error, function, specs) from error
