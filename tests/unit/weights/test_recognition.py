"""What a file is, by its names and its config.json; and what is said where it cannot be read."""

import numpy as np
import pytest

from tests.support.stored import stored
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import timm
from vit_jax.weights.convert import make_record
from vit_jax.weights.formats import Hints, ModelSpec
from vit_jax.weights.recognition import find_model

VIT = stored("timm_vit").tensors
ONE = np.ones((1,), np.float32)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"model_type": "glpn", "architectures": ["GLPNForDepthEstimation"]},
            r"model_type = 'glpn', 'GLPNForDepthEstimation'.*nearest .* is PVT v2",
        ),
        ({"model_type": "detr"}, r"model_type = 'detr' of transformers.*nearest .* is ResNet"),
        ({"model_type": "eomt_dinov3"}, r"model_type = 'eomt_dinov3'.*nearest .* is DINOv2"),
        ({"model_type": "mobilevit"}, r"model_type = 'mobilevit'.*nearest .* is ViT"),
        ({"model_type": "swin2sr"}, r"model_type = 'swin2sr'.*nearest .* is Swin"),
        ({"model_type": ["x"]}, r"model_type = \['x'\]"),
        (
            {"architecture": "maxvit_tiny_tf_224"},
            r"'maxvit_tiny_tf_224' of timm.*nearest one is ViT",
        ),
        ({"architecture": "coatnet_0_rw_224"}, r"'coatnet_0_rw_224' of timm.*nearest one is ViT"),
        (
            {"architecture": "tf_efficientnetv2_s"},
            r"'tf_efficientnetv2_s' of timm.*nearest one is EfficientNet",
        ),
        (
            {"architectures": ["MyNet"]},
            r"'MyNet', and its names \(stem.weight, .*nearest one is ViT",
        ),
    ],
)
def test_a_model_that_config_json_names_is_named_with_the_nearest_that_is_read(config, expected):
    with pytest.raises(UserError, match=rf"config.json says that this is .*{expected}"):
        find_model({"stem.weight": ONE, "stages.0.weight": ONE}, config)


def test_a_model_type_that_is_not_read_is_believed_before_the_names():
    """The tensors of a transformer of spectrograms are called as those of ViT."""
    with pytest.raises(UserError, match="model_type = 'audio-spectrogram-transformer'"):
        find_model(stored("hf_vit").tensors, {"model_type": "audio-spectrogram-transformer"})


@pytest.mark.parametrize(
    ("case", "architecture"),
    [
        ("convnext_timm", "edgenext_small"),
        ("convnext_timm", "test_convnext2"),
        ("mixer_timm", "gmixer_24_224"),
        ("timm_vit", "hiera_base_224"),
        ("timm_vit", "qwen3_vit_88m"),
    ],
)
def test_an_architecture_of_timm_with_the_names_of_another_is_refused(case, architecture):
    tensors = stored(case).tensors
    with pytest.raises(UserError, match=f"'{architecture}' of timm, which has names of .*nearest"):
        find_model(tensors, {"architecture": architecture})
    find_model(tensors, {"architecture": stored(case).config["architecture"]})


def test_a_timm_model_inside_transformers_own_class_is_timms():
    config = {"model_type": "timm_wrapper", "architecture": "vit_tiny_patch16_224"}
    tensors = {f"timm_model.{name}": array for name, array in VIT.items()}
    found, without = find_model(tensors, config)
    assert found.name == "timm"
    assert without.keys() == VIT.keys()


# A name that tells the architecture, as timm and transformers have it.
OTHERS = {
    "blocks.3.proj.weight": "Hiera",
    "blocks.0.attn.rel_pos_h": "SAM's ViT",
    "blocks.0.attn.rel_pos.mlp.fc1.weight": "relative positions",
    "blocks.0.attn.lambda_q1": "differential attention",
    "blocks.0.attn.norm.weight": "BEiT-3",
    "pos_embed_window": "SAM 2's Hiera",
    "transition1.0.0.weight": "HRNet",
    "layer1.0.convs.0.weight": "Res2Net",
    "layer1.0.se.fc1.weight": "squeeze and excitation",
    "encoder.stages.0.0.dwconv.kernel": "ConvNeXt V2 with sparse convolutions",
    "stages.1.blocks.2.xca.temperature": "EdgeNeXt",
}


@pytest.mark.parametrize(("name", "looks_like"), OTHERS.items())
@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_name_that_only_one_architecture_has_tells_it(name, looks_like, prefix):
    tensors = {prefix + known: array for known, array in (VIT | {name: ONE}).items()}
    with pytest.raises(UserError, match=f"looks like .*{looks_like}"):
        find_model(tensors)


# ------------------------------------------------------------------------- bounds on the work


def test_a_stack_or_an_image_that_no_model_has_is_refused_before_it_is_built():
    case = stored("timm_vit")
    deep = case.tensors | {f"blocks.{i}.norm1.weight": ONE for i in range(300)}
    with pytest.raises(UserError, match="has 300 consecutive blocks.*at most 256"):
        timm.describe(deep, case.config, Hints())
    wide = {**case.config, "model_args": {"img_size": 10**6}}
    with pytest.raises(
        UserError, match="img_size = 1000000 is larger than any.*sides of at most 8192 pixels"
    ):
        timm.describe(case.tensors, wide, Hints())
    fields = {"depths": (200, 200, 200), "image_size": 32, "in_channels": 3, "num_classes": 2}
    with pytest.raises(UserError, match="has 600 blocks in 3 stages"):
        make_record(ModelSpec(fields, {}, "timm"), "ConvNeXt")
