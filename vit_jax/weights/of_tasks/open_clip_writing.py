"""Writing of image and text towers together for open_clip.

The image tower is CLIP's own, or one of timm, under `visual.trunk.`. The file's own configuration
is written again as long as the same model is read with it.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from vit_jax.errors import UserError
from vit_jax.models.fields import pair
from vit_jax.models.registry import model_fields
from vit_jax.models.stacking import unstack_blocks
from vit_jax.models.text.weights import openai
from vit_jax.models.vit.module import ViT
from vit_jax.models.vit.weights import image_text, perception_encoder
from vit_jax.weights.convert import tensors_for
from vit_jax.weights.ecosystems import open_clip, timm_towers
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit, resolved_fields
from vit_jax.weights.formats import Hints
from vit_jax.weights.io import files
from vit_jax.weights.io.safety import show
from vit_jax.weights.mapping import write_tensors
from vit_jax.weights.of_tasks.task_weights import TaskWeights
from vit_jax.weights.of_tasks.two_towers import towers_of_tensors

# Names of the projection by the entry `timm_proj`.
_PROJECTIONS = {"linear": "visual.head.proj.weight", None: "visual.trunk.head.weight"}


def write_open_clip(folder: Path, found: TaskWeights) -> Path:
    """Write both towers as `open_clip_model.safetensors`, with the `open_clip_config.json`.

    Raises:
        UserError: open_clip has no such model.
    """
    config = found.record.source_config.get("config", {}).get("open_clip")
    tensors = None if config is None else _as_in_file(config, found)
    if tensors is None:
        config = _config(found)
        tensors = _tensors(open_clip.Settings.of({"open_clip": config}), found)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_safetensors(folder / "open_clip_model.safetensors", tensors, {"format": "pt"})
    (folder / open_clip.FILE).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    return folder


def _as_in_file(config: Mapping[str, Any], found: TaskWeights) -> dict[str, np.ndarray] | None:
    """Return the tensors for the configuration of the file; None if it is of another model now."""
    heads = getattr(found.model, "heads", None)  # a tuple where each stage or block has its own
    heads = heads if type(heads) is int else None
    hints = Hints(heads=heads, text_heads=found.fields["text_heads"])
    content = {"open_clip": config}
    try:
        tensors = _tensors(open_clip.Settings.of(content), found)
        again, _ = towers_of_tensors(tensors, content, hints)
    except UserError:
        return None
    return tensors if _facts(again) == _facts(found) else None


def _facts(found: TaskWeights) -> tuple[Any, ...]:
    fields = {**model_fields(found.record.name), **found.record.fields}
    return found.record.name, fields, found.record.preprocessing, found.fields


def _tensors(settings: open_clip.Settings, found: TaskWeights) -> dict[str, np.ndarray]:
    """Return the tensors under the names that go with a configuration."""
    params = unstack_blocks(found.variables["params"])
    if settings.trunk is None:
        tensors = openai.write(params)
    else:
        tensors = openai.write_without_image(params)
        projection = tensors.pop("visual.proj", None)
        tensors |= {f"visual.trunk.{name}": x for name, x in _trunk_tensors(found).items()}
        if projection is not None:
            tensors |= _projection(settings.image.get("timm_proj", "linear"), projection)
    if settings.has_prefix:
        others = ("visual.", "logit_")
        tensors = {n if n.startswith(others) else f"text.{n}": x for n, x in tensors.items()}
    return tensors


def _projection(kind: str | None, matrix: np.ndarray) -> dict[str, np.ndarray]:
    """Return the tensors of a projection behind a tower of timm, by the entry `timm_proj`."""
    if kind not in _PROJECTIONS:
        raise UserError(f"{open_clip.FILE}: timm_proj = {show(kind)} has no projection")
    tensors = {_PROJECTIONS[kind]: np.ascontiguousarray(matrix.T)}
    if kind is None:  # timm's head has a bias
        tensors["visual.trunk.head.bias"] = np.zeros(matrix.shape[1], matrix.dtype)
    return tensors


def _trunk_tensors(found: TaskWeights) -> dict[str, np.ndarray]:
    """Return the tensors of an image tower under the names of timm."""
    if getattr(found.model, "rotary", None) == "pe":
        params = unstack_blocks(found.variables["params"]["image"])
        return write_tensors(perception_encoder.ROWS, params)
    return tensors_for("timm", *found.image())[1]


def _config(found: TaskWeights) -> dict[str, Any]:
    """Return the `open_clip_config.json` of the model; UserError if open_clip has none such."""
    model, options = found.model, found.fields
    fields = {name: getattr(model, name) for name in model_fields(found.record.name)}
    fields |= resolved_fields(model)
    plain = type(model) is ViT  # and no class of its own, as NaFlex
    is_clip = plain and image_text.is_clip(fields)
    family = timm_towers.family_of(fields) if plain else None
    if not is_clip and family is None:
        raise UserError(
            f"--to=openclip does not support images of {found.record.name} with these fields, only "
            "those of CLIP, SigLIP and the Perception Encoder; keep the run folder"
        )
    joined = options["image_projection"]
    if is_clip:
        need_plain_vit("open_clip", fields, image_text.WRITTEN)
        if not joined:
            raise UserError(
                "--to=openclip has no image_projection = False for images of CLIP, only True; keep "
                "the run folder"
            )
        vision = open_clip.clip_tower(fields)
    else:
        name, side = timm_towers.name_of(family, fields), pair(fields["image_size"])[0]
        vision = open_clip.timm_tower(name, side, family.projection if joined else "none")
    text = {"vocabulary": options["vocabulary"], "length": options["length"]}
    text |= {n.removeprefix("text_"): x for n, x in options.items() if n.startswith("text_")}
    quick = text["activation"] == "quick_gelu"
    if is_clip and quick != (fields["activation"] == "quick_gelu"):
        raise UserError("open_clip has one activation for both towers; use --to=huggingface")
    texts = open_clip.text_tower(text)
    config = {"embed_dim": options["embed_width"], "vision_cfg": vision, "text_cfg": texts}
    if options["kind"] == "sigmoid":
        config["init_logit_bias"] = -10  # of training; the file has the learned one
    if not is_clip or "proj_bias" in texts:
        config["custom_text"] = True
    if quick:
        config["quick_gelu"] = True
    preprocessing = open_clip.preprocessing_of(found.record.preprocessing)
    return {"model_cfg": config, "preprocess_cfg": preprocessing}
