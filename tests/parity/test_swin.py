"""Swin and Swin V2 at full size against timm and torchvision, in both directions.

Random weights, every block and the logits. See `test_parity.py`; `make test-parity` runs both.
"""

import jax
import numpy as np
import pytest

from benchmarks.peers import import_timm, import_torchvision
from tests.support.written import assert_timm_reads_the_same, save_timm
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5


@pytest.mark.parametrize(
    ("name", "own", "size"), [("swin_t", "Swin-T", 224), ("swin_v2_t", "SwinV2-T", 256)]
)
def test_torchvision_computes_the_same_and_reads_what_is_written(name, own, size, tmp_path):
    import torch

    torchvision = import_torchvision()
    from safetensors.torch import load_file

    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    model = torchvision.models.get_model(name).eval()
    for key, parameter in model.named_parameters():
        scale = 0.1 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
        is_gain = parameter.ndim == 1 and key.endswith("weight")
        parameter.data = is_gain + scale * torch.randn(parameter.shape)
        if name == "swin_v2_t" and key.endswith("qkv.bias"):  # keys have none
            parameter.data.view(3, -1)[1] = 0
    torch.save(model.state_dict(), tmp_path / "swin.pth")
    record, variables = read_pretrained(tmp_path / "swin.pth")
    assert record.name == own
    images = np.random.RandomState(0).normal(size=(1, size, size, 3)).astype(np.float32)
    theirs = model(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    with jax.default_matmul_precision("highest"):
        logits = jax.jit(record.create_model().apply)(variables, images)
    assert np.abs(logits - theirs).max() <= TOLERANCE * max(1, np.abs(theirs).max())

    folder = write_pretrained(tmp_path / "ours", "torchvision", record, variables)
    again = torchvision.models.get_model(name)
    again.load_state_dict(load_file(folder / "model.safetensors"))  # strictly
    state = model.state_dict()
    for key, value in again.state_dict().items():
        if key.endswith("relative_coords_table"):  # computed
            assert torch.allclose(value, state[key], rtol=0, atol=1e-6)
        else:
            assert torch.equal(value, state[key]), key


@pytest.mark.parametrize(
    ("name", "own", "size"),
    [
        ("swin_tiny_patch4_window7_224", "Swin-T", 224),
        ("swinv2_tiny_window8_256", "SwinV2-T", 256),
    ],
)
def test_timm_computes_the_same_and_reads_what_is_written(name, own, size, tmp_path):
    import torch

    timm = import_timm()
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    for key, parameter in model.named_parameters():
        if parameter.ndim == 1:
            drawn = 0.1 * torch.randn(parameter.shape)
            parameter.data = 1 + drawn if "norm" in key and key.endswith("weight") else drawn
        else:
            scale = 1.0 if "relative" in key else parameter[0].numel() ** -0.5
            parameter.data = scale * torch.randn(parameter.shape)
    save_timm(
        tmp_path / "theirs",
        model,
        {"architecture": name, "pretrained_cfg": {"input_size": [3, size, size]}},
    )

    record, variables = read_pretrained(tmp_path / "theirs", Hints())
    assert record.name == own
    images = np.random.RandomState(0).normal(size=(1, size, size, 3)).astype(np.float32)
    seen = []
    for stage in model.layers:
        for block in stage.blocks:
            block.register_forward_hook(lambda _, __, out: seen.append(out.numpy()))
    theirs = model(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    with jax.default_matmul_precision("highest"):
        ours = record.create_model()
        forward = jax.jit(lambda v, x: ours.apply(v, x, mutable=["intermediates"]))
        logits, kept = forward(variables, images)
    blocks = [
        kept["intermediates"][f"stages_{i}"][f"blocks_{j}"]["out"][0]
        for i, depth in enumerate(ours.depths)
        for j in range(depth)
    ]
    for one, other in zip([*blocks, logits], [*seen, theirs], strict=True):
        assert np.abs(one - other).max() <= TOLERANCE * max(1, np.abs(other).max())

    assert_timm_reads_the_same(torch, timm, tmp_path / "ours", record, variables, model)
