"""Makes the golden files of ViTDet.

    python -m tests.goldens.weights.modern.make_vitdet

`common.py` says what is in a file; blocks and `tokens` are maps `(1, channels, height, width)`.

- `transformers`: `VitDetModel`, whose windows fill no map, and whose other size is no square.
- `detectron2`: the same numbers under the names of detectron2, which is no package of PyPI, beside
  the pyramid. The pyramid is made here of torch's layers, as section 3 of the paper and the names
  say, and `level_0` to `level_3` are its maps; names of a detector's other parts are there too.
"""

import re

import torch
from torch import nn

from tests.goldens.weights.modern.common import import_torchvision, randomise, save

WIDTH, PYRAMID = 16, 6
SIZE, OTHER = (20, 20), (24, 12)


class Norm(nn.Module):
    """A LayerNorm of the channels of a map."""

    def __init__(self, channels):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x):
        shape = self.weight.shape
        x = nn.functional.layer_norm(x.movedim(1, -1), shape, self.weight, self.bias, 1e-6)
        return x.movedim(-1, 1)


class Conv(nn.Conv2d):
    """A convolution without bias, and its norm."""

    def __init__(self, channels, kernel):
        super().__init__(channels, PYRAMID, kernel, padding=kernel // 2, bias=False)
        self.norm = Norm(PYRAMID)

    def forward(self, x):
        return self.norm(super().forward(x))


def enlarge(channels):
    return nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)


def main():
    import_torchvision()
    torch.manual_seed(0)
    from transformers import VitDetConfig, VitDetModel

    config = VitDetConfig(
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=2,
        mlp_ratio=2,
        layer_norm_eps=1e-3,
        image_size=SIZE[0],
        pretrain_image_size=16,
        patch_size=4,
        window_block_indices=[0, 2],
        use_relative_position_embeddings=True,
        window_size=3,
    )
    model = randomise(VitDetModel(config).double().eval())
    for name, parameter in model.named_parameters():
        if "rel_pos" in name:
            parameter.data *= 2**5  # so that they matter
    state, written = model.state_dict(), {**config.to_dict(), "dtype": "float32"}
    parts = list(model.encoder.layer), lambda images: answer(model, images)
    sizes = {"size": SIZE, "other_size": OTHER}
    save("vitdet/transformers", state, parts, parts, config=written, **sizes)

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6  # as of all of detectron2's
    sides = {
        "simfp_2": [enlarge(WIDTH), Norm(WIDTH // 2), nn.GELU(), enlarge(WIDTH // 2)],
        "simfp_3": [enlarge(WIDTH)],
        "simfp_4": [],
        "simfp_5": [nn.MaxPool2d(2)],
    }
    channels = (WIDTH // 4, WIDTH // 2, WIDTH, WIDTH)
    pyramid = nn.ModuleDict(
        {
            name: nn.Sequential(*layers, Conv(count, 1), Conv(PYRAMID, 3))
            for (name, layers), count in zip(sides.items(), channels, strict=True)
        }
    )
    randomise(pyramid.double())
    for name, parameter in pyramid.named_parameters():
        if name.endswith(("1.weight", "norm.weight")) and parameter.ndim == 1:
            parameter.data = parameter.data.abs() + 0.5

    def with_pyramid(images):
        found = answer(model, images)
        levels = {f"level_{i}": level(found["tokens"]) for i, level in enumerate(pyramid.values())}
        return {**found, **levels}

    whole = {f"backbone.{renamed(name)}": tensor for name, tensor in state.items()}
    whole |= {f"backbone.{name}": tensor for name, tensor in pyramid.state_dict().items()}
    whole["proposal_generator.rpn_head.conv.weight"] = torch.zeros(2, 2)
    whole["roi_heads.box_predictor.cls_score.weight"] = torch.zeros(2, 2)
    parts = list(model.encoder.layer), with_pyramid
    asked = {"heads": 2, "image_size": SIZE}
    save("vitdet/detectron2", whole, parts, None, asked=asked, size=SIZE)


def answer(model, images):
    tokens = model(images).last_hidden_state
    return {"tokens": tokens, "pooled": tokens.mean((2, 3))}


def renamed(name):
    for theirs, detectron2 in (
        (r"^embeddings\.position_embeddings", "net.pos_embed"),
        (r"^embeddings\.projection", "net.patch_embed.proj"),
        (r"^encoder\.layer\.", "net.blocks."),
        (r"\.attention\.", ".attn."),
    ):
        name = re.sub(theirs, detectron2, name)
    return name


if __name__ == "__main__":
    main()
