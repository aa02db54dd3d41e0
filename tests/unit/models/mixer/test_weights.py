"""MLP-Mixers of timm and Google read whole: the numbers come out, and timm's are written back."""

import json

import jax
import numpy as np
import pytest

from tests.support import shapes
from tests.support.stored import stored, write_files
from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.mixer import weights as mixer
from vit_jax.runs import ModelRecord
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.mapping import joined, write_tensors

TOLERANCE = 2e-5  # of the largest number, in float32


def read(case, folder):
    if case == "mixer_google":
        folder.mkdir(exist_ok=True)
        np.savez(folder / "weights.npz", **stored(case).tensors)
        return read_pretrained(folder / "weights.npz", stored(case).hints)
    return read_pretrained(write_files(folder, stored(case).tensors, stored(case).config))


def largest_difference(model, variables, expected):
    """The largest one of any block's output or of the logits, relative to the largest number."""
    logits, kept = shapes.run(model, variables, expected["images"], mutable="intermediates")
    found = {f"block_{i}": kept["intermediates"][f"blocks_{i}"]["out"][0] for i in range(2)}
    return max(
        np.abs(ours - expected[name]).max() / max(1.0, np.abs(expected[name]).max())
        for name, ours in {**found, "logits": logits}.items()
    )


@pytest.mark.parametrize("case", ["mixer_timm", "mixer_google"])
def test_every_block_and_the_logits_are_the_librarys(case, tmp_path):
    record, variables = read(case, tmp_path)
    model = record.create_model()
    expected = stored(case).answers
    assert largest_difference(model, variables, expected) <= TOLERANCE
    wrong = {
        "mixer_timm": ({"activation": "gelu_tanh"}, {"norm_eps": 1e-5}),
        "mixer_google": ({"activation": "gelu"}, {"norm_eps": 1e-5}),
    }
    for fields in wrong[case]:
        other = model.clone(**fields)
        assert largest_difference(other, variables, expected) > 2 * TOLERANCE, fields


def test_the_model_is_told_by_names_shapes_and_configuration(tmp_path):
    record, _ = read("mixer_timm", tmp_path / "timm")
    sizes = {"width": 16, "depth": 2, "patch_size": 4, "num_classes": 5, "in_channels": 3}
    sizes |= {"token_mlp_width": 12, "channel_mlp_width": 32, "norm_eps": 1e-6}
    expected = {**sizes, "image_size": 16, "activation": "gelu"}
    assert (record.name, dict(record.fields)) == ("Mixer", expected)
    assert record.class_names == ("ant", "bee", "cat", "dog", "eel")
    assert record.preprocessing.mean == (0.1, 0.2, 0.3)
    assert (record.preprocessing.crop, record.preprocessing.interpolation) == (0.75, "bilinear")
    record, _ = read("mixer_google", tmp_path / "google")
    expected = {**sizes, "image_size": (16, 24), "activation": "gelu_tanh"}
    assert dict(record.fields) == expected
    assert record.preprocessing.mean == (0.5, 0.5, 0.5)
    assert (record.preprocessing.size, record.preprocessing.resize) == ((16, 24), "squash")


def test_the_tensors_written_for_timm_are_its_own_bit_for_bit(tmp_path):
    _, variables = read("mixer_timm", tmp_path)
    written = write_tensors(mixer.TIMM_ROWS, joined(variables))
    expected = stored("mixer_timm").tensors
    assert written.keys() == expected.keys()
    for name, array in written.items():
        assert array.tobytes() == np.ascontiguousarray(expected[name]).tobytes(), name


def mixer_s_of_few_parameters():
    """The sizes that timm's `mixer_s16_224` fixes, and small ones where arguments say them."""
    fields = {"num_classes": 2, "image_size": 32, "in_channels": 1, "width": 512, "depth": 8}
    fields |= {"token_mlp_width": 7, "channel_mlp_width": 3}
    model, rng = create_model("Mixer-S/16", **fields), np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), abstract_variables(model)
    )
    preprocessing = Preprocessing(size=(32, 32), channels=1, mean=(0.5,), std=(0.25,), crop=0.75)
    return ModelRecord("Mixer-S/16", fields, preprocessing, ("cat", "dog"), "here"), variables


def test_what_is_written_for_timm_is_read_again(tmp_path):
    record, variables = mixer_s_of_few_parameters()
    folder = write_pretrained(tmp_path, "timm", record, variables)
    config = json.loads((folder / "config.json").read_text())
    assert config["architecture"] == "mixer_s16_224"
    # The others are fixed by the name, and timm refuses to be given them.
    assert config["model_args"].keys() == {"img_size", "in_chans", "mlp_ratio"}
    # timm's own arithmetic for the two hidden widths.
    assert [int(ratio * 512) for ratio in config["model_args"]["mlp_ratio"]] == [7, 3]
    again, same = read_pretrained(folder)
    assert again.create_model() == record.create_model()
    assert (again.preprocessing, again.class_names) == (record.preprocessing, record.class_names)
    for one, other in zip(jax.tree.leaves(same), jax.tree.leaves(variables), strict=True):
        assert one.tobytes() == other.tobytes()


def test_a_mixer_whose_sizes_have_no_name_in_timm_is_not_written_for_it(tmp_path):
    record, variables = read("mixer_timm", tmp_path / "theirs")
    with pytest.raises(UserError, match="no Mixer with patches of 4 x 4 and 2 blocks of width 16"):
        write_pretrained(tmp_path / "ours", "timm", record, variables)


def test_what_timm_cannot_say_is_refused(tmp_path):
    record, variables = read("mixer_google", tmp_path / "theirs")
    with pytest.raises(
        UserError, match="timm's config.json does not support activation = 'gelu_tanh'"
    ):
        write_pretrained(tmp_path / "ours", "timm", record, variables)


def test_googles_names_under_a_prefix_are_read_as_well(tmp_path):
    case = stored("mixer_google")
    _, expected = read("mixer_google", tmp_path)
    for prefix in ("params/", "opt/target/"):
        tensors = {prefix + name: array for name, array in case.tensors.items()}
        np.savez(tmp_path / "other.npz", **tensors)
        _, found = read_pretrained(tmp_path / "other.npz", case.hints)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            assert one.tobytes() == np.asarray(other).tobytes()


def test_a_head_of_zeros_is_told(tmp_path, capsys):
    case = stored("mixer_google")
    tensors = {**case.tensors, "head/kernel": np.zeros((16, 21843), np.float32)}
    tensors["head/bias"] = np.zeros(21843, np.float32)
    np.savez(tmp_path / "weights.npz", **tensors)
    read_pretrained(tmp_path / "weights.npz", case.hints)
    assert "head of 21843 outputs is all zeros" in capsys.readouterr().err


def test_what_the_file_does_not_say_is_asked_for(tmp_path):
    case = stored("mixer_google")
    np.savez(tmp_path / "weights.npz", **case.tensors)
    with pytest.raises(UserError, match="24 patches, which are not a square; .*--file-size"):
        read_pretrained(tmp_path / "weights.npz")
    with pytest.raises(UserError, match="16 x 16 pixels has 4 x 4 patches of 4 x 4, .* for 24"):
        read_pretrained(tmp_path / "weights.npz", Hints(image_size=(16, 16)))
    # Without a config.json there are Google's and MIIL's weights of the same names.
    write_files(tmp_path / "bare", stored("mixer_timm").tensors)
    with pytest.raises(UserError, match="--origin=timm or --origin=miil"):
        read_pretrained(tmp_path / "bare")
    record, _ = read_pretrained(tmp_path / "bare", Hints(origin="miil"))
    assert record.preprocessing.mean == (0.0,) and record.fields["image_size"] == 16


def test_gated_relatives_are_refused(tmp_path):
    tensors = dict(stored("mixer_timm").tensors)
    name = "blocks.0.mlp_channels.fc1"
    for part in ("weight", "bias"):
        tensors[f"{name}.{part}"] = np.concatenate([tensors[f"{name}.{part}"]] * 2)
    write_files(tmp_path, tensors, stored("mixer_timm").config)
    with pytest.raises(UserError, match=r"fc1 has 64 outputs, but fc2 32 inputs: .*gMixer"):
        read_pretrained(tmp_path)
