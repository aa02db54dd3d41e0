"""DINOv3 of timm and of its authors: their answers, their files again, sizes, what is refused."""

import jax
import numpy as np
import pytest

from tests.support.shapes import count_parameters
from tests.support.stored import GOLDEN, loaded, stored, write_files
from tests.support.towers import assert_same_answers
from vit_jax.errors import UserError
from vit_jax.models import create_model, model_fields
from vit_jax.models.vit.weights import dinov3
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io.files import read_config, read_tensors
from vit_jax.weights.mapping import joined, write_tensors
from vit_jax.weights.recognition import find_model

TIMM = tuple(f"modern/dinov3/{name}" for name in ("timm", "timm_plus", "timm_qkvb"))
ORIGINAL = ("modern/dinov3/original", "modern/dinov3/original_plus")


def original(hints=Hints(heads=2), tensors=(), without=()):  # noqa: B008
    kept = {**stored(ORIGINAL[0]).tensors, **dict(tensors)}
    kept = {name: array for name, array in kept.items() if name not in without}
    return dinov3.describe_original(kept, None, hints)


def of_timm(config, tensors=(), hints=Hints()):  # noqa: B008
    return dinov3.describe({**stored(TIMM[0]).tensors, **dict(tensors)}, config, hints)


@pytest.mark.parametrize("name", [*TIMM, *ORIGINAL])
def test_every_block_is_the_origins(name):
    assert_same_answers(name)


@pytest.mark.parametrize("name", [TIMM[1], ORIGINAL[0]])
def test_another_size_needs_no_resize(name):
    assert_same_answers(name, other=True)


def test_the_rounding_of_the_authors_periods_shows():
    record, variables = loaded(ORIGINAL[0])
    assert record.fields["rotary"] == "dinov3_bfloat16"
    exact = record.create_model().clone(rotary="dinov3")
    logits = jax.jit(exact.apply)(variables, stored(ORIGINAL[0]).answers["images"])
    with np.load(GOLDEN / f"{ORIGINAL[0]}.npz") as file:
        expected = file["float32/logits"]
    assert np.abs(logits - expected).max() < 2e-5 * np.abs(expected).max()
    assert np.abs(logits - stored(ORIGINAL[0]).answers["logits"]).max() > 1e-3


@pytest.mark.parametrize("name", TIMM)
def test_a_written_folder_is_the_one_that_was_read(name, tmp_path):
    case = stored(name)
    folder = write_pretrained(tmp_path, "timm", *loaded(name))
    written = read_tensors(folder)
    assert written.keys() == case.tensors.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, case.tensors[key], err_msg=key)
    config = read_config(folder)
    assert config["architecture"] == case.config["architecture"]
    assert config["global_pool"] == case.config["global_pool"]
    assert config["model_args"]["qkv_bias"] == (name == TIMM[2])


@pytest.mark.parametrize("name", ORIGINAL)
def test_the_authors_tensors_go_back_bit_for_bit(name):
    case, (_, variables) = stored(name), loaded(name)
    written = write_tensors(dinov3.ORIGINAL_ROWS, joined(variables))
    if name == ORIGINAL[1]:  # gated
        for key in [key for key in written if ".mlp.fc" in key]:
            parts = ("w1", "w2") if ".fc1." in key else ("w3",)
            halves = np.split(written.pop(key), len(parts))
            written |= {
                key.replace(key.split(".")[3], one): x for one, x in zip(parts, halves, strict=True)
            }
    dropped = ("mask", "periods", "local_cls_norm")
    expected = {key: x for key, x in case.tensors.items() if not any(d in key for d in dropped)}
    assert written.keys() == expected.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, expected[key], err_msg=key)


@pytest.mark.parametrize(
    ("size", "without_bias", "expected"),
    [
        ("S", 21_586_944, 21_596_160),
        ("S+", 28_683_264, 28_692_480),
        ("B", 85_641_216, 85_659_648),
        ("L", 303_079_424, 303_128_576),
        ("H+", 840_509_440, 840_591_360),
        ("7B", 6_716_030_976, None),
    ],
)
def test_sizes_have_the_parameters_of_timm(size, without_bias, expected):
    name = f"DINOv3-{size}/16"
    assert count_parameters(create_model(name, qkv_bias=False)) == without_bias
    assert count_parameters(create_model(name)) == (expected or without_bias)
    fields = model_fields(name)
    assert model_name(fields) == model_name({**fields, "rotary": "dinov3_bfloat16"}) == name


def test_the_pooling_is_that_of_the_library():
    assert loaded(TIMM[0])[0].fields["pool"] == "mean"
    assert loaded(TIMM[1])[0].fields["pool"] == "cls"
    assert loaded(ORIGINAL[0])[0].fields["pool"] == "cls"


def test_lingbot_is_the_same_architecture_with_the_class_token():
    spec = of_timm({"architecture": "vit_small_patch16_lingbot"}, hints=Hints(heads=2))
    assert (spec.fields["pool"], spec.fields["norm_eps"]) == ("cls", 1e-5)


def test_web_and_satellite_images_are_told_apart_or_asked_for():
    large = {"patch_embed.proj.weight": np.zeros((1024, 3, 16, 16), np.float32)}
    with pytest.raises(UserError, match="--origin=dinov3 or --origin=dinov3-sat493m"):
        of_timm({}, large)
    spec = of_timm({}, large, Hints("dinov3-sat493m"))
    assert (spec.fields["heads"], spec.fields["image_size"]) == (16, 256)
    assert spec.preprocessing["mean"] == (0.430, 0.411, 0.296)
    mean = {"pretrained_cfg": {"mean": [0.430, 0.411, 0.296], "std": [0.213, 0.156, 0.143]}}
    assert of_timm(mean, large).origin == "dinov3-sat493m"
    # The authors' ViT-L of satellite images has a norm of its own for small crops.
    large |= {"rope_embed.periods": (100.0 ** (np.arange(16) / 16)).astype(np.float32)}
    assert original(Hints(), large).origin == "dinov3"
    local = {"local_cls_norm.weight": np.ones(1024)}
    assert original(Hints(), {**large, **local}).origin == "dinov3-sat493m"


def test_periods_tell_heads_and_their_rounding():
    periods = (100.0 ** (np.arange(4) / 4)).astype(np.float32)
    fields = original(Hints(), {"rope_embed.periods": periods}).fields
    assert (fields["rotary"], fields["heads"]) == ("dinov3", 2)
    with pytest.raises(UserError, match="--heads=4 contradicts"):
        original(Hints(heads=4))
    with pytest.raises(UserError, match="rope_embed.periods has 4 numbers up to 15.8"):
        original(tensors={"rope_embed.periods": periods / 2})
    without = original(without=("rope_embed.periods",)).fields
    assert (without["rotary"], without["heads"]) == ("dinov3_bfloat16", 2)
    with pytest.raises(UserError, match="--heads=NUMBER"):
        original(Hints(), without=("rope_embed.periods",))


def test_a_mask_that_hides_more_than_the_keys_is_refused():
    mask = np.zeros(96, np.float32)
    with pytest.raises(UserError, match="bias_mask should be 1 for queries and values and 0 for"):
        original(tensors={"blocks.1.attn.qkv.bias_mask": mask})
    masks = [f"blocks.{i}.attn.qkv.bias_mask" for i in range(2)]
    assert original(without=masks).fields["qkv_bias"] is True


def test_parts_of_training_are_skipped_with_their_reasons(tmp_path, capsys):
    case = stored(ORIGINAL[1])
    read_pretrained(write_files(tmp_path, case.tensors), case.hints)
    said = capsys.readouterr().err
    assert "local_cls_norm.weight (the norm of small crops' class tokens, for pre-train" in said
    assert "mask_token (the token in place of hidden patches, for pre-training)" in said


@pytest.mark.parametrize("name", ["vit_large_patch16_sapiens2", "vit_medium_patch16_rope_reg1_gap"])
def test_another_architecture_with_these_names_is_refused(name):
    config = {**stored(TIMM[0]).config, "architecture": name}
    with pytest.raises(UserError, match=f"{name}' of timm, which has names of ViT but another"):
        find_model(stored(TIMM[0]).tensors, config)


@pytest.mark.parametrize(
    "field", [{"norm_eps": 1e-6}, {"rotary": "dinov3_bfloat16"}, {"mlp_norm": True}]
)
def test_what_timms_arguments_cannot_say_is_refused(field):
    fields = {**model_fields("DINOv3-B/16"), "class_token": True, **field}
    [name] = field
    with pytest.raises(UserError, match=f"timm's config.json does not support {name} = "):
        dinov3.FORMATS[0].config(fields, loaded(TIMM[0])[0].preprocessing, ())
