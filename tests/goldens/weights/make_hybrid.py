"""Makes the golden files of hybrids of ResNet and ViT: timm's, and Google's by timm's model.

    python -m tests.goldens.weights.make_hybrid

What needs to be installed, and what is in a file, stands in `make_golden.py`.

- `hybrid_timm`: two stages; `hybrid_timm_root`: the root alone, and patches of 2 x 2 places.
- `hybrid_google`: the same function as Google's code has it, which does not run beside today's
  libraries: timm's model with the formula of its standardised kernels, `(w - mean) / (std + 1e-5)`,
  GroupNorm's epsilon 1e-6 and the GELU with tanh put in, and tensors under Google's names.
  Positions for another size are resized by `scipy.ndimage.zoom` of order 1, as there.

Kernels of the stem and images are so small that the epsilons of the stem show. All have GroupNorm
of 8 groups, where published files have 32. `unit_0`, ...: outputs of units.
"""

import json
from functools import partial

import numpy as np
import scipy.ndimage
import torch
from torch import nn
from torch.nn.functional import conv2d

from tests.goldens.weights.make_golden import (
    CLASSES,
    DEPTH,
    HEADS,
    HERE,
    WIDTH,
    coarse,
    exact_halves,
    import_timm,
    pretrained_cfg,
    randomise,
)

GROUPS = STEM_WIDTH = 8  # timm has no narrower ones
OTHER = (16, 40)  # a multiple of 8 in both cases


def main():
    torch.manual_seed(0)
    timm_case("hybrid_timm", (1, 2), 24, 1)
    timm_case("hybrid_timm_root", (), 16, 2)
    google_case("hybrid_google")


def build(units, size, patch, **arguments):
    timm = import_timm()
    from timm.layers import GroupNormAct, HybridEmbed, StdConv2dSame
    from timm.models.resnetv2 import ResNetV2, create_resnetv2_stem

    shared = {
        "stem_type": "same",
        "preact": False,
        "conv_layer": partial(StdConv2dSame, eps=1e-8),
        "norm_layer": partial(GroupNormAct, num_groups=GROUPS),
    }
    if units:
        backbone = ResNetV2(
            units,
            channels=[4 * STEM_WIDTH * 2**i for i in range(len(units))],
            stem_chs=STEM_WIDTH,
            num_classes=0,
            global_pool="",
            **shared,
        )
    else:
        backbone = create_resnetv2_stem(3, STEM_WIDTH, **shared)
    model = timm.models.VisionTransformer(
        img_size=size,
        patch_size=patch,
        num_classes=CLASSES,
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        mlp_ratio=3,
        embed_layer=partial(HybridEmbed, backbone=backbone),
        **arguments,
    )
    return model.double().eval()


def drawn(model):
    randomise(model)
    for name, parameter in model.named_parameters():
        if ".backbone." in name and parameter.ndim == 4:
            # Multiples of 2^-11 around 1/1000, which float16 holds exactly.
            values = (torch.randn(parameter.shape) * 2).round() / 2048
            parameter.data = values.double()
    return model


def answers(model, size):
    images = coarse(torch.randn(1, 3, *size)).double() / 128
    units = [module for module in model.modules() if type(module).__name__ == "Bottleneck"]
    seen = {}
    for i, unit in enumerate(units):
        unit.register_forward_hook(lambda *call, i=i: seen.update({f"unit_{i}": call[2]}))
    model.patch_embed.proj.register_forward_hook(lambda *call: seen.update(stem=call[2]))
    for i, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *call, i=i: seen.update({f"block_{i}": call[2]}))
    with torch.no_grad():
        logits = model(images)
    arrays = {
        name: (out.permute(0, 2, 3, 1) if out.ndim == 4 else out).numpy().astype(np.float32)
        for name, out in seen.items()
    }
    arrays["images"] = images.permute(0, 2, 3, 1).numpy().astype(np.float16)
    arrays["logits"] = logits.numpy().astype(np.float32)
    return arrays


def timm_case(name, units, size, patch):
    model = drawn(build(units, size, patch))
    other = build(units, OTHER, patch)
    from timm.layers import resample_abs_pos_embed

    grid = [side // (size // model.patch_embed.grid_size[0]) for side in OTHER]
    table = resample_abs_pos_embed(model.pos_embed.data, grid, num_prefix_tokens=1)
    other.load_state_dict({**model.state_dict(), "pos_embed": table})
    config = {
        "architecture": "vit_base_r50_s16_224",
        "num_classes": CLASSES,
        "model_args": {"img_size": size, "patch_size": patch, "num_heads": HEADS},
        "pretrained_cfg": pretrained_cfg(size),
    }
    save(name, model.state_dict(), model, (size, size), other, config=config)


def save(name, tensors, model, size, other, config=None):
    arrays = {f"tensors/{key}": exact_halves(value) for key, value in tensors.items()}
    arrays |= answers(model, size)
    # The larger arrays of the other size would tell nothing new.
    there = {key: value for key, value in answers(other, OTHER).items() if "unit" not in key}
    arrays |= {f"other/{key}": value for key, value in there.items()}
    texts = {"asked": json.dumps({})}
    if config is not None:
        texts["config"] = json.dumps(config)
    np.savez_compressed(HERE / f"{name}.npz", **texts, **arrays)


# ----------------------------------------------------------------------------------------- Google's


def google_case(name):
    units, size = (2, 1), 24
    fields = {"act_layer": partial(nn.GELU, approximate="tanh")}
    model = drawn(as_google(build(units, size, 1, **fields)))
    other = as_google(build(units, OTHER, 1, **fields))
    table = model.pos_embed.data.numpy()
    side = int((table.shape[1] - 1) ** 0.5)
    target = [pixels * side // size for pixels in OTHER]
    grid = table[0, 1:].reshape(side, side, WIDTH)
    zoomed = scipy.ndimage.zoom(grid, (target[0] / side, target[1] / side, 1), order=1)
    zoomed = torch.from_numpy(zoomed.reshape(1, -1, WIDTH))
    table = torch.cat([model.pos_embed.data[:, :1], zoomed], 1)
    other.load_state_dict({**model.state_dict(), "pos_embed": table})
    save(name, google_names(model.state_dict()), model, (size, size), other)


def as_google(model):
    """timm's model with the formulas of Google's code."""

    def standardised(conv, x):
        from timm.layers.padding import pad_same

        kernel = conv.weight
        axes = (1, 2, 3)
        kernel = kernel - kernel.mean(axes, keepdim=True)
        kernel = kernel / (kernel.std(axes, correction=0, keepdim=True) + 1e-5)
        if conv.same_pad:
            x = pad_same(x, conv.kernel_size, conv.stride, conv.dilation)
        return conv2d(x, kernel, None, conv.stride, conv.padding)

    for module in model.modules():
        if type(module).__name__ == "StdConv2dSame":
            module.forward = partial(standardised, module)
        elif isinstance(module, nn.GroupNorm):
            module.eps = 1e-6
    return model


def google_names(state):
    """The tensors as `.npz` of google-research/vision_transformer, linen's numbers."""
    made = {}

    def put(name, theirs, turn=None):
        value = state[theirs]
        made[name] = turn(value) if turn else value

    def conv(name, theirs):
        put(name, theirs, lambda x: x.permute(2, 3, 1, 0))

    def norm(name, theirs):
        put(f"{name}/scale", f"{theirs}.weight")
        put(f"{name}/bias", f"{theirs}.bias")

    def dense(name, theirs):
        put(f"{name}/kernel", f"{theirs}.weight", lambda x: x.T)
        put(f"{name}/bias", f"{theirs}.bias")

    backbone = "patch_embed.backbone"
    conv("conv_root/kernel", f"{backbone}.stem.conv.weight")
    norm("gn_root", f"{backbone}.stem.norm")
    firsts = [key for key in state if key.endswith("conv1.weight")]
    for first in firsts:
        theirs = first.removesuffix(".conv1.weight")
        stage, unit = (int(part) for part in theirs.split(".")[3::2])
        ours = f"block{stage + 1}/unit{unit + 1}"
        for i in (1, 2, 3):
            conv(f"{ours}/conv{i}/kernel", f"{theirs}.conv{i}.weight")
            norm(f"{ours}/gn{i}", f"{theirs}.norm{i}")
        if f"{theirs}.downsample.conv.weight" in state:
            conv(f"{ours}/conv_proj/kernel", f"{theirs}.downsample.conv.weight")
            norm(f"{ours}/gn_proj", f"{theirs}.downsample.norm")
    conv("embedding/kernel", "patch_embed.proj.weight")
    put("embedding/bias", "patch_embed.proj.bias")
    put("cls", "cls_token")
    put("Transformer/posembed_input/pos_embedding", "pos_embed")
    for i in range(DEPTH):
        ours, theirs = f"Transformer/encoderblock_{i}", f"blocks.{i}"
        attention = f"{ours}/MultiHeadDotProductAttention_1"
        norm(f"{ours}/LayerNorm_0", f"{theirs}.norm1")
        for j, part in enumerate(("query", "key", "value")):
            rows = slice(j * WIDTH, (j + 1) * WIDTH)
            weight, bias = state[f"{theirs}.attn.qkv.weight"], state[f"{theirs}.attn.qkv.bias"]
            made[f"{attention}/{part}/kernel"] = weight[rows].T.reshape(WIDTH, HEADS, -1)
            made[f"{attention}/{part}/bias"] = bias[rows].reshape(HEADS, -1)
        put(
            f"{attention}/out/kernel",
            f"{theirs}.attn.proj.weight",
            lambda x: x.T.reshape(HEADS, -1, WIDTH),
        )
        put(f"{attention}/out/bias", f"{theirs}.attn.proj.bias")
        norm(f"{ours}/LayerNorm_2", f"{theirs}.norm2")
        dense(f"{ours}/MlpBlock_3/Dense_0", f"{theirs}.mlp.fc1")
        dense(f"{ours}/MlpBlock_3/Dense_1", f"{theirs}.mlp.fc2")
    norm("Transformer/encoder_norm", "norm")
    dense("head", "head")
    return made


if __name__ == "__main__":
    main()
