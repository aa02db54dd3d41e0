"""What is said of missing tensors, and of numbers that are no numbers."""

import numpy as np
import pytest

from tests.support.stored import stored, write_files
from vit_jax.errors import UserError
from vit_jax.weights.convert import read_pretrained


@pytest.mark.parametrize(
    ("case", "prefix", "missing"),
    [
        ("timm_vit", "", "blocks.1.attn.proj.bias"),
        ("timm_vit", "model.net.", "blocks.1.attn.proj.bias"),
        ("hf_vit", "", "vit.encoder.layer.1.attention.attention.key.weight"),
        ("hf_vit", "", "classifier.bias"),
        ("hf_dinov2", "", "encoder.layer.1.norm2.bias"),  # not `layernorm_after`, as ViTs have it
        ("swin_hf", "", "swin.encoder.layers.0.downsample.norm.weight"),
        ("pvt_original", "", "block2.0.attn.kv.weight"),
        ("deit3", "", "blocks.1.gamma_2"),  # and not `ls2.gamma`
    ],
)
def test_a_missing_tensor_is_called_as_the_others_of_the_file(case, prefix, missing, tmp_path):
    case = stored(case)
    tensors = {prefix + name: array for name, array in case.tensors.items()}
    assert tensors.pop(prefix + missing).size
    folder = write_files(tmp_path, tensors, case.config)
    with pytest.raises(UserError) as refused:
        read_pretrained(folder, case.hints)
    assert f"has no {prefix}{missing}, which the model needs" in str(refused.value)


def test_numbers_that_are_not_finite_are_counted_by_tensor(tmp_path, capsys):
    case = stored("timm_vit")
    tensors = {name: array.copy() for name, array in case.tensors.items()}
    tensors["blocks.0.attn.qkv.weight"][0, :3] = np.nan
    tensors["head.bias"][1] = np.inf
    sizes = [tensors[name].size for name in ("blocks.0.attn.qkv.weight", "head.bias")]
    read_pretrained(write_files(tmp_path / "bad", tensors, case.config))
    said = capsys.readouterr().err
    assert "warning: NaN or infinite numbers in " in said
    assert f"blocks.0.attn.qkv.weight (3 of {sizes[0]})" in said
    assert f"head.bias (1 of {sizes[1]})" in said
    read_pretrained(write_files(tmp_path / "good", case.tensors, case.config))
    assert not capsys.readouterr().err
