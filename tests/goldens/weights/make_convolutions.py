"""Makes the golden files of ResNet, ConvNeXt and EfficientNet: tiny models and what they answer.

    python -m tests.goldens.weights.make_convolutions

needs torch, timm, transformers and torchvision, as `make_golden.py` beside it, which says what is
what in a file. Here `stage_0`, ... are the outputs of stages as (batch, height, width, channels).

`resnet_timm.npz` also has `other/...`: images, their logits in training, and some of torch's
running statistics after that one pass.

ConvNeXt's own repository is no package. Its model is timm's of the same function here, with the
tensors under the repository's names.
"""

import json
import re
from functools import partial

import numpy as np
import torch
from torch import nn

from tests.goldens.weights.make_golden import (
    CLASSES,
    HERE,
    NAMES,
    coarse,
    exact_halves,
    import_timm,
    import_torchvision,
)

PRETRAINED = {
    "mean": [0.1, 0.2, 0.3],
    "std": [0.4, 0.5, 0.6],
    "crop_pct": 0.75,
    "interpolation": "bilinear",
    "label_names": NAMES,
}


def main():
    cases = (
        resnet_timm,
        resnet_basic,
        resnet_transformers,
        convnext_timm,
        convnext_original,
        convnext_torchvision,
        convnext_transformers,
        efficientnet_timm,
        efficientnet_tensorflow,
        efficientnet_torchvision,
        convnext_v2_timm,
        convnext_v2_pointwise,
        convnext_v2_original,
        convnext_v2_transformers,
        convnext_dinov3,
    )
    import_timm()
    for number, case in enumerate(cases):
        torch.manual_seed(number)
        case()


# ------------------------------------------------------------------------------------------ ResNet


def resnet_timm():
    arguments = {"layers": [1, 2, 1, 1], "channels": [4, 4, 8, 8]}
    model = randomise(timm_model("resnet50", **arguments))
    others = in_training(model)
    save(
        "resnet_timm",
        model,
        [getattr(model, f"layer{i}") for i in (1, 2, 3, 4)],
        size=(40, 24),
        config=timm_config("resnet50", arguments, (40, 24)),
        others=others,
    )


def resnet_basic():
    """As torchvision keeps it: no configuration."""
    model = randomise(timm_model("resnet18", layers=[1, 1, 1, 2], channels=[4, 8, 8, 8]))
    save(
        "resnet_basic",
        model,
        [getattr(model, f"layer{i}") for i in (1, 2, 3, 4)],
        size=(32, 48),
        asked={"origin": "torchvision"},
    )


def resnet_transformers():
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=8,
        hidden_sizes=[16, 16, 32, 32],
        depths=[2, 1, 1, 1],
        id2label=dict(enumerate(NAMES)),
    )
    model = randomise(ResNetForImageClassification(config))
    stages = model.resnet.encoder.stages
    save("resnet_hf", model, stages, size=(40, 32), config=transformers_config(model))


# ---------------------------------------------------------------------------------------- ConvNeXt

SIZES = {"depths": [1, 2, 1, 1], "dims": [8, 8, 16, 16]}
# timm's names to those of the repository.
ORIGINAL_NAMES = {
    r"^stem\.": "downsample_layers.0.",
    r"^stages\.(\d)\.downsample\.": r"downsample_layers.\1.",
    r"^stages\.(\d)\.blocks\.": r"stages.\1.",
    r"\.conv_dw\.": ".dwconv.",
    r"\.mlp\.fc(\d)\.": r".pwconv\1.",
    r"^head\.norm\.": "norm.",
    r"^head\.fc\.": "head.",
}


def convnext_timm():
    model = randomise(timm_model("convnext_tiny", **SIZES), first=2**-6)
    save(
        "convnext_timm",
        model,
        model.stages,
        size=(32, 64),
        config=timm_config("convnext_tiny", SIZES, (32, 64)),
    )


def convnext_original():
    model = randomise(timm_model("convnext_tiny", **SIZES))
    save("convnext_original", model, model.stages, size=(64, 32), names=ORIGINAL_NAMES)


def convnext_torchvision():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    widths = [8, 8, 16, 16]
    settings = [
        CNBlockConfig(width, wider, depth)
        for width, wider, depth in zip(widths, [*widths[1:], None], SIZES["depths"], strict=True)
    ]
    model = randomise(ConvNeXt(settings, num_classes=CLASSES, layer_scale=1e-6))
    stages = [model.features[i] for i in (1, 3, 5, 7)]
    save("convnext_torchvision", model, stages, size=(64, 32))


def convnext_transformers():
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        hidden_sizes=SIZES["dims"], depths=SIZES["depths"], id2label=dict(enumerate(NAMES))
    )
    model = randomise(ConvNextForImageClassification(config))
    # Their layers take channels first and last in turn; a stage gives channels first.
    stages = model.convnext.encoder.stages
    save("convnext_hf", model, stages, size=(32, 64), config=transformers_config(model))


# ------------------------------------------------------------------------------------- ConvNeXt V2

V2_SIZES = {"depths": [1, 1, 2, 1], "dims": [4, 8, 8, 16]}


def convnext_v2_timm():
    model = randomise(timm_model("convnextv2_tiny", **V2_SIZES), first=2**-6)
    config = timm_config("convnextv2_tiny", V2_SIZES, (64, 32))
    save("convnext_v2_timm", model, model.stages, size=(64, 32), config=config)


def convnext_v2_pointwise():
    """One of the small models, whose MLPs are 1 x 1 convolutions."""
    model = randomise(timm_model("convnextv2_atto", **V2_SIZES))
    config = timm_config("convnextv2_atto", V2_SIZES, (64, 64))
    save("convnext_v2_pointwise", model, model.stages, size=(64, 64), config=config)


def convnext_v2_original():
    model = randomise(timm_model("convnextv2_tiny", **V2_SIZES))
    names = {
        **ORIGINAL_NAMES,
        r"\.mlp\.grn\.weight": ".grn.gamma",
        r"\.mlp\.grn\.bias": ".grn.beta",
    }
    save(
        "convnext_v2_original",
        model,
        model.stages,
        size=(32, 64),
        names=names,
        lifted=r".*\.grn\..*",
    )


def convnext_v2_transformers():
    from transformers import ConvNextV2Config, ConvNextV2ForImageClassification

    config = ConvNextV2Config(
        hidden_sizes=V2_SIZES["dims"], depths=V2_SIZES["depths"], id2label=dict(enumerate(NAMES))
    )
    model = randomise(ConvNextV2ForImageClassification(config))
    stages = model.convnextv2.encoder.stages
    save("convnext_v2_hf", model, stages, size=(64, 32), config=transformers_config(model))


def convnext_dinov3():
    """transformers' DINOv3, by the names in its files; the answer is the pooled features."""
    from transformers import DINOv3ConvNextConfig, DINOv3ConvNextModel

    config = DINOv3ConvNextConfig(hidden_sizes=SIZES["dims"], depths=SIZES["depths"])
    model = randomise(DINOv3ConvNextModel(config))
    names = {r"^model\.": ""}
    save(
        "convnext_dinov3",
        model,
        model.model.stages,
        size=(64, 32),
        config=transformers_config(model),
        names=names,
    )


# ------------------------------------------------------------------------------------ EfficientNet

# expansion, kernel, stride, output, blocks
MBCONV = (
    (1, 3, 1, 8, 2),
    (6, 3, 2, 8, 1),
    (2, 5, 2, 8, 1),
    (2, 3, 2, 8, 1),
    (2, 5, 1, 8, 1),
    (2, 5, 2, 8, 1),
    (2, 3, 1, 16, 1),
)


def timm_efficientnet(**arguments):
    import_timm()
    from timm.models._efficientnet_builder import decode_arch_def, resolve_act_layer
    from timm.models.efficientnet import EfficientNet

    blocks = [
        [f"{'ds' if e == 1 else 'ir'}_r{n}_k{k}_s{s}_e{e}_c{c}_se0.25"] for e, k, s, c, n in MBCONV
    ]
    return EfficientNet(
        decode_arch_def(blocks),
        num_classes=CLASSES,
        num_features=24,
        stem_size=8,
        act_layer=resolve_act_layer({}, "swish"),
        **arguments,
    )


def efficientnet_timm():
    model = randomise(timm_efficientnet(), first=2**-6)
    stages = list(model.blocks)
    save("efficientnet_timm", model, stages, size=(24, 20), asked={"origin": "timm"})


def efficientnet_tensorflow():
    norm = partial(nn.BatchNorm2d, eps=1e-3)
    model = randomise(timm_efficientnet(pad_type="same", norm_layer=norm), first=2**-6)
    stages = list(model.blocks)
    save("efficientnet_google", model, stages, size=(20, 26), asked={"origin": "google"})


def efficientnet_torchvision():
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    inputs = [8, *[row[3] for row in MBCONV]]
    settings = [MBConvConfig(e, k, s, inputs[i], c, n) for i, (e, k, s, c, n) in enumerate(MBCONV)]
    model = randomise(EfficientNet(settings, 0.0, last_channel=24, num_classes=CLASSES))
    stages = [model.features[i] for i in range(1, 8)]
    save("efficientnet_torchvision", model, stages, size=(20, 26))


# -------------------------------------------------------------------------------------- all of them


def timm_model(name, **arguments):
    return import_timm().create_model(name, num_classes=CLASSES, **arguments)


def timm_config(architecture, arguments, size):
    return {
        "architecture": architecture,
        "num_classes": CLASSES,
        "model_args": arguments,
        "pretrained_cfg": {"input_size": [3, *size], **PRETRAINED},
    }


def transformers_config(model):
    config = json.loads(model.config.to_json_string(use_diff=False))
    return config | {"architectures": [type(model).__name__]}


def randomise(model, first=1.0):
    """Every parameter and running statistic random, away from 0 and 1; multiples of 1/64.

    `first` scales the first convolution: so small that the epsilon of norms shows.
    """
    for number, (name, parameter) in enumerate(model.named_parameters()):
        gain = name.endswith(("gamma", "layer_scale", "layer_scale_parameter"))
        if gain or is_norm_weight(model, name):
            drawn = 0.5 + torch.rand(parameter.shape)
        elif parameter.ndim == 1:
            drawn = 0.3 * torch.randn(parameter.shape)
        else:
            drawn = 1.5 * torch.randn(parameter.shape) / parameter[0].numel() ** 0.5
        parameter.data = coarse(drawn) * (first if number == 0 else 1.0)
    for number, module in enumerate(m for m in model.modules() if hasattr(m, "running_var")):
        module.running_mean.data = coarse(0.3 * torch.randn(module.running_mean.shape))
        module.running_var.data = coarse(0.5 + torch.rand(module.running_var.shape))
        if number == 0 and first != 1.0:
            module.running_mean.data *= first
            module.running_var.data *= 2**-8  # near the epsilons
    return model.double().eval()


def is_norm_weight(model, name):
    owner, _, kind = name.rpartition(".")
    return kind == "weight" and "Norm" in type(model.get_submodule(owner)).__name__


def make_images(size, count):
    return coarse(torch.randn(count, 3, *size)).double()


def save(name, model, stages, *, size, config=None, asked=None, names=(), lifted="", others=()):
    state = model.state_dict()
    for pattern, new in dict(names).items():
        state = {re.sub(pattern, new, key): value for key, value in state.items()}
    for key in filter(re.compile(lifted).fullmatch, state):  # three axes before the channels
        state[key] = state[key][None, None, None]
    # One counter of batches stands for all: they are not read, and a name takes 300 bytes.
    counters = [key for key in state if key.endswith("num_batches_tracked")][1:]
    state = {key: value for key, value in state.items() if key not in counters}
    arrays = {f"tensors/{key}": exact_halves(value) for key, value in state.items()}
    outputs = []
    hooks = [
        stage.register_forward_hook(lambda _, __, out: outputs.append(out)) for stage in stages
    ]
    images = make_images(size, count=1)
    with torch.no_grad():
        logits = model(images)
    logits = getattr(logits, "logits", getattr(logits, "pooler_output", logits))
    for hook in hooks:
        hook.remove()
    assert len(outputs) == len(stages)
    for number, out in enumerate(outputs):
        arrays[f"stage_{number}"] = channels_last(out)
    arrays["images"] = images.permute(0, 2, 3, 1).numpy().astype(np.float16)
    arrays["logits"] = logits.numpy().astype(np.float32)
    arrays |= {f"other/{key}": value for key, value in dict(others).items()}
    texts = {"config": config, "asked": asked or {}}
    texts = {key: json.dumps(value) for key, value in texts.items() if value is not None}
    np.savez_compressed(HERE / f"{name}.npz", **texts, **arrays)


def in_training(model):
    """Logits of a batch with its own statistics, and the running ones after it."""
    before = {key: value.clone() for key, value in model.state_dict().items()}
    images = make_images((16, 24), count=3)
    model.train()
    with torch.no_grad():
        logits = model(images)
    model.eval()
    after = {
        key: value.numpy().astype(np.float32)
        for key, value in model.state_dict().items()
        if "running_" in key and key.startswith(("bn1.", "layer4."))
    }
    model.load_state_dict(before)
    return {
        "images": images.permute(0, 2, 3, 1).numpy().astype(np.float16),
        "logits": logits.numpy().astype(np.float32),
        **after,
    }


def channels_last(out):
    return out.permute(0, 2, 3, 1).numpy().astype(np.float32)


if __name__ == "__main__":
    import_torchvision()
    main()
