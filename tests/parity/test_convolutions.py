"""ResNet, ConvNeXt and EfficientNet at full size against timm, torchvision and transformers.

    make test-parity

Weights are random, norms and running statistics too: nothing is fetched. What is compared is every
stage's output and the answer, in float32 on both sides, to 2e-5 of the largest number; and the
tensors that are written, bit for bit.
"""

import numpy as np
import pytest

from benchmarks.peers import import_timm
from tests.support.stages import largest_error
from tests.support.written import assert_timm_reads_the_same, save_timm
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5


def randomise(torch, model):
    """Every parameter and statistic away from its trivial value, and outputs about as large as 1.

    Of the last norm of a branch a small gain, or many branches would add up to large numbers.
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or "layer_scale" in name:
            drawn = 0.1 * torch.randn(parameter.shape)
            is_gain = "bias" not in name
            small = name.endswith(("bn3.weight", "gamma", "layer_scale"))
            small = small or "layer_scale_parameter" in name or "layer.2.normalization" in name
            parameter.data = ((0.3 if small else 1) + drawn) if is_gain else drawn
        else:
            parameter.data = torch.randn(parameter.shape) / parameter[0].numel() ** 0.5
    for module in model.modules():
        if hasattr(module, "running_var"):
            module.running_mean.data = 0.1 * torch.randn(module.running_mean.shape)
            module.running_var.data = 0.75 + 0.5 * torch.rand(module.running_var.shape)
    return model.eval()


def answers_of(torch, model, stages, images):
    seen = []
    hooks = [stage.register_forward_hook(lambda _, __, out: seen.append(out)) for stage in stages]
    out = model(torch.from_numpy(images).permute(0, 3, 1, 2))
    for hook in hooks:
        hook.remove()
    answers = {f"stage_{i}": x.permute(0, 2, 3, 1).numpy() for i, x in enumerate(seen)}
    return {**answers, "images": images, "logits": getattr(out, "logits", out).numpy()}


def images_of(*size):
    return np.random.RandomState(0).normal(size=(1, *size, 3)).astype(np.float32)


def assert_parity(torch, model, stages, record, variables, size):
    expected = answers_of(torch, model, stages, images_of(*size))
    assert largest_error(record.create_model(), variables, expected) <= TOLERANCE


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet50", (224, 224)),
        ("convnext_tiny", (224, 224)),
        ("convnext_nano", (224, 224)),
        ("convnextv2_atto", (224, 224)),
        ("convnextv2_tiny", (224, 224)),
        ("efficientnet_b0", (224, 224)),
        ("efficientnet_b3", (300, 260)),
        ("tf_efficientnet_b0", (224, 230)),
    ],
)
def test_timm_computes_the_same_and_reads_what_is_written(torch, name, size, tmp_path):
    timm = import_timm()
    model = randomise(torch, timm.create_model(name))
    save_timm(tmp_path / "theirs", model, {"architecture": name, "pretrained_cfg": {}})

    record, variables = read_pretrained(tmp_path / "theirs")
    layers = [getattr(model, f"layer{i}", None) for i in (1, 2, 3, 4)]
    stages = layers if layers[0] else list(getattr(model, "stages", getattr(model, "blocks", ())))
    assert_parity(torch, model, stages, record, variables, size)

    assert_timm_reads_the_same(torch, timm, tmp_path / "ours", record, variables, model)


@pytest.mark.parametrize("name", ["resnet50", "convnext_tiny", "efficientnet_b0"])
def test_torchvision_computes_the_same(torch, name, tmp_path):
    import torchvision

    model = randomise(torch, getattr(torchvision.models, name)())
    torch.save(model.state_dict(), tmp_path / f"{name}.pth")
    record, variables = read_pretrained(tmp_path / f"{name}.pth", Hints("torchvision"))
    if name == "resnet50":
        stages = [getattr(model, f"layer{i}") for i in (1, 2, 3, 4)]
    else:
        numbers = (1, 3, 5, 7) if name == "convnext_tiny" else range(1, 8)
        stages = [model.features[i] for i in numbers]
    assert_parity(torch, model, stages, record, variables, (224, 224))


@pytest.mark.parametrize("kind", ["ResNet", "ConvNext", "ConvNextV2"])
def test_transformers_computes_the_same_and_reads_what_is_written(torch, kind, tmp_path):
    import transformers

    config = getattr(transformers, f"{kind}Config")(num_labels=1000)
    model = getattr(transformers, f"{kind}ForImageClassification")(config)
    randomise(torch, model).save_pretrained(tmp_path / "theirs")
    record, variables = read_pretrained(tmp_path / "theirs")
    stages = getattr(model, kind.lower()).encoder.stages
    assert_parity(torch, model, stages, record, variables, (224, 224))

    write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    again = type(model).from_pretrained(tmp_path / "ours")
    state = model.state_dict()
    for name, value in again.state_dict().items():
        assert "num_batches" in name or torch.equal(value, state[name]), name
