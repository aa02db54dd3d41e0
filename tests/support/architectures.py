"""A small model of every architecture, and one compiled program that answers for it."""

import functools
import inspect
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from tests.support.shapes import CLASSES, VIT, random_images, random_variables
from vit_jax.models import ViT
from vit_jax.models.autoformer.module import AutoFormer
from vit_jax.models.cait import CaiT
from vit_jax.models.conv_stem.module import ConvStemViT
from vit_jax.models.convnext.module import ConvNeXt
from vit_jax.models.depth.module import DPT
from vit_jax.models.detection import DETR, YOLOS
from vit_jax.models.efficientnet.module import EfficientNet
from vit_jax.models.features import Features
from vit_jax.models.flexivit.module import FlexiViT
from vit_jax.models.hybrid.module import HybridViT
from vit_jax.models.inputs import input_shape
from vit_jax.models.mixer.module import Mixer
from vit_jax.models.naflex.module import NaFlexViT
from vit_jax.models.pvt.module import PVT
from vit_jax.models.pvt_v2.module import PVTv2
from vit_jax.models.resnet.module import ResNet
from vit_jax.models.segmentation import Segmentation
from vit_jax.models.stacking import read_outputs, unstack_blocks
from vit_jax.models.swin.module import Swin
from vit_jax.models.timesformer.module import TimeSformer
from vit_jax.models.universal import UniversalViT
from vit_jax.models.vitdet import ViTDet
from vit_jax.models.vjepa2 import VJEPA2

_HOUSE = {"num_classes": CLASSES, "image_size": 16}
_PYRAMID = {**_HOUSE, "depths": (1, 1), "widths": (4, 8)}
# Of what gives something else than classes, by name; see tests/contract/test_dense_models.py.
_VIT_FIELDS = {"patch_size": 4, "width": 16, "depth": 2, "heads": 2, "mlp_width": 24}
_OF_PIXELS = {"image_size": 16, "num_classes": CLASSES}
_TINY_MIT = {"widths": (8, 8), "depths": (1, 1), "heads": (1, 1), "reductions": (2, 1)}
_TINY_MIT |= {"patch_sizes": (3, 3), "strides": (2, 2), "mlp_ratios": (2, 2)}
_TINY_SWIN = {"patch_size": 2, "width": 8, "depths": (1, 1), "heads": (1, 2), "window": 4}
DENSE: dict[str, nn.Module] = {
    "YOLOS": YOLOS(**_HOUSE, backbone_fields=_VIT_FIELDS, queries=5, mid_positions=True),
    "DETR": DETR(
        **_HOUSE,
        backbone_fields={"depths": (1, 1), "widths": (4, 8), "block": "basic", "stem_width": 4},
        queries=5,
        width=8,
        heads=2,
        encoder_depth=1,
        decoder_depth=2,
        mlp_width=12,
    ),
    "DPT": DPT(
        image_size=16,
        backbone_name="ViT",
        backbone_fields=_VIT_FIELDS,
        blocks=(0, 0, 1, 1),
        widths=(4, 6, 8, 8),
        fusion_width=8,
        head_width=4,
    ),
    "Segmentation linear": Segmentation(
        **_OF_PIXELS, backbone_name="ViT-Ti/16", backbone_fields=_VIT_FIELDS
    ),
    "Segmentation mask": Segmentation(
        **_OF_PIXELS, backbone_name="ViT-Ti/16", backbone_fields=_VIT_FIELDS, decoder="mask"
    ),
    "Segmentation mlp": Segmentation(
        **_OF_PIXELS,
        backbone_name="MiT-B0",
        backbone_fields=_TINY_MIT,
        decoder="mlp",
        decoder_width=8,
    ),
    "Segmentation upernet": Segmentation(
        **_OF_PIXELS,
        backbone_name="Swin-T",
        backbone_fields=_TINY_SWIN,
        decoder="upernet",
        decoder_width=8,
        norm_maps=True,
        auxiliary_head=True,
        auxiliary_width=4,
    ),
    "Segmentation of a ViT with a pyramid": Segmentation(
        **_OF_PIXELS,
        backbone_name="ViTDet-B/16",
        backbone_fields={**_VIT_FIELDS, "position_size": 8, "window": 3, "global_blocks": (1,)},
        decoder="mlp",
        decoder_width=8,
    ),
    "UniversalViT": UniversalViT(
        **_HOUSE,
        backbone_name="ViT",
        backbone_fields=_VIT_FIELDS,
        task_heads={
            "segmentation": {"model": "Segmentation", "num_classes": 4},
            "depth": {
                **{"model": "DPT", "blocks": (0, 0, 1, 1), "widths": (4, 6, 8, 8)},
                **{"fusion_width": 8, "head_width": 4},
            },
        },
    ),
}

TINY: dict[str, nn.Module] = {
    model.__class__.__name__: model
    for model in (
        ViT(**VIT),
        ConvStemViT(**VIT, stem_channels=(6, 8), mlp_width=24),
        AutoFormer(
            **{**VIT, "heads": (1, 2), "mlp_width": (24, 8), "pool": "cls"},
            head_dim=4,
            relative_clip=2,
        ),
        CaiT(**VIT, mlp_width=24, layer_scale=0.5),
        FlexiViT(**VIT, kernel_size=6, table_grid=3),
        NaFlexViT(**VIT, pool="cls"),
        HybridViT(
            **{**VIT, "patch_size": 8, "mlp_width": 24},
            stem_units=(1, 1),
            stem_width=4,
            stem_groups=2,
        ),
        ViTDet(
            **{key: value for key, value in VIT.items() if key != "pool"},
            mlp_width=24,
            position_size=8,
            window=3,
            global_blocks=(1,),
            pyramid_width=None,
        ),
        Swin(**_HOUSE, patch_size=2, width=8, depths=(2, 1), heads=(1, 2), window=4, mlp_ratio=2.0),
        PVT(
            **{**_PYRAMID, "image_size": (16, 32), "widths": (8, 16)},
            patch_sizes=(4, 2),
            heads=(1, 2),
            mlp_ratios=(3, 2),
            reductions=(2, 2),
        ),
        PVTv2(
            **{**_PYRAMID, "image_size": (16, 32), "widths": (8, 16)},
            patch_sizes=(3, 3),
            strides=(2, 2),
            heads=(1, 2),
            mlp_ratios=(3, 2),
            reductions=(4, 2),
        ),
        TimeSformer(**VIT, num_frames=4, tubelet_size=2, mlp_width=24),
        VJEPA2(**VIT, num_frames=4, mlp_width=24),
        Mixer(**_HOUSE, patch_size=4, width=16, depth=2, token_mlp_width=12, channel_mlp_width=32),
        ResNet(**_PYRAMID, block="basic", stem_width=4, small_stem=True),
        ConvNeXt(**_PYRAMID, patch_size=2, kernel_size=5, layer_scale=0.5),
        EfficientNet(
            **{**_PYRAMID, "depths": (1, 2)},
            kernels=(3, 5),
            strides=(1, 2),
            expansions=(1, 2),
            stem_width=4,
            stem_stride=1,
            head_width=8,
        ),
    )
}

# Their blocks differ from each other, so that they cannot be stacked.
DIFFERENT_BLOCKS = ("AutoFormer", "ViTDet")


def images_of(model: nn.Module, batch: int = 2) -> np.ndarray:
    """Return images, or clips, of the size that a model is built for."""
    return random_images(*input_shape(model, batch))


def has_attention(model: nn.Module) -> bool:
    """Return whether a model gives attention weights on request."""
    return "attention_weights" in inspect.signature(type(model).__call__).parameters


def rates_of(model: nn.Module) -> list[str]:
    """Return the fields that are rates of something dropped in training.

    Of patches a number is dropped, not each with a probability.
    """
    names = (name for name in type(model).__dataclass_fields__ if name != "patch_dropout")
    return [name for name in names if name.endswith(("dropout", "drop_path"))]


@dataclass(frozen=True)
class Answers:
    """What the program of a model gives for a batch.

    Attributes:
        logits, features, without_head, rough: in evaluation; of the model as it is, of the same
            without classes, and of one in bfloat16.
        outputs, weights: of every block by its path, in evaluation; weights (batch, heads, queries,
            keys), none where an architecture has none.
        kept, moved: state besides parameters after evaluation and after training.
        trained: logits in training.
        gradients: of a sum of these, each logit with a factor of its own.
    """

    logits: jax.Array
    features: Features
    without_head: jax.Array
    rough: jax.Array
    outputs: dict[str, jax.Array]
    weights: dict[str, jax.Array]
    kept: dict[str, Any]
    moved: dict[str, Any]
    trained: jax.Array
    gradients: dict[str, Any]


@dataclass(frozen=True)
class Traced:
    """A small model, its random variables, a batch, its program, and what that answered."""

    model: nn.Module
    variables: dict[str, Any]
    images: np.ndarray
    program: Any
    answers: Answers


@functools.cache
def traced(name: str) -> Traced:
    """Return the answers of an architecture's small model; compiled once for all tests."""
    model = TINY[name]
    images = images_of(model)
    variables = random_variables(model, images)
    program = functools.partial(_program, model)
    return Traced(model, variables, images, program, _answers(program(variables, images)))


def sown_without_branches(one: Traced) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what is sown where attention and MLPs of a ViT add nothing, and the parameters."""
    flat = flatten_dict(one.variables["params"], sep="/")
    zeroed = {
        path: np.zeros_like(leaf) if "attn/out" in path or "fc2" in path else leaf
        for path, leaf in flat.items()
    }
    params = unflatten_dict(zeroed, sep="/")
    return one.program({**one.variables, "params": params}, one.images)["sown"], params


def shapes_of(variables: dict[str, Any], part: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a part's parameters by their paths, such as `norm/bias`."""
    flat = flatten_dict(variables["params"][part], sep="/")
    return {path: leaf.shape for path, leaf in flat.items()}


def gradient_of(
    model: nn.Module, variables: dict[str, Any], images: np.ndarray
) -> tuple[dict[str, Any], jax.Array, dict[str, Any]]:
    """Return gradients, logits in training and new state; to be traced."""
    state = {name: tree for name, tree in variables.items() if name != "params"}

    def loss(params):
        variables = {"params": params, **state}
        logits, new = model.apply(variables, images, train=True, mutable=list(state))
        factors = jnp.sin(jnp.arange(logits.size)).reshape(logits.shape)
        return (factors * logits).sum(), (logits, new)

    gradients, (logits, new) = jax.grad(loss, has_aux=True)(variables["params"])
    return gradients, logits, new


@functools.partial(jax.jit, static_argnums=0)
def _program(model: nn.Module, variables: dict[str, Any], images: jax.Array) -> dict[str, Any]:
    state = [name for name in variables if name != "params"]
    asked = {"attention_weights": True} if has_attention(model) else {}
    mutable = ["intermediates", *state]
    logits, sown = model.apply(variables, images, mutable=mutable, **asked)
    params = {name: tree for name, tree in variables["params"].items() if name != "head"}
    gradients, trained, moved = gradient_of(model, variables, images)
    return {
        "logits": logits,
        "features": model.apply(variables, images, method="features"),
        "without_head": model.clone(num_classes=0).apply({**variables, "params": params}, images),
        "rough": model.clone(dtype="bfloat16").apply(variables, images),
        "sown": sown["intermediates"],
        "kept": {name: sown[name] for name in state},
        "moved": moved,
        "trained": trained,
        "gradients": gradients,
    }


def _answers(found: dict[str, Any]) -> Answers:
    found = {name: jax.tree.map(np.asarray, value) for name, value in found.items()}
    sown = found.pop("sown")
    flat = flatten_dict(unstack_blocks(sown), sep="/")
    weights = {
        path.removesuffix("/attn/weights"): values[0]
        for path, values in flat.items()
        if path.endswith("attn/weights")
    }
    return Answers(
        **found,
        outputs=read_outputs(sown),
        weights=weights,
    )
