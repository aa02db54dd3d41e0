"""Writing for Hugging Face's transformers: `config.json` of a model, and tensor names.

ViT, DeiT with one head or two, DINOv2, DINOv2 with registers, and I-JEPA for a ViT without class
token are written. DINOv2's class is also used for ViT with layer scale or registers, such as DeiT
III: a head on the class token alone gets zeros for the mean of the patches, a model without layer
scale gets a scale of ones, and the mask token, which no model here has, is zero, as transformers
initialises it. A ViT with one register is written as a DeiT with one head, whose distillation token
no head reads. MSN, which computes as a ViT, is written as one.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.weights.ecosystems.plain_vit import need_plain_vit

# Names of activations in a config.json to ours; of several names the first is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "silu",
}


def activation_name(ours: str) -> str:
    """Return the name of one of our activations in a config.json."""
    return next(theirs for theirs, known in ACTIVATIONS.items() if known == ours)


def labels_of(class_names: Sequence[str]) -> dict[str, Any]:
    """Return the entries of a config.json with the names of classes."""
    return {
        "id2label": {str(i): name for i, name in enumerate(class_names)},
        "label2id": {name: i for i, name in enumerate(class_names)},
    }


def finish(tensors: dict[str, np.ndarray], fields: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return the tensors that transformers keeps under other names or in addition."""
    kind = _kind_to_write(fields)
    width = fields["width"]
    if fields["class_token"] and not fields["pos_on_cls"]:  # a class token with a position of zeros
        table = tensors["embeddings.position_embeddings"]
        tensors["embeddings.position_embeddings"] = np.pad(table, ((0, 0), (1, 0), (0, 0)))
    if kind == "deit" and fields["distilled"]:
        tensors = _renamed(tensors, {r"^classifier\.": "cls_classifier."})
    elif kind == "deit":  # the register has no position of its own
        tensors["embeddings.distillation_token"] = tensors.pop("embeddings.register_tokens")
        table = tensors["embeddings.position_embeddings"]
        tensors["embeddings.position_embeddings"] = np.insert(table, 1, 0, axis=1)
    if kind.startswith("dinov2"):
        tensors = _renamed(tensors, _DINOV2_GATED if fields["mlp"] == "swiglu" else _DINOV2)
        if fields["layer_scale"] is None:
            ones = np.ones(width, np.float32)
            for i in range(fields["depth"]):
                tensors |= {f"encoder.layer.{i}.layer_scale{n}.lambda1": ones for n in (1, 2)}
        if "classifier.weight" in tensors and fields["pool"] == "cls":  # zeros for the patches
            tensors["classifier.weight"] = np.pad(
                tensors["classifier.weight"], ((0, 0), (0, width))
            )
        tensors["embeddings.mask_token"] = np.zeros((1, width), np.float32)
    if not fields["num_classes"]:
        return tensors
    heads = ("classifier.", "cls_classifier.", "distillation_classifier.")
    prefix = f"{kind}."
    return {name if name.startswith(heads) else prefix + name: x for name, x in tensors.items()}


def config(fields: Mapping[str, Any], preprocessing: Preprocessing, class_names) -> dict[str, Any]:
    """Return transformers' `config.json` of a model, for `AutoModel.from_pretrained`.

    transformers resizes positions by its own method (`pos_resize` of its origins here), so that
    outputs are equal only at the model's own image size. For a model without a head it warns about
    a new pooler, which `last_hidden_state` does not use.

    Raises UserError if transformers has no model with such fields.
    """
    kind = _kind_to_write(fields)
    one_head = kind == "deit" and not fields["distilled"]
    classes = _ONE_HEAD if one_head else _ARCHITECTURES[kind]
    written = {
        "architectures": [classes[fields["num_classes"] > 0]],
        "model_type": kind,
        "hidden_size": fields["width"],
        "num_hidden_layers": fields["depth"],
        "num_attention_heads": fields["heads"],
        "hidden_act": activation_name(fields["activation"]),
        "layer_norm_eps": fields["norm_eps"],
        "image_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "num_channels": fields["in_channels"],
        "qkv_bias": fields["qkv_bias"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "dtype": "float32",
    }
    if kind.startswith("dinov2"):
        written |= {
            "mlp_ratio": _mlp_ratio(fields),
            "use_swiglu_ffn": fields["mlp"] == "swiglu",
            "layerscale_value": fields["layer_scale"] or 1.0,
        }
        written["use_mask_token"] = True
        if kind == "dinov2_with_registers":
            written["num_register_tokens"] = fields["registers"]
    else:
        written["intermediate_size"] = fields["mlp_width"]
    if names := class_names[: fields["num_classes"]]:
        written |= labels_of(names)
    return written


# ----------------------------------------------------------------------------------------- inside

# By model_type: the classes without a head and with one.
_ARCHITECTURES = {
    "vit": ("ViTModel", "ViTForImageClassification"),
    "deit": ("DeiTModel", "DeiTForImageClassificationWithTeacher"),
    "dinov2": ("Dinov2Model", "Dinov2ForImageClassification"),
    "dinov2_with_registers": (
        "Dinov2WithRegistersModel",
        "Dinov2WithRegistersForImageClassification",
    ),
    "ijepa": ("IJepaModel", "IJepaForImageClassification"),
}
_ONE_HEAD = ("DeiTModel", "DeiTForImageClassification")

# From the names of ViT to those of DINOv2.
_DINOV2 = {
    r"\.layernorm_before\.": ".norm1.",
    r"\.layernorm_after\.": ".norm2.",
    r"\.intermediate\.dense\.": ".mlp.fc1.",
    r"(\d)\.output\.dense\.": r"\1.mlp.fc2.",
}
_DINOV2_GATED = {
    **_DINOV2,
    r"\.intermediate\.dense\.": ".mlp.weights_in.",
    r"(\d)\.output\.dense\.": r"\1.mlp.weights_out.",
}

# Fields of a ViT that `config` writes.
_WRITTEN = (
    *("num_classes", "image_size", "patch_size", "in_channels", "width", "depth", "heads"),
    *("mlp_width", "mlp", "class_token", "distilled", "registers", "pos_on_cls", "layer_scale"),
    *("qkv_bias", "activation", "norm_eps"),
)
# Fields with one value in all of transformers' models.
_NEEDED = {
    "pool_norm": "before",
    "positions": "learned",
    "pos_combine": "add",
    "norm_order": "pre",
    "embed_norm": False,
    "patch_bias": True,
    "qk_norm": False,
    "representation_size": None,
    "head_dim": None,
}


def _kind_to_write(fields: Mapping[str, Any]) -> str:
    """Return the model_type for a model of these fields; UserError if there is none."""
    # A head on class token and mean is DINOv2's; without a head the library has no such vector.
    joined = fields["pool"] == "cls+mean" and fields["num_classes"] > 0
    pool = "cls+mean" if joined else "cls" if fields["class_token"] else "mean"
    for name, needed in {"pool": pool, **_NEEDED}.items():
        if fields[name] != needed:
            raise UserError(
                f"transformers has no model with {name} = {fields[name]!r}, only with {needed!r}"
            )
    need_plain_vit("transformers", fields, {"pool", *_NEEDED, *_WRITTEN})
    as_dinov2 = fields["registers"] > 0 or fields["layer_scale"] is not None or joined
    gated = fields["mlp"] == "swiglu"
    if fields["distilled"] and (as_dinov2 or gated or not fields["pos_on_cls"]):
        raise UserError(
            "transformers has no distilled model with registers, layer scale, a gated MLP or class "
            "token without position"
        )
    if not fields["class_token"]:
        if fields["distilled"] or as_dinov2 or gated:
            raise UserError(
                "transformers has no model without class token but with a distillation token, "
                "registers, layer scale or a gated MLP"
            )
        return "ijepa"
    one_head = fields["registers"] == 1 and fields["num_classes"] > 0
    one_head &= fields["layer_scale"] is None and not gated and not joined
    if fields["distilled"] or one_head:
        return "deit"
    if fields["registers"]:
        return "dinov2_with_registers"
    return "dinov2" if as_dinov2 or gated else "vit"


def _mlp_ratio(fields: Mapping[str, Any]) -> int:
    """Return the whole number from which transformers computes DINOv2's hidden width."""
    width, hidden = fields["width"], fields["mlp_width"]
    for ratio in range(1, 65):
        wide = width * ratio
        if hidden == ((int(wide * 2 / 3) + 7) // 8 * 8 if fields["mlp"] == "swiglu" else wide):
            return ratio
    raise UserError(
        f"transformers has no DINOv2 with MLP width {hidden} and token width {width}: MLP width "
        "must be a whole multiple, or, if gated, two thirds of one"
    )


def _renamed(tensors: dict[str, np.ndarray], patterns: Mapping[str, str]) -> dict[str, np.ndarray]:
    def rename(name: str) -> str:
        for pattern, new in patterns.items():
            name = re.sub(pattern, new, name)
        return name

    return {rename(name): array for name, array in tensors.items()}
