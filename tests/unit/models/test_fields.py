"""Every field of every architecture and layer takes what its annotation says, and nothing else."""

import numpy as np
import pytest

from vit_jax.models import create_model, model_fields
from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.attention.types import AttentionType
from vit_jax.models.block import block_factory
from vit_jax.models.layers.convolutions import BatchNorm
from vit_jax.models.layers.mlp import Mlp
from vit_jax.models.layers.norm import LayerNorm
from vit_jax.models.layers.residual import DropPath, LayerScale
from vit_jax.models.registry import MODELS

ARCHITECTURES = {preset.architecture.__name__: name for name, preset in MODELS.items()}
INFINITY, NAN = float("inf"), float("nan")
# None of these is valid in any field.
NEVER = [
    *(INFINITY, -INFINITY, NAN, np.float32("nan"), -1, 10**40, 16**5000, -(10**400), 1e39, -2.5),
    *("", "\0", "٣", b"x", 1j, {"a": 1}, {1}, object(), ..., int, [[[2]]], (NAN,) * 4, (1,) * 1000),
    *([10**400] * 4, np.ones(3), (True, True), (True,) * 4),
]
NUMBERS_ONLY = [True, False, np.bool_(True)]  # invalid wherever the default is a number
FLAGS_ONLY = [0, 1, 1.0, np.int64(1)]


@pytest.mark.parametrize("name", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_what_is_never_valid_is_one_short_sentence(name):
    for field, default in model_fields(name).items():
        values = [*NEVER]
        if isinstance(default, bool):
            values += FLAGS_ONLY
        elif field != "class_token":
            values += NUMBERS_ONLY
        for value in values:
            with pytest.raises(ValueError) as caught:
                create_model(name, **{field: value})
            sentence = str(caught.value)
            assert len(sentence) < 500 and "\n" not in sentence, (field, sentence[:1000])


def test_scalars_of_numpy_become_numbers_of_python():
    model = create_model(
        "ViT-S/16",
        image_size=[np.int64(64), np.int32(32)],
        depth=np.int16(3),
        drop_path=np.float64(0.25),
        qk_norm=np.bool_(True),
        registers=np.array(2)[()],
    )
    plain = create_model(
        "ViT-S/16", image_size=(64, 32), depth=3, drop_path=0.25, qk_norm=True, registers=2
    )
    assert model == plain and hash(model) == hash(plain)
    assert all(type(side) is int for side in model.image_size) and type(model.qk_norm) is bool


@pytest.mark.parametrize(
    ("name", "fields", "sentence"),
    [
        ("ViT-B/16", {"mlp_ratio": 1e-9}, "mlp_ratio=1e-09 .*hidden units, .*at least 1"),
        ("ViT-B/16", {"mlp_ratio": 1e300}, "mlp_ratio=1e.300 must be a finite number"),
        ("Swin-T", {"mlp_ratio": 1e-9}, "hidden units"),
        ("PVT-Tiny", {"mlp_ratios": (8, 8, 1e-9, 4)}, r"mlp_ratios\[2\]=1e-09.* hidden units"),
        ("EfficientNet-B0", {"squeeze": 1e30}, "squeeze=1e.30"),
        ("ViT-B/16", {"depth": 10**6}, "depth=1000000 .* at most 1,000"),
        ("ResNet-50", {"depths": (3, 900, 600, 3)}, "1,506 blocks; there may be 1,000"),
        ("ViT-B/16", {"image_size": 2**30}, "image_size=1073741824 .* at most 65,536"),
        ("ViT-B/16", {"image_size": 2**16, "patch_size": 2}, "32,768 x 32,768 patches"),
        ("ViT-B/16", {"image_size": 4096, "positions": "relative"}, "every pair of tokens"),
        ("ViT-B/16", {"image_size": 16384, "positions": "sincos2d"}, "table of positions"),
        ("Swin-T", {"image_size": 4096, "window": 500}, "smaller windows"),
        ("ViT-B/16", {"norm_eps": 1e-300}, "norm_eps=1e-300 .*range of float32"),
    ],
)
def test_what_would_take_all_memory_or_divide_by_zero_is_refused(name, fields, sentence):
    with pytest.raises(ValueError, match=sentence):
        create_model(name, **fields)


@pytest.mark.parametrize(
    ("layer", "fields", "wrong"),
    [
        (DropPath, {}, {"rate": True}),
        (DropPath, {}, {"rate": 1.5}),
        (LayerScale, {}, {"initial": INFINITY}),
        (LayerNorm, {}, {"epsilon": NAN}),
        (Mlp, {"mlp_width": 8}, {"mlp_dropout": -0.1}),
        (Mlp, {}, {"mlp_width": 8.0}),
        (Attention, {"heads": 2}, {"qk_norm": 1}),
        (Attention, {"heads": 2}, {"attention_dropout": True}),
        (block_factory, {"heads": 2, "mlp_width": 8}, {"layer_scale": INFINITY}),
        (block_factory, {"heads": 2, "mlp_width": 8}, {"drop_path": True}),
        (block_factory, {"heads": 2, "mlp_width": 8, "cross": True}, {"qkv_bias": 0}),
        (BatchNorm, {}, {"momentum": "0.1"}),
        (AttentionType, {}, {"local_window": True}),
    ],
)
def test_layers_refuse_what_models_refuse(layer, fields, wrong):
    [field] = wrong
    with pytest.raises(ValueError, match=field):
        layer(**fields, **wrong)


def test_layers_take_scalars_of_numpy():
    assert DropPath(np.float64(0.5)) == DropPath(0.5)
    assert Mlp(np.int64(8)).mlp_width == 8
