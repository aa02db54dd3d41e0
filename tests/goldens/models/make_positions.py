"""Makes the golden files of relative and rotary positions: tiny models of timm.

    python -m tests.goldens.models.make_positions

needs torch and timm. The files are of the format of `make_golden.py`, whose helpers are used here:

- `relative.npz`: timm's Beit with a table of relative positions in every block and a class token.
  Its three rows for the class token stand at the end of a table, ours in front.
- `rotary.npz`: timm's Eva as its RoPE-ViT models have it (`rope_temperature=100`,
  `rope_grid_indexing="xy"`, neighbouring channels turn together), class token and two registers.

Neither has a bias for keys, which no softmax could see; ours is zero. Grids are 3 x 5 patches, so
that rows and columns cannot be taken for each other.
"""

from functools import partial

import torch
from torch import nn

from tests.goldens.models.make_golden import import_timm, linear, norm, out, qkv, randomise, save

FIELDS = {
    "num_classes": 5,
    "image_size": (12, 20),
    "patch_size": 4,
    "width": 24,
    "depth": 2,
    "heads": 3,
}
ARGUMENTS = {
    "img_size": (12, 20),
    "patch_size": 4,
    "num_classes": 5,
    "embed_dim": 24,
    "depth": 2,
    "num_heads": 3,
    "global_pool": "token",
    "use_abs_pos_emb": False,
    "norm_layer": partial(nn.LayerNorm, eps=1e-6),
}
REGISTERS = 2


def main():
    timm = import_timm()
    torch.manual_seed(200)
    model = timm.models.beit.Beit(**ARGUMENTS, use_rel_pos_bias=True).double().eval()
    make("relative", {**FIELDS, "positions": "relative"}, model)

    torch.manual_seed(201)
    model = timm.models.eva.Eva(
        **ARGUMENTS,
        num_reg_tokens=REGISTERS,
        use_rot_pos_emb=True,
        rope_temperature=100.0,
        rope_grid_indexing="xy",
    )
    fields = {**FIELDS, "positions": "rotary", "registers": REGISTERS}
    make("rotary", fields, model.double().eval())


def make(name, fields, model):
    randomise(model)
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("relative_position_bias_table"):
            parameter.data = (1.5 * torch.randn(parameter.shape) * 64).round().double() / 64
    save(name, fields, params_of(model, fields), model, model.blocks)


def params_of(model, fields):
    """timm's state dict in our layout; it must be used up to the last entry."""
    state = {k: v for k, v in model.state_dict().items() if "relative_position_index" not in k}
    params = {
        "patch_embed/kernel": state.pop("patch_embed.proj.weight").permute(2, 3, 1, 0),
        "patch_embed/bias": state.pop("patch_embed.proj.bias"),
        "cls_token": state.pop("cls_token"),
        **norm(state, "norm", "norm"),
        **linear(state, "head", "head"),
    }
    if "reg_token" in state:
        params["reg_tokens"] = state.pop("reg_token")
    for i in range(fields["depth"]):
        there, here = f"blocks.{i}", f"blocks_{i}"
        q, v = (state.pop(f"{there}.attn.{kind}_bias") for kind in "qv")
        state[f"{there}.attn.qkv.bias"] = torch.cat([q, torch.zeros_like(q), v])
        params |= norm(state, f"{there}.norm1", f"{here}/norm1")
        params |= norm(state, f"{there}.norm2", f"{here}/norm2")
        params |= qkv(state, f"{there}.attn.qkv", f"{here}/attn/qkv", fields["heads"])
        params |= out(state, f"{there}.attn.proj", f"{here}/attn/out", fields["heads"])
        params |= linear(state, f"{there}.mlp.fc1", f"{here}/mlp/fc1")
        params |= linear(state, f"{there}.mlp.fc2", f"{here}/mlp/fc2")
        if f"{there}.attn.relative_position_bias_table" in state:
            table = state.pop(f"{there}.attn.relative_position_bias_table")
            params[f"{here}/attn/relative_bias"] = torch.cat([table[-3:], table[:-3]])
    assert not state, f"left over: {list(state)}"
    return params


if __name__ == "__main__":
    main()
