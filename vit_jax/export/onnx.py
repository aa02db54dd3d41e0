"""Export as ONNX, the format of graphs that onnxruntime, OpenVINO, TensorRT and others run.

The function of a predictor, from `uint8` images to its outputs by name, is traced by jax2onnx,
simplified by onnxslim, and compared with the predictor on real images by onnxruntime.

- The number of images is any. `metadata_props` has the facts of `exported.json` as values of JSON:
  class names, preprocessing, inputs and outputs.
- Computation is float32 whatever the type of the model, for processors have no other everywhere.
- int8: matrices become whole numbers of 8 bits with a scale for every output channel, and so do the
  tokens that they multiply, with a scale for each product (`quantize_dynamic` of onnxruntime).
"""

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax import export
from jax.extend.core import jaxpr_as_fun
from jaxtyping import UInt8

from vit_jax.errors import UserError, writing
from vit_jax.export import onnx_graph
from vit_jax.export.obstacles import export_error
from vit_jax.inference.predictor import BATCH, Predictor
from vit_jax.models.attention.implementations import portable

if TYPE_CHECKING:
    import onnx

GRAPH = "model.onnx"
TOLERANCE = 1e-5  # of the largest value of an output, or of 1 where that is larger
LARGEST = 2 * 10**9  # bytes of weights in one file, whose format counts with 31 bits
_PACKAGES = ("jax2onnx", "onnx", "onnxruntime", "onnxslim")


def need_packages(*others: str) -> None:
    """Raise UserError if a package of this target is missing.

    others: besides those of ONNX.
    """
    import importlib.util

    missing = [name for name in (*_PACKAGES, *others) if importlib.util.find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"{', '.join(missing)} {verb} not installed; run `make onnx`, or pip install --no-deps "
            "jax2onnx onnx onnx-ir onnxruntime onnxslim openvino, whose pins of other packages do "
            "not fit this one"
        )


def write_onnx(
    folder: Path,
    predictor: Predictor,
    facts: Mapping[str, Any],
    images: UInt8[np.ndarray, "batch h w c"],
    *,
    int8: bool = False,
) -> dict[str, Any]:
    """Write the graph of a predictor, after comparing it with the predictor.

    Args:
        predictor: it computes in float32.
        facts: for the metadata, values of JSON.
        images: preprocessed real images.
        int8: whether matrices are rounded to 8 bits, after the comparison in float32.

    Returns:
        Facts for the description: `differences`, the largest of each output, `nodes`, and with
        `int8` also `int8_differences`.

    Raises:
        UserError: a package is missing, ONNX cannot take an operation, or the outputs differ.
    """
    need_packages()
    model = simplified(graph_of(predictor))
    for name, value in facts.items():
        model.metadata_props.add(key=name, value=json.dumps(value, ensure_ascii=False))
    expected = jax.device_get(predictor.run(images))
    differences = compared(outputs_of(model, images), expected, "onnxruntime")
    found = {"opset": model.opset_import[0].version, "nodes": len(model.graph.node)}
    found |= {"differences": differences, "compared_on": len(images), "int8": int8}
    if int8:
        model = rounded(model)
        now = differences_of(outputs_of(model, images), expected)
        found |= {"int8_differences": now, "nodes": len(model.graph.node)}
    with writing(folder / GRAPH):
        (folder / GRAPH).write_bytes(model.SerializeToString())
    return found


def graph_of(predictor: Predictor) -> "onnx.ModelProto":
    """Return the graph of a predictor, as it is traced.

    Raises:
        UserError: ONNX cannot take an operation; with its layer, or the weights are too large.
    """
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(predictor.variables))
    if weights > LARGEST:
        raise UserError(
            f"the weights are {weights:,} bytes and an ONNX file holds at most {LARGEST:,}; "
            "use --to=stablehlo"
        )
    names = list(predictor.outputs)

    def function(images):
        found = predictor.function(predictor.variables, images)
        return tuple(found[name] for name in names)

    [batch] = export.symbolic_shape(BATCH)
    images = predictor.inputs["images"].of_batch(batch)
    with portable(blocks=False):
        program = jax.make_jaxpr(function)(images)
    with _quiet():
        import jax2onnx

        naming = {"model_name": "model", "input_names": ["images"], "output_names": names}
        try:
            # Of the traced program, for jax2onnx replaces functions of JAX and Flax while it traces
            # by its own, which take fewer arguments.
            return jax2onnx.to_onnx(jaxpr_as_fun(program), [images], **naming)
        except Exception as error:  # of various types, from any of hundreds of rules
            raise export_error("ONNX", error, function, [images]) from error


def simplified(model: "onnx.ModelProto") -> "onnx.ModelProto":
    """Return a graph with what depends on no image computed in advance."""
    import onnxslim

    model = onnx_graph.with_plain_products(onnx_graph.with_plain_pools(model))
    with _quiet():
        return onnxslim.slim(onnx_graph.with_known_shapes(model))


def outputs_of(
    model: "onnx.ModelProto", images: UInt8[np.ndarray, "batch h w c"]
) -> dict[str, np.ndarray]:
    """Return the outputs of a graph by name: of the first image alone, of the others at once."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only
    providers = ["CPUExecutionProvider"]
    content, halves = model.SerializeToString(), (images[:1], images[1:])
    try:
        session = onnxruntime.InferenceSession(content, options, providers=providers)
        names = [output.name for output in session.get_outputs()]
        parts = [session.run(names, {"images": part}) for part in halves if len(part)]
    except Exception as error:  # of various types
        raise UserError(
            f"onnxruntime cannot run the graph of this model: {str(error).strip()[:300]}; nothing "
            "was written, use --to=stablehlo"
        ) from error
    return {name: np.concatenate(rows) for name, *rows in zip(names, *parts, strict=True)}


def compared(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], library: str
) -> dict[str, float]:
    """Return the largest difference of each output.

    Raises:
        UserError: one is more than `TOLERANCE`, or a value is not a finite number.
    """
    differences = differences_of(found, expected)
    for name, difference in differences.items():
        largest = max(1.0, float(np.abs(expected[name]).max()))
        if not difference <= TOLERANCE * largest:  # NaN too
            raise UserError(
                f"{library} gives other values than the model: {name!r} differs by {difference:.1e}"
                f" where at most {TOLERANCE * largest:.1e} is rounding; nothing was written, use "
                "--to=stablehlo"
            )
    return differences


def differences_of(
    found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """Return the largest absolute difference of each output by name."""
    return {
        name: float(np.abs(np.asarray(found[name], np.float64) - values).max())
        for name, values in expected.items()
    }


def rounded(model: "onnx.ModelProto") -> "onnx.ModelProto":
    """Return a graph whose matrices are whole numbers of 8 bits."""
    import tempfile

    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as folder, _quiet():
        path = Path(folder) / GRAPH
        options = {"MatMulConstBOnly": True}  # the products of attention stay
        kinds = {"weight_type": QuantType.QInt8, "per_channel": True, "extra_options": options}
        quantize_dynamic(model, path, op_types_to_quantize=["MatMul"], **kinds)
        return onnx_graph.with_short_names(onnx.load(path))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Context without the warnings of these libraries, one for each symbolic shape."""
    loggers = [logging.getLogger(name) for name in ("jax2onnx", "onnx_ir", "onnxslim", "root", "")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
