"""Makes the golden files of Swin: tiny models of three libraries and what they answer.

    python -m tests.goldens.weights.make_swin

`make_golden.py` says what a golden file is and what it needs. Here `block_0`, ... are the blocks of
all stages. The maps are 8 x 8 and 4 x 4 tokens with windows of 4: the first stage is shifted, and
in the second a window covers the map. Sizes are such that nothing is padded, where other libraries
differ (see `vit_jax/models/swin/weights/__init__.py`).

The authors' repository is no package: its model is timm's of the same function, with the names and
buffers that its files have. Its `other` is for windows of 6, to which the tables are resized by the
call of torch that stands in its `utils.py`.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from tests.goldens.weights.make_golden import (
    CLASSES,
    CROPPED,
    NAMES,
    coarse,
    exact_halves,
    import_timm,
    import_torchvision,
)

HERE = Path(__file__).parent
SIZES = {"patch_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (1, 2), "mlp_ratio": 2}


def main():
    for number, make in enumerate((timm_square, timm_oblong, original, transformers, torchvision)):
        torch.manual_seed(number)
        make()


def timm_square():
    timm_case("swin_timm", 16, 4, other=(32, 16))  # one axis of the second stage is shifted


def timm_oblong():
    timm_case("swin_oblong", (16, 8), (4, 2), other=(16, 16), qkv_bias=False)


def timm_case(name, size, window, other, **arguments):
    arguments = {**SIZES, "window_size": window, **arguments}
    model = randomised(timm_swin(img_size=size, **arguments))
    larger = timm_swin(img_size=other, **arguments)
    larger.load_state_dict(model.state_dict())
    config = {
        "architecture": "swin_tiny_patch4_window7_224",
        "num_classes": CLASSES,
        "model_args": {**arguments, "img_size": size},
        "pretrained_cfg": {
            "input_size": [3, *np.broadcast_to(size, 2).tolist()],
            "mean": [0.1, 0.2, 0.3],
            "std": [0.4, 0.5, 0.6],
            "crop_pct": 0.75,
            "interpolation": "bilinear",
            "label_names": NAMES,
        },
    }
    save(name, model.state_dict(), (model, size), (larger, other), config=config)


def original():
    model = randomised(timm_swin(img_size=16, window_size=4, **SIZES))
    state = {}
    for name, value in model.state_dict().items():
        name = name.replace("layers.1.downsample", "layers.0.downsample")
        state[name.replace("head.fc.", "head.")] = value
    for i, stage in enumerate(model.layers):
        for j, block in enumerate(stage.blocks):
            index = block.attn.relative_position_index
            state[f"layers.{i}.blocks.{j}.attn.relative_position_index"] = index
            if block.attn_mask is not None:
                state[f"layers.{i}.blocks.{j}.attn_mask"] = block.attn_mask
    assert "layers.0.blocks.1.attn_mask" in state

    other = timm_swin(img_size=24, window_size=6, **SIZES)
    resized = dict(model.state_dict())
    for name, table in resized.items():
        if name.endswith("relative_position_bias_table"):
            grid = table.permute(1, 0).view(1, -1, 7, 7)
            grid = interpolate(grid, size=(11, 11), mode="bicubic")
            resized[name] = grid.view(-1, 121).permute(1, 0)
    other.load_state_dict(resized)
    save("swin_original", state, (model, 16), (other, 24))


def transformers():
    import_timm()
    import transformers

    configuration = transformers.SwinConfig(
        image_size=16,
        window_size=4,
        id2label=dict(enumerate(NAMES)),
        **SIZES,
    )
    model, other = (
        transformers.SwinForImageClassification(configuration).double().eval() for _ in range(2)
    )
    randomised(model)
    other.load_state_dict(model.state_dict())  # a forward pass changes the shift it has
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        from safetensors.torch import load_file

        state = load_file(Path(folder) / "model.safetensors")
    save(
        "swin_hf",
        state,
        (model, 16),
        (other, (16, 16)),
        config=config,
        preprocessor={
            **CROPPED,
            "size": {"shortest_edge": 18},
            "crop_size": {"height": 16, "width": 16},
        },
    )


def torchvision():
    import_torchvision()
    from torchvision.models import SwinTransformer

    model = SwinTransformer(
        patch_size=[2, 2],
        embed_dim=SIZES["embed_dim"],
        depths=SIZES["depths"],
        num_heads=SIZES["num_heads"],
        window_size=[4, 4],
        mlp_ratio=SIZES["mlp_ratio"],
        num_classes=CLASSES,
    )
    randomised(model.double().eval())
    save("swin_torchvision", model.state_dict(), (model, 16), (model, (32, 16)))


def timm_swin(**arguments):
    timm = import_timm()
    return timm.models.SwinTransformer(num_classes=CLASSES, **arguments).double().eval()


def randomised(model):
    """Random multiples of 1/64 everywhere; patches so small that the epsilon of norms shows."""
    for name, parameter in model.named_parameters():
        is_norm = "norm" in name or name.startswith("features.0.2")
        if is_norm and name.endswith("weight"):
            drawn = 0.5 + torch.rand(parameter.shape)
        elif parameter.ndim == 1:
            drawn = 0.3 * torch.randn(parameter.shape)
        elif "relative" in name:
            drawn = torch.randn(parameter.shape)
        else:
            drawn = 1.5 * torch.randn(parameter.shape) / parameter[0].numel() ** 0.5
        is_patch = ("patch_embed" in name or name.startswith("features.0")) and not is_norm
        parameter.data = (coarse(drawn) * (2**-6 if is_patch else 1)).double()
    return model


def save(name, tensors, own, other, *, config=None, preprocessor=None):
    arrays = {f"tensors/{key}": halves(value) for key, value in tensors.items()}
    arrays |= answers(*own)
    arrays |= {f"other/{key}": value for key, value in answers(*other).items()}
    texts = {"config": config, "preprocessor": preprocessor, "asked": {}}
    texts = {key: json.dumps(value) for key, value in texts.items() if value is not None}
    np.savez_compressed(HERE / f"{name}.npz", **texts, **arrays)


def halves(tensor):
    return exact_halves(tensor.double() if not tensor.is_floating_point() else tensor)


def answers(model, size):
    images = coarse(torch.randn(1, 3, *np.broadcast_to(size, 2).tolist())).double()
    if hasattr(model, "features"):  # torchvision's, with the merging of patches between stages
        stages = [list(model.features[number]) for number in (1, 3)]
    else:
        body = getattr(getattr(model, "swin", model), "encoder", model)
        stages = [stage.blocks for stage in body.layers]
    outputs = []
    hooks = [
        block.register_forward_hook(lambda _, __, out: outputs.append(out))
        for stage in stages
        for block in stage
    ]
    with torch.no_grad():
        logits = model(images)
    for hook in hooks:
        hook.remove()
    outputs = [out[0] if isinstance(out, tuple) else out for out in outputs]
    assert len(outputs) == 4
    arrays = {f"block_{i}": out.numpy().astype(np.float32) for i, out in enumerate(outputs)}
    arrays["images"] = images.permute(0, 2, 3, 1).numpy().astype(np.float16)
    arrays["logits"] = getattr(logits, "logits", logits).numpy().astype(np.float32)
    return arrays


if __name__ == "__main__":
    main()
