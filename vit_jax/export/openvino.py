"""Export for OpenVINO, Intel's library for CPUs and other devices, through ONNX.

On processors with bfloat16 OpenVINO computes in that type unless it is told otherwise, and differs
in the second digit then. The comparison sets the hint `INFERENCE_PRECISION_HINT` to f32.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import UInt8

from vit_jax.export import onnx
from vit_jax.inference.predictor import Predictor

MODEL = "model.xml"
PRECISION = {"INFERENCE_PRECISION_HINT": "f32"}


def write_openvino(
    folder: Path,
    predictor: Predictor,
    facts: Mapping[str, Any],
    images: UInt8[np.ndarray, "batch h w c"],
) -> dict[str, Any]:
    """Write `model.xml` and `model.bin`, after comparing them with the predictor.

    Args:
        predictor: it computes in float32.
        facts: for `rt_info` of the model, values of JSON.
        images: preprocessed real images.

    Returns:
        Facts for the description: `differences`, the largest of each output.

    Raises:
        UserError: a package is missing, ONNX cannot take an operation, or the outputs differ.
    """
    import json
    import tempfile

    onnx.need_packages("openvino")
    import openvino

    with tempfile.TemporaryDirectory() as draft:
        path = Path(draft) / onnx.GRAPH
        path.write_bytes(onnx.simplified(onnx.graph_of(predictor)).SerializeToString())
        model = openvino.Core().read_model(path)
        for name, value in facts.items():
            model.set_rt_info(json.dumps(value, ensure_ascii=False), ["vit_jax", name])
        openvino.save_model(model, folder / MODEL, compress_to_fp16=False)
    compiled = openvino.Core().compile_model(folder / MODEL, "CPU", PRECISION)
    names = list(predictor.outputs)
    found = compiled(images)
    found = {name: found[name] for name in names}
    expected = jax.device_get(predictor.run(images))
    return {
        "differences": onnx.compared(found, expected, "OpenVINO"),
        "compared_on": len(images),
        "hint": PRECISION,
    }
