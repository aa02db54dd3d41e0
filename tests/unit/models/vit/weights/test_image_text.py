"""Image towers of CLIP, SigLIP and the Perception Encoder: their answers, and their files again."""

import numpy as np
import pytest

from tests.support.shapes import count_parameters
from tests.support.stored import loaded, stored, write_files
from tests.support.towers import assert_same_answers
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.vit.weights import image_text, perception_encoder
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io.files import read_config, read_tensors
from vit_jax.weights.mapping import joined, write_tensors

HUGGING_FACE = ("clip", "clip_projection", "clip_whole", "siglip", "siglip_whole")
CLASSIFIERS = ("siglip_classifier", "siglip_headless")
# OpenAI's names; what a file does not tell is in the second column.
OPENAI = {
    "openai": "clip",
    "open_clip": "openclip",
    "pe_original": None,
    "pe_lang_original": None,
}


@pytest.fixture(scope="module")
def opened():
    """The record and variables of a file under OpenAI's names, with its origin."""

    def of(name):
        return loaded(f"modern/timm_towers/{name}", OPENAI[name])

    return of


@pytest.mark.parametrize("name", [*HUGGING_FACE, *CLASSIFIERS])
def test_towers_of_transformers_agree_in_every_block(name):
    for other in (False, True):
        assert_same_answers(f"modern/towers/hf_{name}", other=other)


@pytest.mark.parametrize(("name", "origin"), OPENAI.items())
def test_towers_under_openais_names_agree_in_every_block(name, origin):
    """The logits there are projected to the space of images and texts, which is left out."""
    keys = ("tokens", "pooled")
    assert_same_answers(f"modern/timm_towers/{name}", origin=origin, keys=keys)
    if origin:  # the golden files of PE have no other size
        assert_same_answers(f"modern/timm_towers/{name}", origin=origin, keys=keys, other=True)


@pytest.mark.parametrize("name", ["core", "lang", "spatial"])
def test_timms_perception_encoders_agree_in_every_block(name):
    for other in (False, True):
        assert_same_answers(f"modern/timm_towers/pe_{name}", other=other)
    case, (_, variables) = (f(f"modern/timm_towers/pe_{name}") for f in (stored, loaded))
    written = write_tensors(perception_encoder.ROWS, joined(variables))
    assert written.keys() == case.tensors.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, case.tensors[key])


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_towers_of_timm_agree_in_every_block(name):
    for other in (False, True):
        assert_same_answers(f"modern/timm_towers/{name}", other=other)


def test_a_tower_of_timm_in_a_file_of_open_clip():
    for other in (False, True):
        assert_same_answers("modern/timm_towers/open_clip_trunk", origin="timm", other=other)


@pytest.mark.parametrize("name", [*HUGGING_FACE, *CLASSIFIERS])
def test_tensors_of_transformers_go_back_bit_for_bit(name):
    case, (_, variables) = stored(f"modern/towers/hf_{name}"), loaded(f"modern/towers/hf_{name}")
    written = write_tensors(image_text.HUGGING_FACE_ROWS, joined(variables))
    prefix = "vision_model." if any(key.startswith("vision_model.") for key in case.tensors) else ""
    kept = {key: x for key, x in case.tensors.items() if key.startswith((prefix, "classifier"))}
    if name == "siglip_classifier":
        kept = {key: x for key, x in kept.items() if ".head." not in key}
    assert len(written) == len(kept)
    for key, array in written.items():
        own = key if key.startswith("classifier") else prefix + key
        np.testing.assert_array_equal(array, kept[own])


@pytest.mark.parametrize("name", OPENAI)
def test_tensors_under_openais_names_go_back_bit_for_bit(name, opened):
    case, (_, variables) = stored(f"modern/timm_towers/{name}"), opened(name)
    prefix = "visual." if "visual.conv1.weight" in case.tensors else ""
    written = write_tensors(image_text.OPENAI_ROWS, joined(variables))
    left_out = {f"{prefix}proj"}
    kept = {key for key in case.tensors if key.startswith(prefix)} - left_out
    assert {prefix + key for key in written} == kept
    for key, array in written.items():
        np.testing.assert_array_equal(array, case.tensors[prefix + key])


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_a_written_folder_has_the_same_tensors(name, tmp_path):
    folder = write_pretrained(tmp_path, "huggingface", *loaded(f"modern/towers/hf_{name}"))
    case = stored(f"modern/towers/hf_{name}")
    config, written = read_config(folder), read_tensors(folder)
    for key in ("model_type", "architectures", "hidden_act", "layer_norm_eps", "image_size"):
        assert config[key] == case.config[key]
    assert written.keys() == case.tensors.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, case.tensors[key])


def test_which_gelu_a_bare_file_is_for_is_asked_for(tmp_path):
    tensors = stored("modern/timm_towers/openai").tensors
    folder = write_files(tmp_path, tensors)
    with pytest.raises(UserError, match="--origin=clip or --origin=openclip"):
        read_pretrained(folder, Hints(heads=2))
    quick, exact = (
        read_pretrained(folder, Hints(origin=origin, heads=2))[0].create_model().activation
        for origin in ("clip", "openclip")
    )
    assert (quick, exact) == ("quick_gelu", "gelu")
    with pytest.raises(UserError, match="--heads=NUMBER"):
        read_pretrained(folder, Hints(origin="clip"))


def test_a_tower_of_texts_alone_is_no_model(tmp_path):
    tensors = stored("modern/timm_towers/openai").tensors
    texts = {key: x for key, x in tensors.items() if not key.startswith("visual.")}
    with pytest.raises(UserError, match="no supported library"):
        read_pretrained(write_files(tmp_path, texts), Hints(heads=2))


# transformers 5.24 on the meta device: towers alone; 384 pixels are 27 patches of 14, and 6 over.
@pytest.mark.parametrize(
    ("name", "fields", "parameters"),
    [
        ("ViT-B/16", {"pool": "map"}, 92_884_224),
        ("ViT-So400m/14", {"pool": "map", "image_size": 378}, 428_225_600),
        ("ViT-B/16", {"embed_norm": True, "patch_bias": False}, 85_799_424),
    ],
)
def test_published_towers_have_the_published_numbers_of_parameters(name, fields, parameters):
    assert count_parameters(create_model(name, num_classes=0, **fields)) == parameters
