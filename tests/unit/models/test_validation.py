"""Every mistake gets one sentence with both numbers, the valid values and the remedy."""

import jax
import jax.numpy as jnp
import pytest

from vit_jax.models import ViT
from vit_jax.models.inputs import trace_init
from vit_jax.models.validation import nearest_multiples

MISTAKES = {
    "layer_scale": ({"layer_scale": "x"}, "layer_scale='x' must be a finite number or None"),
    "class_token": ({"class_token": "maybe"}, "unknown class_token='maybe'; .* True, False, None"),
    "a width that is a truth value": ({"width": True}, "width=True must be a whole number"),
    "image_size": ({"image_size": 230}, "230 x 230 pixels .*16 x 16.* 224 and 240"),
    "rectangular image_size": ({"image_size": (224, 100)}, "224 x 100 .* widths 96 and 112"),
    "image smaller than patch": ({"image_size": 8}, "8 x 8 .* heights are 16,"),
    "heads": ({"heads": 7}, "width=768 is not a multiple of heads, 7.*763 and 770"),
    "sincos width": (
        {"positions": "sincos2d", "width": 42, "heads": 2},
        "width=42 .*40 and 44",
    ),
    "sincos of big_vision": (
        {"positions": "sincos2d_big_vision", "width": 4, "heads": 2},
        "width of 8 or more",
    ),
    "pool": ({"pool": "gap"}, "pool='gap'.*'cls', 'mean', 'cls.mean', 'map', 'none'"),
    "pool_norm": ({"pool_norm": "both"}, "'before', 'after'"),
    "positions": ({"positions": "rope"}, "positions='rope'.*'learned'"),
    "norm_order": ({"norm_order": "mid"}, "'pre', 'post'"),
    "activation": ({"activation": "selu"}, "'gelu', 'gelu_tanh', 'quick_gelu', 'relu'"),
    "init_scheme": ({"init_scheme": "xavier"}, "'vit', 'trunc02', 'normal02'"),
    "patch_embed_method": ({"patch_embed_method": "fft"}, "'conv', 'dense'"),
    "pos_resize": ({"pos_resize": "area"}, "'cubic', 'bilinear'.*'torch-bicubic'.*'corner-bi"),
    "mlp": ({"mlp": "geglu"}, "mlp='geglu'.*'plain', 'swiglu'"),
    "activation of a gate": (
        {"mlp": "swiglu", "activation": "relu"},
        "activation='relu' has no place in mlp='swiglu'.*remove activation",
    ),
    "distilled": ({"distilled": "yes"}, "distilled='yes'.*True, False"),
    "pool of a distilled model": (
        {"distilled": True, "pool": "mean"},
        "pool='mean' does not go with distilled=True.*use pool=",
    ),
    "norm of a distilled model": (
        {"distilled": True, "pool_norm": "after"},
        "pool_norm='after' does not go with distilled=True",
    ),
    "representation of a distilled model": (
        {"distilled": True, "representation_size": 768},
        "representation_size=768 does not go with distilled=True",
    ),
    "dtype": ({"dtype": "bf16"}, "dtype='bf16'.*'bfloat16'"),
    "attention_dropout": (
        {"attention_dropout": 1.5},
        "attention_dropout=1.5 is not a rate; use a number from 0",
    ),
    "projection_dropout": ({"projection_dropout": -0.1}, "projection_dropout=-0.1"),
    "mlp_dropout": ({"mlp_dropout": 2}, "mlp_dropout=2"),
    "position_dropout": ({"position_dropout": "0.1"}, "position_dropout='0.1'"),
    "drop_path": ({"drop_path": float("nan")}, "drop_path=nan"),
    "class token": ({"pool": "cls", "class_token": False}, "class_token=False.*'mean' or 'map'"),
    "depth": ({"depth": 0}, "depth=0 .*at least 1"),
    "num_classes": ({"num_classes": -1}, "num_classes=-1 .*at least 0"),
    "registers": ({"registers": 1.5}, "registers=1.5"),
    "patch_size": ({"patch_size": (16, 0)}, r"patch_size=\(16, 0\)"),
    "three sides": ({"image_size": (224, 224, 3)}, "image_size=.*two: .height, width"),
    "norm_eps": ({"norm_eps": 0}, "norm_eps=0 "),
    "mlp_ratio": ({"mlp_ratio": -4}, "mlp_ratio=-4 "),
    "attention_type": ({"attention_type": "flash"}, "unknown attention_type='flash'.*'performer'"),
    "dropped weights of performer": (
        {"attention_type": "performer", "attention_dropout": 0.1},
        "attention_dropout=0.1 drops weights, and attention_type='performer' never has them",
    ),
    "dropped weights of linear": (
        {"attention_type": "linear", "attention_dropout": 0.1},
        "'linear' never has them; use attention_dropout=0.0",
    ),
    "local_window": (
        {"attention_type": "local", "local_window": 8},
        "local_window=8 must be odd.*7 and 9",
    ),
    "linformer_rank": (
        {"attention_type": "linformer", "linformer_rank": 198},
        "linformer_rank=198 is more than the number of tokens; use at most 197",
    ),
    "attention_impl": (
        {"attention_type": "local", "attention_impl": "chunked"},
        "attention_impl='chunked' is for softmax.*remove attention_impl",
    ),
    "performer_features": ({"performer_features": 0}, "performer_features=0 .*at least 1"),
    "performer_seed": ({"performer_seed": -1}, "performer_seed=-1 .*at least 0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_construction_says_what_is_wrong(mistake):
    fields, sentence = MISTAKES[mistake]
    with pytest.raises(ValueError, match=sentence) as error:
        ViT(**fields)
    assert "\n" not in str(error.value)


def test_a_head_dim_of_its_own_lifts_the_tie_between_width_and_heads():
    ViT(width=768, heads=7, head_dim=64)


BAD_IMAGES = {
    "no batch axis": ((32, 32, 3), "float32", r"got the shape \(32, 32, 3\).*images\[None\]"),
    "channels": ((1, 32, 32, 1), "float32", "takes 3 channels .*in_channels=1"),
    "channels first": ((1, 3, 32, 32), "float32", r"3 channels in the last axis.*\(1, 3, 32, 32\)"),
    "uint8": ((1, 32, 32, 3), "uint8", "already normalised, got uint8"),
    "height": ((1, 36, 32, 3), "float32", "36 x 32 .*8 x 8.* heights are 32 and 40"),
}


@pytest.mark.parametrize("mistake", BAD_IMAGES)
def test_the_call_says_what_is_wrong_with_the_images(mistake):
    shape, dtype, sentence = BAD_IMAGES[mistake]
    model = ViT(image_size=32, patch_size=8, width=8, depth=1, heads=1, num_classes=2)
    with pytest.raises(ValueError, match=sentence):
        trace_init(model, jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)))


@pytest.mark.parametrize(
    ("value", "unit", "said"), [(230, 16, "224 and 240"), (8, 16, "16"), (32, 16, "32")]
)
def test_nearest_multiples(value, unit, said):
    assert nearest_multiples(value, unit) == said
