"""Makes the golden files of ViT parity: tiny models of timm and torch, weights and outputs.

    python -m tests.goldens.models.make_golden

needs torch and timm, which neither the package nor its tests need. Every case is one `.npz` beside
this script: `fields` (JSON: the fields of our ViT), `params/...` (weights in our layout), `images`,
`block_0`, ... (every block's output) and `logits`.

What makes the numbers strong:
- Every parameter is random and away from 0 and 1, also biases, norm scales, class token and layer
  scale, so that a forgotten or swapped one shows.
- Weights are multiples of 1/64, which float16 holds exactly and which makes small files.
- The reference computes in float64, so that what is measured is our own rounding.

The layouts differ in this: torch keeps a linear's weight as (out, in), a convolution's as (out, in,
height, width), images as (batch, channels, height, width), and q, k, v stacked along out.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.peers import import_timm

HERE = Path(__file__).parent / "vit"
TINY = {"num_classes": 5, "image_size": 16, "patch_size": 4, "width": 24, "depth": 2, "heads": 3}

# Case: (fields of our ViT, the same thing as arguments of timm's VisionTransformer).
TIMM_CASES = {
    "cls": ({"width": 36, "depth": 3}, {}),
    "mean_fc_norm": (
        {"pool": "mean", "class_token": True, "pool_norm": "after"},
        {"global_pool": "avg"},
    ),
    "mean_no_class_token": (
        {"pool": "mean"},
        {"global_pool": "avg", "class_token": False, "fc_norm": False},
    ),
    "map": ({"pool": "map"}, {"global_pool": "map", "class_token": False}),
    "map_class_token": ({"pool": "map", "class_token": True}, {"global_pool": "map"}),
    "registers": ({"registers": 2}, {"reg_tokens": 2}),
    "registers_patch_positions": (
        {"registers": 2, "pos_on_cls": False},
        {"reg_tokens": 2, "no_embed_class": True},
    ),
    "pos_not_on_cls": ({"pos_on_cls": False}, {"no_embed_class": True}),
    "layer_scale": ({"layer_scale": 1e-5}, {}),
    "qk_norm": ({"qk_norm": True}, {"qk_norm": True}),
    "no_qkv_bias": ({"qkv_bias": False}, {"qkv_bias": False}),
    "embed_norm": ({"embed_norm": True, "patch_bias": False}, {"pre_norm": True}),
    "gelu_tanh": ({"activation": "gelu_tanh"}, {"act_layer": "gelu_tanh"}),
    "quick_gelu": ({"activation": "quick_gelu"}, {"act_layer": "quick_gelu"}),
    "eps_1e-5": ({"norm_eps": 1e-5}, {"norm_layer": partial(nn.LayerNorm, eps=1e-5)}),
    "rectangular": (
        {"image_size": (16, 24), "patch_size": (8, 4)},
        {"img_size": (16, 24), "patch_size": (8, 4)},
    ),
    "one_channel": ({"in_channels": 1}, {"in_chans": 1}),
    "mlp_ratio_3": ({"mlp_ratio": 3.0}, {"mlp_ratio": 3.0}),
    "no_head": ({"num_classes": 0}, {"num_classes": 0}),
    "distilled": ({"distilled": True}, {}),
    # timm counts the gate and the value together.
    "swiglu": ({"mlp": "swiglu", "mlp_width": 36, "layer_scale": 1e-5}, {"mlp_ratio": 2 * 36 / 24}),
}
POST_NORM = {"norm_order": "post", "activation": "relu", "norm_eps": 1e-5}


def main():
    for seed, (name, (fields, arguments)) in enumerate(TIMM_CASES.items()):
        torch.manual_seed(seed)
        fields = {**TINY, **fields}
        model = timm_vit(fields, arguments)
        randomise(model, embedding_scale=2**-6 if name.startswith("eps") else 1.0)
        save(name, fields, timm_params(model, fields), model, model.blocks)

    torch.manual_seed(100)
    fields = {**TINY, **POST_NORM}
    model = PostNormViT(fields).double().eval()
    randomise(model)
    save("post_norm", fields, post_norm_params(model, fields), model, model.encoder.layers)


def timm_vit(fields, arguments):
    timm = import_timm()
    translated = {
        "img_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "num_classes": fields["num_classes"],
        "embed_dim": fields["width"],
        "depth": fields["depth"],
        "num_heads": fields["heads"],
        "norm_layer": partial(nn.LayerNorm, eps=1e-6),
        **arguments,
    }
    if "layer_scale" in fields:
        translated["init_values"] = fields["layer_scale"]
    if fields.get("mlp") == "swiglu":
        translated |= {"mlp_layer": timm.layers.SwiGLUPacked, "act_layer": nn.SiLU}
    vit = timm.models.VisionTransformer
    if fields.get("distilled"):
        vit = timm.models.VisionTransformerDistilled
    return vit(**translated).double().eval()


class PostNormViT(nn.Module):
    """A ViT around torch's own encoder layer with its defaults: norms after the sums, ReLU."""

    def __init__(self, fields):
        super().__init__()
        width, patch = fields["width"], fields["patch_size"]
        tokens = 1 + (fields["image_size"] // patch) ** 2
        self.patch_embed = nn.Conv2d(3, width, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens, width))
        layer = nn.TransformerEncoderLayer(
            width, fields["heads"], 4 * width, batch_first=True, norm_first=False
        )
        self.encoder = nn.TransformerEncoder(layer, fields["depth"], enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, fields["num_classes"])

    def forward(self, images):
        x = self.patch_embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        for layer in self.encoder.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def randomise(model, embedding_scale=1.0):
    """Fills every parameter with random multiples of 1/64, embeddings times `embedding_scale`."""
    for name, parameter in model.named_parameters():
        if name.endswith("gamma") or ("norm" in name and name.endswith("weight")):
            drawn = 0.5 + torch.rand(parameter.shape)
        elif parameter.ndim == 1:
            drawn = 0.3 * torch.randn(parameter.shape)
        elif name.endswith(("_token", "pos_embed", "latent")):
            drawn = 0.7 * torch.randn(parameter.shape)
        else:
            drawn = 1.5 * torch.randn(parameter.shape) / parameter[0].numel() ** 0.5
        drawn = coarse(drawn)
        if name.startswith(("patch_embed", "cls_token", "pos_embed")):
            drawn = drawn * embedding_scale
        parameter.data = drawn.double()


def coarse(values):
    return (values * 64).round() / 64


def run_with_blocks(model, blocks, images):
    """Returns logits, and what each of the blocks gave, in their order."""
    outputs = []
    hooks = [
        block.register_forward_hook(lambda _, __, out: outputs.append(out)) for block in blocks
    ]
    with torch.no_grad():
        logits = model(images)
    for hook in hooks:
        hook.remove()
    return logits, outputs


def save(name, fields, params, model, blocks):
    size = fields["image_size"]
    height, width = size if isinstance(size, tuple) else (size, size)
    images = coarse(torch.randn(2, fields.get("in_channels", 3), height, width)).double()
    write(HERE / f"{name}.npz", fields, params, images, *run_with_blocks(model, blocks, images))


def write(path, fields, params, images, logits, outputs):
    """Writes a golden file; `logits` may be None."""
    arrays = {f"params/{name}": value.numpy().astype(np.float16) for name, value in params.items()}
    arrays |= {f"block_{i}": out.numpy().astype(np.float32) for i, out in enumerate(outputs)}
    arrays["images"] = images.permute(0, 2, 3, 1).numpy().astype(np.float16)
    if logits is not None:
        arrays["logits"] = logits.numpy().astype(np.float32)
    np.savez_compressed(path, fields=json.dumps(fields), **arrays)


def timm_params(model, fields):
    """timm's state dict in our layout; it must be used up to the last entry."""
    state = dict(model.state_dict())
    params = {"patch_embed/kernel": state.pop("patch_embed.proj.weight").permute(2, 3, 1, 0)}
    if "patch_embed.proj.bias" in state:
        params["patch_embed/bias"] = state.pop("patch_embed.proj.bias")
    positions = state.pop("pos_embed")
    if "cls_token" in state:
        params["cls_token"] = state.pop("cls_token")
    if "dist_token" in state:
        params["dist_token"] = state.pop("dist_token")
    if "reg_token" in state:
        params["reg_tokens"] = state.pop("reg_token")
        if fields.get("pos_on_cls", True):
            # timm's registers have positions of their own there; ours have them added in.
            params["reg_tokens"] = params["reg_tokens"] + positions[:, 1 : 1 + fields["registers"]]
            positions = torch.cat(
                [positions[:, :1], positions[:, 1 + fields["registers"] :]], dim=1
            )
    params["pos_embed"] = positions
    heads = fields["heads"]
    if "norm_pre.weight" in state:
        params |= norm(state, "norm_pre", "pre_norm")
    for i in range(fields["depth"]):
        there, here = f"blocks.{i}", f"blocks_{i}"
        params |= norm(state, f"{there}.norm1", f"{here}/norm1")
        params |= norm(state, f"{there}.norm2", f"{here}/norm2")
        for kind in "qk":
            if f"{there}.attn.{kind}_norm.weight" in state:
                params |= norm(state, f"{there}.attn.{kind}_norm", f"{here}/attn/{kind}_norm")
        params |= qkv(state, f"{there}.attn.qkv", f"{here}/attn/qkv", heads)
        params |= out(state, f"{there}.attn.proj", f"{here}/attn/out", heads)
        params |= linear(state, f"{there}.mlp.fc1", f"{here}/mlp/fc1")
        params |= linear(state, f"{there}.mlp.fc2", f"{here}/mlp/fc2")
        for number in "12":
            if f"{there}.ls{number}.gamma" in state:
                params[f"{here}/ls{number}/gamma"] = state.pop(f"{there}.ls{number}.gamma")
    params |= norm(state, "fc_norm" if "fc_norm.weight" in state else "norm", "norm")
    if "attn_pool.latent" in state:
        params["map_head/probe"] = state.pop("attn_pool.latent")
        for part in ("weight", "bias"):
            q, kv = state.pop(f"attn_pool.q.{part}"), state.pop(f"attn_pool.kv.{part}")
            state[f"attn_pool.qkv.{part}"] = torch.cat([q, kv])
        params |= qkv(state, "attn_pool.qkv", "map_head/attn/qkv", heads)
        params |= out(state, "attn_pool.proj", "map_head/attn/out", heads)
        params |= norm(state, "attn_pool.norm", "map_head/norm")
        params |= linear(state, "attn_pool.mlp.fc1", "map_head/mlp/fc1")
        params |= linear(state, "attn_pool.mlp.fc2", "map_head/mlp/fc2")
    if fields["num_classes"]:
        params |= linear(state, "head", "head")
        if fields.get("distilled"):
            params |= linear(state, "head_dist", "head_dist")
    assert not state, f"left over: {list(state)}"
    return params


def post_norm_params(model, fields):
    state = dict(model.state_dict())
    params = {
        "patch_embed/kernel": state.pop("patch_embed.weight").permute(2, 3, 1, 0),
        "patch_embed/bias": state.pop("patch_embed.bias"),
        "cls_token": state.pop("cls_token"),
        "pos_embed": state.pop("pos_embed"),
        **norm(state, "norm", "norm"),
        **linear(state, "head", "head"),
    }
    for i in range(fields["depth"]):
        there, here = f"encoder.layers.{i}", f"blocks_{i}"
        for part in ("weight", "bias"):
            state[f"qkv.{part}"] = state.pop(f"{there}.self_attn.in_proj_{part}")
        params |= qkv(state, "qkv", f"{here}/attn/qkv", fields["heads"])
        params |= out(state, f"{there}.self_attn.out_proj", f"{here}/attn/out", fields["heads"])
        params |= linear(state, f"{there}.linear1", f"{here}/mlp/fc1")
        params |= linear(state, f"{there}.linear2", f"{here}/mlp/fc2")
        params |= norm(state, f"{there}.norm1", f"{here}/norm1")
        params |= norm(state, f"{there}.norm2", f"{here}/norm2")
    assert not state, f"left over: {list(state)}"
    return params


def norm(state, there, here):
    scale, bias = state.pop(f"{there}.weight"), state.pop(f"{there}.bias")
    return {f"{here}/scale": scale, f"{here}/bias": bias}


def linear(state, there, here):
    kernel, bias = state.pop(f"{there}.weight").T, state.pop(f"{there}.bias")
    return {f"{here}/kernel": kernel, f"{here}/bias": bias}


def qkv(state, there, here, heads):
    weight = state.pop(f"{there}.weight")
    width = weight.shape[1]
    params = {f"{here}/kernel": weight.T.reshape(width, 3, heads, -1)}
    if f"{there}.bias" in state:
        params[f"{here}/bias"] = state.pop(f"{there}.bias").reshape(3, heads, -1)
    return params


def out(state, there, here, heads):
    params = linear(state, there, here)
    kernel = params[f"{here}/kernel"]
    return {**params, f"{here}/kernel": kernel.reshape(heads, -1, kernel.shape[1])}


if __name__ == "__main__":
    main()
