"""Hybrids and ViTs with a stem of convolutions at full size, against timm and torchvision.

As `test_parity.py`: random weights, every unit's and block's output. Rounding grows through a
ResNet: in its last stage timm's own float32 is 2e-5 away from its float64. So the truth is the
library in float64, and we may be 2e-5 away from it, or twice as far as the library in float32.
"""

import jax
import numpy as np
import pytest

from benchmarks.peers import import_timm
from tests.support.written import assert_timm_reads_the_same, save_timm
from vit_jax.models.stacking import read_blocks
from vit_jax.weights.convert import read_pretrained
from vit_jax.weights.formats import Hints

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5


def randomise(torch, model):
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape)
        if parameter.ndim == 1:
            parameter.data = 0.1 * drawn + (1.0 if name.endswith("weight") else 0.0)
        else:
            parameter.data = drawn / parameter[0].numel() ** 0.5
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(0.1 * torch.randn(buffer.shape) + float(name.endswith("var")))
    return model.eval()


def answers_of(torch, model, parts):
    """What parts of a model and the model give: pairs of float64 and float32."""
    both = []
    for dtype in (torch.float32, torch.float64):
        seen = []
        model.to(dtype)
        hooks = [
            part.register_forward_hook(lambda *call, seen=seen: seen.append(call[2].numpy()))
            for part in parts
        ]
        logits = model(torch.from_numpy(IMAGES).permute(0, 3, 1, 2).to(dtype))
        for hook in hooks:
            hook.remove()
        seen = [x.transpose(0, 2, 3, 1) if x.ndim == 4 else x for x in seen]
        both.append([*seen, logits.numpy()])
    model.to(torch.float32)
    rounded, exact = both
    return list(zip(exact, rounded, strict=True))


def assert_equal(ours, theirs):
    for one, (exact, rounded) in zip(ours, theirs, strict=True):
        allowed = max(TOLERANCE * max(1, np.abs(exact).max()), 2 * np.abs(rounded - exact).max())
        assert np.abs(one - exact).max() <= allowed


def run(record, variables, images):
    with jax.default_matmul_precision("highest"):
        out, kept = record.create_model().apply(variables, images, mutable=["intermediates"])
    return out, kept["intermediates"]


IMAGES = np.random.RandomState(0).normal(size=(1, 224, 224, 3)).astype(np.float32)
NAMES = {"vit_tiny_r_s16_p8_224": "R+ViT-Ti/16", "vit_small_r26_s32_224": "R26+ViT-S/32"}


@pytest.mark.parametrize("name", NAMES)
def test_timms_hybrids_compute_the_same_and_timm_reads_what_is_written(torch, name, tmp_path):
    timm = import_timm()
    model = randomise(torch, timm.create_model(name))
    save_timm(tmp_path / "theirs", model, {"architecture": name, "pretrained_cfg": {}})

    record, variables = read_pretrained(tmp_path / "theirs")
    assert record.name == NAMES[name]
    units = [part for part in model.modules() if type(part).__name__ == "Bottleneck"]
    theirs = answers_of(torch, model, [*units, *model.blocks])
    out, kept = run(record, variables, IMAGES)
    stages = kept.get("patch_embed", {})
    ours = [
        stages[f"stages_{i}"][f"units_{j}"]["out"][0]
        for i, number in enumerate(record.fields["stem_units"])
        for j in range(number)
    ]
    assert_equal([*ours, *read_blocks(kept, "out"), out], theirs)

    assert_timm_reads_the_same(torch, timm, tmp_path / "ours", record, variables, model)


def test_torchvisions_stem_of_convolutions_computes_the_same(torch, tmp_path):
    from torchvision.models.vision_transformer import ConvStemConfig, VisionTransformer

    stem = [ConvStemConfig(channels, 3, 2) for channels in (24, 48, 96, 192)]
    model = VisionTransformer(224, 16, 11, 3, 192, 576, conv_stem_configs=stem)
    randomise(torch, model)
    torch.save(model.state_dict(), tmp_path / "model.pth")
    record, variables = read_pretrained(tmp_path / "model.pth", Hints(heads=3))
    assert record.name == "ViTC-1GF"
    theirs = answers_of(torch, model, [model.conv_proj, *model.encoder.layers])
    out, kept = run(record, variables, IMAGES)
    assert_equal([kept["patch_embed"]["out"][0], *read_blocks(kept, "out"), out], theirs)
