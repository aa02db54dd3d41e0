"""Answers: results as values of JSON, the files of dense models, and attention maps."""

import base64
import io
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from vit_jax.errors import UserError
from vit_jax.inference.classifier import Classifier
from vit_jax.inference.predictor import Predictor
from vit_jax.inference.two_towers import TwoTowers
from vit_jax.runs.record import part_of

_STEM = "image"


def result_fields(predictor: Predictor, result: Any, top: int) -> dict[str, Any]:
    """Return a result as values of JSON, with the `top` most probable classes.

    result: of one image, as `Engine.compute` returns it.
    """
    if isinstance(predictor, Classifier):
        return predictor.to_json(predictor.top_classes(result, top))
    found = predictor.to_json(result)
    of_head = found.get("classification")  # of a model with several heads
    if isinstance(of_head, dict) and isinstance(of_head.get("classes"), list):
        found["classification"] = {**of_head, "classes": of_head["classes"][:top]}
    return found


def written_files(
    predictor: Predictor, result: Any, image: UInt8[np.ndarray, "h w c"]
) -> dict[str, Any]:
    """Return the files that `predict --output` writes of a result, by the end of their name.

    JSON is a value, other files are base64.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in predictor.write(folder, _STEM, result, image):
            name = Path(path).name.removeprefix(f"{_STEM}_")
            content = Path(path).read_bytes()
            is_json = name.endswith(".json")
            found[name] = json.loads(content) if is_json else base64.b64encode(content).decode()
    return found


def image_tower(predictor: Predictor) -> tuple[Any, Mapping[str, Any]]:
    """Return the module whose attention is shown, None of an exported file, and its variables."""
    if isinstance(predictor, TwoTowers):
        return predictor.model, part_of(predictor.variables, predictor.task.encoder)
    model = getattr(predictor, "model", None)
    if hasattr(model, "make_backbone"):  # of a dense model
        return model.make_backbone(), part_of(predictor.variables, "backbone")
    return model, predictor.variables


def has_attention(predictor: Predictor) -> bool:
    """Return whether attention maps of the model can be shown."""
    from vit_jax.analysis.attention.compute import attention_blocks

    preprocessing, (model, _) = predictor.preprocessing, image_tower(predictor)
    if model is None or preprocessing.max_tokens or preprocessing.frames:
        return False
    try:
        attention_blocks(model, preprocessing.size)
    except UserError:
        return False
    return True


def attention_fields(predictor: Predictor, image: UInt8[np.ndarray, "h w c"]) -> dict[str, Any]:
    """Return the attention of the last layer in an image, as values of JSON.

    `map` is the mean over heads of the class token's attention to each patch, or without a class
    token the mean over all patches; 1 is uniform attention. `input` is the image as the model sees
    it, a PNG in base64.

    Raises:
        UserError: the model has no attention.
    """
    from vit_jax.analysis.attention.compute import compute_attention

    model, variables = image_tower(predictor)
    pixels = predictor.preprocessing(image)
    inputs = np.asarray(predictor.preprocessing.normalize(pixels[None]))
    layer = compute_attention(model, variables, inputs).layer(-1)
    shown = pixels if pixels.shape[-1] == 3 else np.repeat(pixels[..., :1], 3, axis=-1)
    file = io.BytesIO()
    Image.fromarray(shown).save(file, "PNG")
    return {
        "layer": layer.name,
        "map": (layer.keys * layer.map(0, None)[0]).tolist(),
        "input": base64.b64encode(file.getvalue()).decode(),
    }
