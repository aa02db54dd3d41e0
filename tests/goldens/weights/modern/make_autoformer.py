"""Makes the golden files of AutoFormer, by the code of its authors.

    git clone https://github.com/microsoft/Cream
    python -m tests.goldens.weights.modern.make_autoformer Cream/AutoFormer

`common.py` says what is in a file. `supernet` is a whole supernet, and `subnet` has the answers of
a part of it, whose tensors are those of the supernet. Distances are clipped at two patches, so that
some of the grid are longer; heads have 8 channels in place of the authors' 64.
"""

import collections.abc
import sys
import types

import torch

from tests.goldens.weights.modern.common import CLASSES, PATCH, SIZE, WIDTH, randomise, save

HEAD_DIM, CLIP = 8, 2
WHOLE = {"layer_num": 3, "embed_dim": [32] * 3, "num_heads": [4] * 3, "mlp_ratio": [2.0] * 3}
PART = {"layer_num": 2, "embed_dim": [24] * 2, "num_heads": [3, 2], "mlp_ratio": [1.5, 1.0]}


def sampled(model, sizes):
    """The model as a subnet, as the authors set it."""
    model.set_sample_config(sizes)
    for block, heads in zip(model.blocks, sizes["num_heads"], strict=False):
        block.attn.set_sample_config(heads * HEAD_DIM, heads, sizes["embed_dim"][0])
    return model


def answer(model):
    def of(images):
        tokens = []
        hook = model.norm.register_forward_hook(lambda _, __, out: tokens.append(out))
        pooled = model.forward_features(images)
        hook.remove()
        return {"tokens": tokens[0], "pooled": pooled, "logits": model.head(pooled)}

    return of


def main(folder):
    sys.path.insert(0, folder)
    # Of an older torch.
    sys.modules["torch._six"] = types.SimpleNamespace(container_abcs=collections.abc)
    from model.supernet_transformer import Vision_TransformerSuper

    torch.manual_seed(0)
    model = Vision_TransformerSuper(
        img_size=SIZE,
        patch_size=PATCH,
        num_classes=CLASSES,
        embed_dim=WIDTH,
        depth=WHOLE["layer_num"],
        num_heads=WIDTH // HEAD_DIM,
        mlp_ratio=2.0,
        qkv_bias=True,
        gp=True,
        relative_position=True,
        change_qkv=True,
        max_relative_position=CLIP,
    )
    # Their activation computes in float32 whatever comes in.
    model = randomise(model.eval()).double()
    for block in model.blocks:
        block.activation_fn = torch.nn.functional.gelu
    for name, sizes, tensors in (("supernet", WHOLE, model.state_dict()), ("subnet", PART, {})):
        own = sampled(model, sizes)
        save(
            f"autoformer/{name}",
            tensors,
            (own.blocks[: sizes["layer_num"]], answer(own)),
            None,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
