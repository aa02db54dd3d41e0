"""Attention weights of other libraries' models, against what transformers says they are."""

import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.stored import stored, write_files
from vit_jax.analysis.attention.compute import compute_attention
from vit_jax.weights.convert import read_pretrained

GOLDEN = np.load(GOLDENS / "analysis" / "attentions.npz")
TOLERANCE = 5e-6  # of float32; versions of XLA differ by 2e-6


def read(name, folder):
    case = stored(name)
    write_files(folder, case.tensors, case.config, case.preprocessor)
    record, variables = read_pretrained(folder, case.hints)
    return record.create_model(), variables, case.answers["images"]


def expected(name):
    layers = sum(key.startswith(f"{name}/") for key in GOLDEN)
    return [GOLDEN[f"{name}/{layer}"] for layer in range(layers)]


@pytest.mark.parametrize("name", ["hf_vit", "hf_deit_distilled", "hf_dinov2_registers"])
def test_weights_of_every_layer_and_head(name, tmp_path):
    seen = compute_attention(*read(name, tmp_path))
    theirs = expected(name)
    assert len(seen.weights) == len(theirs) == 2
    for ours, golden in zip(seen.weights, theirs, strict=True):
        np.testing.assert_allclose(ours, golden, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["swin_hf", "pvt_hf"])
def test_weights_of_the_last_block_of_every_stage(name, tmp_path):
    """Within windows, and to the keys of a reduced map; of PVT it is every block."""
    model, variables, images = read(name, tmp_path)
    seen = compute_attention(model, variables, images)
    ours = [layer.weights for layer in seen.layers]
    theirs = expected(name)
    if name == "swin_hf":
        last = [seen.stage(first)[-1] for first in np.cumsum([0, *model.depths[:-1]])]
        ours = [layer.weights for layer in last]
    assert len(ours) == len(theirs)
    for one, golden in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, golden, atol=TOLERANCE)
