"""AIMv2 of three libraries, and ViT-5: their answers, and their files again."""

import numpy as np
import pytest

from tests.support.stored import loaded, stored
from tests.support.towers import assert_same_answers
from vit_jax.errors import UserError
from vit_jax.models.vit.weights import aimv2, vit5
from vit_jax.weights.convert import write_pretrained
from vit_jax.weights.io.files import read_config, read_tensors
from vit_jax.weights.mapping import joined, write_tensors

ROWS = {"timm": aimv2.TIMM_ROWS, "original": aimv2.ORIGINAL_ROWS, "hf": aimv2.HUGGING_FACE_ROWS}


def as_ours(tokens):
    """ViT-5 has its registers behind the patches, a model here behind the class token."""
    return np.concatenate([tokens[:, :1], tokens[:, -4:], tokens[:, 1:-4]], axis=1)


@pytest.mark.parametrize("name", ["timm", "original", "hf", "hf_native"])
def test_aimv2_agrees_with_its_origin_in_every_block(name):
    if name == "hf":  # its pooling by attention is not read, and its table is not resized
        assert_same_answers(f"modern/aimv2/{name}", keys=["tokens"])
        return
    for other in (False, True):
        assert_same_answers(f"modern/aimv2/{name}", other=other)


@pytest.mark.parametrize("other", [False, True])
def test_vit5_agrees_with_its_authors_in_every_block(other):
    assert_same_answers("modern/vit5/original", other=other, order=as_ours)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        *((f"modern/aimv2/{name}", rows) for name, rows in ROWS.items()),
        ("modern/vit5/original", vit5.ROWS),
    ],
)
def test_tensors_go_back_bit_for_bit(name, rows):
    case, (_, variables) = stored(name), loaded(name)
    written = write_tensors(rows, joined(variables))
    left_out = {key for key in case.tensors if key.startswith("head.") and "hf" in name}
    left_out |= {key for key in case.tensors if "freqs" in key}
    assert written.keys() == case.tensors.keys() - left_out
    for key, array in written.items():
        np.testing.assert_array_equal(array, case.tensors[key])


@pytest.mark.parametrize(
    ("to", "name", "kind"),
    [
        ("timm", "modern/aimv2/timm", "aimv2_large_patch14_224"),
        ("huggingface", "modern/aimv2/hf_native", "aimv2_vision_model"),
    ],
)
def test_a_written_folder_has_the_same_tensors(to, name, kind, tmp_path):
    folder = write_pretrained(tmp_path, to, *loaded(name))
    config, kept = read_config(folder), stored(name).tensors
    assert config.get("architecture", config.get("model_type")) == kind
    written = read_tensors(folder)
    assert written.keys() == kept.keys()
    for key, array in written.items():
        np.testing.assert_array_equal(array, kept[key])


def test_what_a_library_cannot_say_is_refused(tmp_path):
    with pytest.raises(UserError, match="does not support pos_on_cls|does not support rotary"):
        write_pretrained(tmp_path, "timm", *loaded("modern/vit5/original"))
