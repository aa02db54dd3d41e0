"""BEiT of timm and of its authors: their answers, their files again, sizes, what is refused."""

import numpy as np
import pytest

from tests.support.shapes import count_parameters
from tests.support.stored import loaded, stored
from tests.support.towers import assert_same_answers
from vit_jax.errors import UserError
from vit_jax.models import create_model, model_fields
from vit_jax.models.vit.weights import beit
from vit_jax.weights.convert import model_name, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.io.files import read_config, read_tensors
from vit_jax.weights.recognition import find_model

NAMES = ("modern/beit/timm", "modern/beit/original")
TABLE = "blocks.0.attn.relative_position_bias_table"


def described(config=None, tensors=(), hints=Hints("beitv2")):  # noqa: B008
    return beit.describe({**stored(NAMES[1]).tensors, **dict(tensors)}, config, hints)


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_the_origins(name):
    assert_same_answers(name)


def test_tables_are_resized_as_in_timm():
    """One side longer and one shorter; timm's coordinates are float32."""
    assert_same_answers(NAMES[0], other=True)


@pytest.mark.parametrize("name", NAMES)
def test_written_tensors_are_those_that_were_read(name, tmp_path):
    """But for the index of pairs in the authors' files."""
    case = stored(name)
    folder = write_pretrained(tmp_path, "timm", *loaded(name))
    written = read_tensors(folder)
    assert written.keys() == {key for key in case.tensors if not key.endswith("_index")}
    for key, array in written.items():
        np.testing.assert_array_equal(array, case.tensors[key], err_msg=key)
    architecture = (case.config or {}).get("architecture", "beit_base_patch16_224")
    assert read_config(folder)["architecture"] == architecture


@pytest.mark.parametrize(
    ("size", "pixels", "classes", "expected"),
    [
        ("B", 224, 0, 85_761_984),
        ("B", 384, 1000, 86_744_104),
        ("L", 224, 0, 303_405_568),
        ("L", 512, 1000, 305_674_728),
    ],
)
def test_sizes_have_the_parameters_of_timm(size, pixels, classes, expected):
    name = f"BEiT-{size}/16"
    model = create_model(name, image_size=pixels, num_classes=classes)
    assert count_parameters(model) == expected
    assert model_name(model_fields(name)) == name


def test_versions_have_the_same_tensors_and_their_own_preprocessing():
    with pytest.raises(UserError, match="use --origin=beit or --origin=beitv2"):
        described(hints=Hints())
    assert described(hints=Hints("beit")).preprocessing["mean"] == (0.5, 0.5, 0.5)
    assert described().preprocessing["mean"] == (0.485, 0.456, 0.406)
    for architecture in ("beit", "beitv2"):
        config = {"architecture": f"{architecture}_base_patch16_224"}
        assert described(config, hints=Hints()).origin == architecture


def test_heads_and_grid_are_those_of_the_tables():
    spec = described()
    assert (spec.fields["heads"], spec.fields["image_size"]) == (2, 16)
    oblong = np.zeros((3 + 3 * 11, 2), np.float32)
    with pytest.raises(UserError, match="36 rows, and a grid of 3 x 3 .*--file-size=HEIGHTxWIDTH"):
        described(tensors={TABLE: oblong})
    spec = described(tensors={TABLE: oblong}, hints=Hints("beit", image_size=(8, 24)))
    assert spec.fields["image_size"] == (8, 24)
    with pytest.raises(UserError, match="52 rows, and a grid of 8 x 8 patches has 228"):
        described(hints=Hints("beit", image_size=(32, 32)))
    with pytest.raises(UserError, match="has shape \\(7,\\)"):
        described(tensors={TABLE: np.zeros(7)})


def test_files_before_fine_tuning_are_refused():
    with pytest.raises(UserError, match="looks like BEiT before fine-tuning, whose blocks share"):
        find_model(stored("modern/beit/pretrained").tensors)


def test_arguments_that_change_the_model_are_refused():
    config = stored(NAMES[0]).config
    arguments = {**config["model_args"], "use_abs_pos_emb": True}
    with pytest.raises(UserError, match="'use_abs_pos_emb' = True"):
        described({**config, "model_args": arguments})


@pytest.mark.parametrize("field", [{"norm_eps": 1e-12}, {"registers": 2}, {"activation": "relu"}])
def test_what_timms_arguments_cannot_say_is_refused(field):
    fields = {**model_fields("BEiT-B/16"), **field}
    [name] = field
    with pytest.raises(UserError, match=f"timm's config.json does not support {name} = "):
        beit.FORMAT.config(fields, loaded(NAMES[0])[0].preprocessing, ())
