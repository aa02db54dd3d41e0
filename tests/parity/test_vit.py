"""Models at full size against timm, transformers and torchvision, in both directions.

    make test-parity     installs torch, timm, transformers and torchvision, and runs these

Weights are random, norms and biases too: nothing is fetched. What is compared is every block's
output and the answer, in float32 on both sides, to 2e-5 of the largest number.
"""

import jax
import numpy as np
import pytest

from benchmarks.peers import import_timm
from tests.support.written import assert_timm_reads_the_same, save_timm
from vit_jax.models.stacking import read_blocks
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5

TIMM = {
    "vit_tiny_patch16_224": {},
    "vit_small_patch16_224": {},
    "vit_base_patch16_224": {},
    "vit_base_patch32_224": {},
    "vit_large_patch16_224": {},
    "deit_small_distilled_patch16_224": {},
    "deit3_small_patch16_224": {},
    "vit_small_patch14_reg4_dinov2": {"img_size": 224},
}


def randomise(torch, model):
    """Every parameter away from its trivial value, tokens and norms included."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            drawn = 0.1 * torch.randn(parameter.shape)
            gain = name.endswith("weight") or "gamma" in name or "lambda" in name
            parameter.data = 1 + drawn if gain and "bias" not in name else drawn
        elif parameter.ndim:
            parameter.data = torch.randn(parameter.shape) / parameter[0].numel() ** 0.5
    return model.eval()


def answers_of(torch, model, blocks, images):
    """The outputs of the blocks and of a torch model."""
    seen = []

    def keep(_, __, out):
        seen.append(out[0] if isinstance(out, tuple) else out)

    hooks = [block.register_forward_hook(keep) for block in blocks]
    out = model(torch.from_numpy(images).permute(0, 3, 1, 2))
    for hook in hooks:
        hook.remove()
    out = getattr(out, "logits", out)
    return [block.numpy() for block in seen], out.numpy()


def our_answers(record, variables, images):
    with jax.default_matmul_precision("highest"):
        out, kept = record.create_model().apply(variables, images, mutable=["intermediates"])
    return read_blocks(kept["intermediates"], "out"), out


def assert_equal(ours, theirs):
    for one, other in zip([*ours[0], ours[1]], [*theirs[0], theirs[1]], strict=True):
        assert np.abs(one - other).max() <= TOLERANCE * max(1, np.abs(other).max())


def images_of(size):
    """One image of a side, or of (height, width)."""
    sides = (size, size) if isinstance(size, int) else size
    return np.random.RandomState(0).normal(size=(1, *sides, 3)).astype(np.float32)


@pytest.mark.parametrize("name", TIMM)
def test_timm_computes_the_same_and_reads_what_is_written(torch, name, tmp_path):
    timm = import_timm()
    model = randomise(torch, timm.create_model(name, **TIMM[name]))
    save_timm(
        tmp_path / "theirs",
        model,
        {"architecture": name, "model_args": TIMM[name], "pretrained_cfg": {}},
    )

    record, variables = read_pretrained(tmp_path / "theirs", Hints(origin="timm"))
    images = images_of(224)
    assert_equal(
        our_answers(record, variables, images), answers_of(torch, model, model.blocks, images)
    )

    assert_timm_reads_the_same(torch, timm, tmp_path / "ours", record, variables, model)


@pytest.mark.parametrize("kind", ["ViT", "Dinov2"])
def test_transformers_computes_the_same_and_reads_what_is_written(torch, kind, tmp_path):
    import transformers

    if kind == "ViT":
        settings = transformers.ViTConfig(num_labels=1000)
        model = transformers.ViTForImageClassification(settings)
        blocks = model.vit.layers if hasattr(model.vit, "layers") else model.vit.encoder.layer
    else:
        settings = transformers.Dinov2Config(
            hidden_size=384, num_attention_heads=6, image_size=224, patch_size=14
        )
        model = transformers.Dinov2Model(settings)
        blocks = model.layers if hasattr(model, "layers") else model.encoder.layer
    randomise(torch, model).save_pretrained(tmp_path / "theirs")

    record, variables = read_pretrained(tmp_path / "theirs")
    images = images_of(224)
    if kind == "ViT":
        theirs = answers_of(torch, model, blocks, images)
    else:
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
        out = model(pixel_values=pixels, output_hidden_states=True)
        theirs = [x.numpy() for x in out.hidden_states[1:]], out.last_hidden_state[:, 0].numpy()
    assert_equal(our_answers(record, variables, images), theirs)

    write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    again = type(model).from_pretrained(tmp_path / "ours")
    for name, parameter in again.named_parameters():
        if "mask_token" not in name and "pooler" not in name:
            assert torch.equal(parameter, dict(model.named_parameters())[name]), name


def test_torchvision_computes_the_same(torch, tmp_path):
    import torchvision

    model = randomise(torch, torchvision.models.vit_b_16())
    torch.save(model.state_dict(), tmp_path / "vit_b_16.pth")
    record, variables = read_pretrained(tmp_path / "vit_b_16.pth", Hints("torchvision", 12))
    images = images_of(224)
    blocks = list(model.encoder.layers)
    assert_equal(our_answers(record, variables, images), answers_of(torch, model, blocks, images))
