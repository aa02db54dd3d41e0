"""timm's config.json: which of its layers goes first, and what its defaults mean."""

import numpy as np
import pytest

from tests.support.stored import TIMM_PREPROCESSING, stored
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import timm
from vit_jax.weights.formats import Hints

CASE = stored("timm_vit")
CONFIG = CASE.config
NORM = {name: CASE.tensors[name] for name in ("norm.weight", "norm.bias")}
VECTOR = np.ones(16, np.float32)
# With the norm after the pooling, as timm calls it then.
AFTER = {n: x for n, x in CASE.tensors.items() if n not in NORM}
AFTER |= {f"fc_{name}": x for name, x in NORM.items()}
CLIP = {n: x for n, x in CASE.tensors.items() if n != "patch_embed.proj.bias"}
CLIP |= {"norm_pre.weight": VECTOR, "norm_pre.bias": VECTOR}
SCALED = {f"blocks.{i}.ls{n}.gamma": VECTOR for i in range(2) for n in (1, 2)}


def described(tensors=CASE.tensors, config=CONFIG, hints=Hints()):  # noqa: B008
    return timm.describe(timm.normalize_names(tensors), config, hints)


def config(root=(), pretrained=(), without=(), **arguments):
    whole = {
        **CONFIG,
        "model_args": {**CONFIG["model_args"], **arguments},
        "pretrained_cfg": {**CONFIG["pretrained_cfg"], **dict(pretrained)},
        **dict(root),
    }
    return {name: value for name, value in whole.items() if name not in without}


# ------------------------------------------------------------------------------------- pooling


@pytest.mark.parametrize(
    ("tensors", "said", "expected"),
    [
        (AFTER, {"root": {"global_pool": "token"}}, "cls"),
        (AFTER, {"pretrained": {"global_pool": "token"}}, "cls"),
        (AFTER, {"root": {"global_pool": "avg"}}, "mean"),
        (AFTER, {"root": {"global_pool": "avg"}, "global_pool": "token"}, "cls"),
        (AFTER, {}, "mean"),  # timm's default: that norm is there where it pools by the mean
        (AFTER, {"fc_norm": True}, "cls"),  # unless it is an argument: then the pooling is its own
        (AFTER, {"fc_norm": True, "root": {"architecture": "vit_base_patch16_gap_224"}}, "mean"),
        (CASE.tensors, {}, "cls"),
        (CASE.tensors, {"root": {"global_pool": "avg"}, "fc_norm": False}, "mean"),
    ],
)
def test_the_pooling_is_what_timm_would_build(tensors, said, expected):
    fields = described(tensors, config(**said)).fields
    assert fields["pool"] == expected
    assert fields["pool_norm"] == ("after" if "fc_norm.weight" in tensors else "before")


@pytest.mark.parametrize("pool", ["map", "token"])
def test_a_pooling_without_its_tensors_is_refused(pool):
    tensors = {n: x for n, x in CASE.tensors.items() if n != "cls_token"}
    with pytest.raises(UserError, match=f"global_pool = '{pool}', but the tensors have no class"):
        described(tensors | {"pos_embed": np.zeros((1, 16, 16))}, config(global_pool=pool))


def test_prefix_tokens_in_the_mean_are_refused():
    with pytest.raises(UserError, match="pool_include_prefix"):
        described(AFTER, config(global_pool="avg", pool_include_prefix=True))
    described(config=config(global_pool="token", pool_include_prefix=True))


# ------------------------------------------------------------------------------- other arguments


@pytest.mark.parametrize(
    ("architecture", "eps"),
    [
        ("vit_base_patch32_clip_224", 1e-5),
        ("vit_large_patch14_clip_quickgelu_336", 1e-5),
        ("vit_base_patch16_224", 1e-6),
    ],
)
def test_a_norm_before_the_blocks_has_torchs_epsilon_in_clip_alone(architecture, eps):
    fields = described(CLIP, config({"architecture": architecture})).fields
    assert (fields["embed_norm"], fields["norm_eps"]) == (True, eps)


@pytest.mark.parametrize(
    "argument",
    [
        {"norm_layer": "rmsnorm"},
        {"final_norm": False},
        {"attn_layer": "diff"},
        {"block_fn": "ResPostBlock"},
        {"scale_attn_norm": True},
        {"pos_embed": "none"},
        {"an_argument_of_tomorrow": 3},
    ],
)
def test_an_argument_that_changes_what_is_computed_is_refused_by_name(argument):
    [(name, value)] = argument.items()
    with pytest.raises(
        UserError, match=f"model_args has '{name}' = {value!r}, which changes timm's"
    ):
        described(config=config(**argument))


@pytest.mark.parametrize(
    "argument",
    [
        *({"norm_layer": "layernorm"}, {"final_norm": True}, {"drop_path_rate": 0.1}),
        *({"attn_layer": None}, {"class_token": True}, {"qk_norm": False}, {"mlp_ratio": 3}),
    ],
)
def test_arguments_that_say_what_is_so_or_change_nothing_are_read(argument):
    assert described(config=config(**argument)).fields == described().fields


@pytest.mark.parametrize(
    "argument",
    [
        *({"class_token": False}, {"reg_tokens": 4}, {"embed_dim": 32}, {"depth": 3}),
        *({"pre_norm": True}, {"qkv_bias": False}, {"qk_norm": True}, {"init_values": 1e-5}),
        {"in_chans": 1},
    ],
)
def test_an_argument_that_denies_the_tensors_is_refused(argument):
    [name] = argument
    with pytest.raises(UserError, match=rf"config.json: {name} = .*the tensors have .*different"):
        described(config=config(**argument))


def test_a_gated_mlp_has_its_own_activation_or_is_refused():
    tensors = dict(CASE.tensors)
    for i in range(2):
        tensors[f"blocks.{i}.mlp.fc2.weight"] = np.zeros((16, 24), np.float32)
    assert described(tensors).fields["mlp"] == "swiglu"
    with pytest.raises(UserError, match=r"act_layer = 'gelu' is not supported in a gated MLP"):
        described(tensors, config(act_layer="gelu"))


# ------------------------------------------------------------------------- where things may stand


def test_a_file_of_before_has_everything_at_the_root():
    old = {
        "architecture": "vit_tiny_patch16_224",
        "global_pool": "token",
        "labels": ["v", "w", "x", "y", "z"],
        "input_size": [3, 16, 16],
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "crop_pct": 0.7,
        "interpolation": "bilinear",
    }
    description = described(config=old, hints=Hints(heads=2))
    assert description.origin == "timm"
    assert description.class_names == ("v", "w", "x", "y", "z")
    changed = {"crop": 0.7, "interpolation": "bilinear"}
    assert description.preprocessing == {**TIMM_PREPROCESSING, **changed}


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["a", "b", "c", "d", "e"], ("a", "b", "c", "d", "e")),
        ({"0": "a", "1": "b", "2": "c", "3": "d", "4": "e"}, ("a", "b", "c", "d", "e")),
        ({"0": "a", "7": "b"}, None),
        (None, None),
    ],
)
def test_names_of_classes_at_the_root_go_first(names, expected):
    assert described(config=config({"label_names": names})).class_names == expected


# ------------------------------------------------------------------------ without a configuration


def origins_of(tensors):
    with pytest.raises(UserError) as refused:
        described(tensors, None, Hints(heads=2))
    return str(refused.value).rpartition("use ")[2]


@pytest.mark.parametrize(
    ("tensors", "origins"),
    [
        (CLIP, ["timm", "clip", "openclip"]),
        (CASE.tensors | SCALED, ["timm", "deit3", "dinov2"]),
        (CASE.tensors | SCALED | {"reg_token": np.ones((1, 4, 16))}, ["timm", "dinov2"]),
        (stored("timm_map").tensors, ["timm", "siglip"]),
        (AFTER, ["timm", "mae"]),
        (CASE.tensors, ["timm", "deit", "mae", "dino"]),
    ],
)
def test_a_bare_file_that_fits_several_origins_is_asked_for(tensors, origins):
    assert origins_of(tensors) == " or ".join(f"--origin={origin}" for origin in origins)


def test_a_bare_file_of_clip_is_what_its_origin_says():
    theirs = described(CLIP, None, Hints("clip", 2))
    assert (theirs.fields["activation"], theirs.fields["norm_eps"]) == ("quick_gelu", 1e-5)
    assert theirs.preprocessing["mean"] == (0.48145466, 0.4578275, 0.40821073)
    assert theirs.preprocessing["crop"] == 1.0
    open_ones = described(CLIP, None, Hints("openclip", 2))
    assert (open_ones.fields["activation"], open_ones.fields["norm_eps"]) == ("gelu", 1e-5)
    assert open_ones.preprocessing == theirs.preprocessing
    assert described(CLIP, None, Hints("timm", 2)).fields["norm_eps"] == 1e-6


def test_a_bare_file_of_dinov2_with_registers_is_dinov2s_where_that_is_said():
    tensors = CASE.tensors | SCALED | {"reg_token": np.ones((1, 4, 16), np.float32)}
    description = described(tensors, None, Hints("dinov2", 2))
    assert description.preprocessing["mean"] == (0.485, 0.456, 0.406)
    assert description.fields["registers"] == 4


def test_the_names_of_perception_encoder_are_told():
    """A norm before the blocks and attention pooling: no ViT of timm's own has both."""
    tensors = CLIP | {n: x for n, x in stored("timm_map").tensors.items() if "attn_pool" in n}
    with pytest.raises(UserError, match=r"fit Meta's Perception Encoder.*not supported"):
        described(tensors, None, Hints(heads=2))
    assert described(tensors, None, Hints("timm", 2)).fields["pool"] == "map"


def test_a_configuration_without_a_mean_says_no_origin():
    with pytest.raises(UserError, match="fit several origins"):
        described(config={**CONFIG, "pretrained_cfg": {}})
    hints = described(config={**CONFIG, "pretrained_cfg": {}}, hints=Hints("deit"))
    assert hints.preprocessing["mean"] == (0.485, 0.456, 0.406)


def test_one_layer_of_another_width_does_not_decide_for_all():
    """fc1 of both blocks and their biases are 48 wide."""
    for name in ("blocks.0.mlp.fc2.weight", "blocks.0.mlp.fc1.weight"):
        tensors = CASE.tensors | {name: np.zeros((16, 40) if "fc2" in name else (40, 16))}
        assert described(tensors).fields["mlp_width"] == 48
