"""Writing of image and text towers together, for the libraries that have such models.

Reading is in `two_towers`, and writing for open_clip in `open_clip_writing`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.fields import pair
from vit_jax.models.naflex.module import NaFlexViT
from vit_jax.models.registry import model_fields
from vit_jax.models.stacking import unstack_blocks
from vit_jax.models.text.weights import big_vision, hugging_face, openai
from vit_jax.models.text.weights.common import Options
from vit_jax.models.vit.module import ViT
from vit_jax.weights import formats
from vit_jax.weights.convert import write_pretrained
from vit_jax.weights.ecosystems import carried
from vit_jax.weights.ecosystems.hugging_face_writing import activation_name
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit, resolved_fields
from vit_jax.weights.io import files
from vit_jax.weights.io.npz_file import write_npz
from vit_jax.weights.io.torch_writing import write_torch
from vit_jax.weights.mapping import write_tensors
from vit_jax.weights.of_tasks.open_clip_writing import write_open_clip
from vit_jax.weights.of_tasks.task_weights import TaskWeights


def write_two_towers(folder: str | os.PathLike, to: str, found: TaskWeights) -> Path:
    """Write both towers with the JSON files of a library.

    Args:
        folder: output folder; created if missing.
        to: "huggingface", for CLIPModel, SiglipModel and Siglip2Model; "openclip", for CLIP,
            SigLIP and the Perception Encoder; "big_vision", for SigLIP; "openai", for CLIP; or
            "pe", for the Perception Encoder under its authors' names.

    Raises:
        UserError: the library has no such model.
    """
    check_library(to)
    return _WRITERS[to](Path(folder), found)


def check_library(name: str) -> None:
    """Raise UserError unless models with both towers are written for a library."""
    if name not in _WRITERS:
        raise UserError(
            f"--to={name} has no model of images and texts; use one of {', '.join(_WRITERS)}; or "
            "--image-tower for the image tower alone"
        )


_NAMES = {
    "clip": ("CLIPModel", "clip"),
    "siglip": ("SiglipModel", "siglip"),
    "siglip2": ("Siglip2Model", "siglip2"),
}
# Fields of the task that the models of transformers have, and what a file says of others.
_NEEDED = {
    "clip": {"text_pool": ("end",), "kind": ("softmax",), "image_projection": (True,)},
    "siglip": {"text_pool": ("last",), "kind": ("sigmoid",), "image_projection": (False,)},
}
_NEEDED["siglip2"] = _NEEDED["siglip"]


def _write_hugging_face(folder: Path, found: TaskWeights) -> Path:
    params, options, record = found.variables["params"], found.fields, found.record
    model = found.model
    is_clip = getattr(model, "embed_norm", False)
    kind = "siglip2" if isinstance(model, NaFlexViT) else "clip" if is_clip else "siglip"
    _need_options(f"{_NAMES[kind][0]} of transformers", options, _NEEDED[kind])
    write_pretrained(folder, "huggingface", *found.image())
    path = folder / "model.safetensors"
    tensors = {f"vision_model.{name}": x for name, x in files.read_tensors(path).items()}
    others = {name: tree for name, tree in params.items() if name != "image"}
    rows = hugging_face.CLIP_ROWS if kind == "clip" else hugging_face.SIGLIP_ROWS
    tensors |= write_tensors(rows, unstack_blocks(others))
    vision = json.loads((folder / "config.json").read_text("utf-8"))
    config = _hugging_face_config(kind, vision, options)
    in_file = record.source_config.get("config", {})
    for name in ("text_config", "vision_config"):
        kept = in_file.get(name) if in_file.get("model_type") == kind else None
        if not isinstance(kept, Mapping):  # for a tower alone; that of both is beside them
            kept = {"projection_dim": options["embed_width"]} if kind == "clip" else {}
        config[name] = {**kept, **config[name]}
    config = carried.add("huggingface", config, record.source_config)
    for name in ("text_config_dict", "vision_config_dict"):  # of old files; they would win
        config.pop(name, None)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    files.write_safetensors(path, tensors, {"format": "pt"})
    return folder


def _hugging_face_config(kind: str, vision: dict[str, Any], options: Options) -> dict[str, Any]:
    """Return transformers' `config.json` of both towers, of that of the image tower."""
    text = {
        "model_type": f"{kind}_text_model",
        "hidden_size": options["text_width"],
        "intermediate_size": options["text_mlp_width"],
        "num_hidden_layers": options["text_depth"],
        "num_attention_heads": options["text_heads"],
        "vocab_size": options["vocabulary"],
        "max_position_embeddings": options["length"],
        "hidden_act": activation_name(options["text_activation"]),
        "layer_norm_eps": options["text_norm_eps"],
    }
    vision = {name: value for name, value in vision.items() if name != "architectures"}
    architecture, model_type = _NAMES[kind]
    config = {
        "architectures": [architecture],
        "model_type": model_type,
        "text_config": text,
        "vision_config": vision,
        "dtype": "float32",
    }
    if kind == "clip":
        # 2 is the number of old files, whose texts end at the largest id.
        end = options["text_end_token"]
        text |= {"eos_token_id": 2 if end is None else end}
        config["projection_dim"] = options["embed_width"]
    else:
        text["projection_size"] = options["embed_width"]
    return config


# -------------------------------------------------------------------------------------- big_vision

_BIG_VISION = "big_vision's SigLIP"
_IN_BIG_VISION = {
    "image_projection": (False,),
    "text_pool": ("last", "map"),
    "text_activation": ("gelu_tanh",),
    "text_norm_eps": (1e-6,),
}
_IMAGE_IN_BIG_VISION = {
    **{"num_classes": 0, "patch_bias": True, "embed_norm": False},
    **{"activation": "gelu_tanh", "norm_eps": 1e-6},
}
_SIZES = (
    *("image_size", "patch_size", "in_channels", "width", "depth", "heads", "head_dim"),
    *("mlp_width", "class_token", "pool", "pos_on_cls"),
)


def _write_big_vision(folder: Path, found: TaskWeights) -> Path:
    """Write `model.npz`; big_vision has no configuration beside it."""
    fields = _vit_fields(_BIG_VISION, found)
    formats.need(_BIG_VISION, fields, _IMAGE_IN_BIG_VISION)
    need_plain_vit(_BIG_VISION, fields, (*_IMAGE_IN_BIG_VISION, *_SIZES))
    if fields["class_token"] and fields["pos_on_cls"]:
        raise UserError("big_vision's class token has no position; keep the run folder")
    _need_options(_BIG_VISION, found.fields, _IN_BIG_VISION)
    kept = found.record.source_config
    layout = kept["config"] if kept.get("library") == "big_vision" else {}
    tensors = big_vision.write(unstack_blocks(found.variables["params"]), layout)
    write_npz(folder / "model.npz", tensors)
    return folder


def _vit_fields(library: str, found: TaskWeights) -> dict[str, Any]:
    """Return the fields of the image tower; UserError if it is of another class than ViT."""
    model = found.model
    if type(model) is not ViT:
        raise UserError(
            f"{library} has no image tower such as {found.record.name}, only a ViT; keep the run "
            "folder"
        )
    return {n: getattr(model, n) for n in model_fields(found.record.name)} | resolved_fields(model)


def _need_options(library: str, options: Options, values: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise UserError for a field of the task that a library has with other values only."""
    for name, allowed in values.items():
        if options[name] not in allowed:
            raise UserError(
                f"{library} has no {name} = {options[name]!r}, only "
                f"{' and '.join(map(repr, allowed))}; keep the run folder"
            )


# ------------------------------------------------------------------ OpenAI, the authors of PE

_CAUSAL = {
    "image_projection": (True,),
    "kind": ("softmax",),
    "text_pool": ("end",),
    "text_end_token": (None,),
    "text_norm_eps": (1e-5,),
}
_NORMED = {"num_classes": 0, "patch_bias": False, "embed_norm": True, "norm_eps": 1e-5}
_OF_OPENAI = {**_NORMED, "in_channels": 3, "activation": "quick_gelu", "pool": "cls"}
_OF_PE = {
    **{"rotary": "pe", "pool": "map", "pool_heads": 8, "pool_prefix": True},
    **{**_NORMED, "activation": "gelu", "final_norm": True},
}
_SIZES_OF_PE = (*_SIZES, "pool_mlp_width", "layer_scale", "rotary_grid")


def _write_openai(folder: Path, found: TaskWeights) -> Path:
    """Write `model.pt`, a state that `clip.load` opens; the sizes are those of its tensors."""
    library = "OpenAI's CLIP"
    fields = _vit_fields(library, found)
    formats.need(library, fields, _OF_OPENAI)
    need_plain_vit(library, fields, (*_OF_OPENAI, *_SIZES))
    _need_options(library, found.fields, {**_CAUSAL, "text_activation": ("quick_gelu",)})
    options = found.fields
    towers = {name: options[f"text_{name}"] for name in ("width", "heads", "mlp_width")}
    for about, sizes in (("images", fields), ("texts", towers)):
        width = sizes["width"]
        if width % 64:
            raise UserError(
                f"{library} has heads of 64, of which none makes a width of {width} for {about}; "
                "keep the run folder"
            )
        usual = {"heads": width // 64, "mlp_width": 4 * width}
        formats.need(library, sizes, usual, f" of {about} of width {width}")
    if len({*pair(fields["image_size"])}) > 1 or len({*pair(fields["patch_size"])}) > 1:
        raise UserError(f"{library} has square images and patches only; keep the run folder")
    write_torch(folder / "model.pt", openai.write(unstack_blocks(found.variables["params"])))
    return folder


def _write_pe(folder: Path, found: TaskWeights) -> Path:
    """Write `model.pt`, a state of the authors' class `CLIP`, whose sizes go by its name."""
    library = "the Perception Encoder"
    fields = _vit_fields(library, found)
    formats.need(library, fields, _OF_PE)
    need_plain_vit(library, fields, (*_OF_PE, *_SIZES_OF_PE))
    grid = pair(fields["image_size"])[0] // pair(fields["patch_size"])[0]
    if fields["rotary_grid"] not in (None, grid):
        raise UserError(
            f"{library} rotates by the place on its own grid of {grid}, and the model on one of "
            f"{fields['rotary_grid']}; keep the run folder"
        )
    _need_options(library, found.fields, {**_CAUSAL, "text_activation": ("gelu",)})
    write_torch(folder / "model.pt", openai.write(unstack_blocks(found.variables["params"])))
    return folder


_WRITERS = {
    "huggingface": _write_hugging_face,
    "openclip": write_open_clip,
    "big_vision": _write_big_vision,
    "openai": _write_openai,
    "pe": _write_pe,
}
