"""Makes the golden files of FlexiViTs, and of a ViT of timm at another patch size.

    python -m tests.goldens.weights.make_flexivit

needs torch, timm and SciPy, which the tests do not. The answers are timm's, in float64.

`flexivit_google.npz`: a file as big_vision writes it, `file/NAME` in float16, which holds it
exactly, with a kernel of 4 x 4 pixels and a table of 4 x 4 positions; images (2, 24, 24, 3); and
for each patch size such as `8x8/` the blocks' outputs and the logits of the model that timm makes
of the file for these patches. For grids smaller than the table timm does not antialias, but
big_vision does (`jax.image.resize`): the table is then resized by torch, antialiased.

`flexivit_timm.npz`: what timm stores of this file for patches of 6 x 6, its `config.json`, and its
answers; `other/`: those of a plain ViT of timm with patches of 12 x 8 and images of 24 x 32, made
of the same tensors by the filter with which timm loads weights of another size.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from tests.goldens.models.make_golden import import_timm
from tests.goldens.weights import make_google

HERE = Path(__file__).parent
SIDE, GRID = 24, 4
PATCHES = ((4, 4), (6, 6), (8, 8), (3, 3), (8, 4))
STORED, OTHER_PATCH, OTHER_SIZE = (6, 6), (12, 8), (24, 32)
ARGUMENTS = {
    "embed_dim": make_google.WIDTH,
    "depth": make_google.DEPTH,
    "num_heads": make_google.HEADS,
    "mlp_ratio": make_google.HIDDEN / make_google.WIDTH,
    "num_classes": make_google.CLASSES,
    "act_layer": "gelu_tanh",
}


def main():
    timm = import_timm()
    generator = np.random.default_rng(100)
    weights = make_google.draw_weights(generator, {"pool": "cls"})
    # Resized kernels and positions must show beside the rest.
    weights["embedding/kernel"] *= 16
    weights["pos_embedding"] *= 16
    arrays = {f"file/{name}": value.astype(np.float16) for name, value in weights.items()}
    images = make_google.coarse(generator.normal(size=(2, SIDE, SIDE, 3)))
    arrays["images"] = images.astype(np.float16)
    for patch in PATCHES:
        model = from_file(timm, weights, patch)
        arrays |= answers(model, images, f"{patch[0]}x{patch[1]}/")
    np.savez_compressed(HERE / "flexivit_google.npz", **arrays)

    model = from_file(timm, weights, STORED)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    arrays = {f"tensors/{name}": value.astype(np.float32) for name, value in tensors.items()}
    model.load_state_dict({n: torch.from_numpy(x).float().double() for n, x in tensors.items()})
    arrays |= {"images": images.astype(np.float32), **answers(model, images)}
    others = make_google.coarse(generator.normal(size=(2, *OTHER_SIZE, 3)))
    other = vision_transformer(timm, OTHER_PATCH, OTHER_SIZE)
    loaded = timm.models.vision_transformer.checkpoint_filter_fn(model.float().state_dict(), other)
    other.load_state_dict({name: tensor.double() for name, tensor in loaded.items()})
    arrays |= {"other/images": others.astype(np.float32), **answers(other, others, "other/")}
    config = {
        "architecture": "flexivit_small",
        "num_classes": make_google.CLASSES,
        "global_pool": "token",
        "model_args": {**ARGUMENTS, "img_size": SIDE, "patch_size": STORED[0]},
        "pretrained_cfg": {
            "input_size": [3, SIDE, SIDE],
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "crop_pct": 0.95,
            "interpolation": "bicubic",
        },
    }
    asked = {"origin": None, "heads": None}
    np.savez_compressed(
        HERE / "flexivit_timm.npz", config=json.dumps(config), asked=json.dumps(asked), **arrays
    )


def vision_transformer(timm, patch, size):
    return timm.models.VisionTransformer(
        img_size=size, patch_size=patch, no_embed_class=True, **ARGUMENTS
    ).double()


def from_file(timm, weights, patch):
    """timm's model of big_vision's file for a patch size."""
    model = vision_transformer(timm, patch, (SIDE, SIDE))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.npz"
        np.savez(path, **weights)
        model.load_pretrained(path)
    grid = (SIDE // patch[0], SIDE // patch[1])
    table = torch.from_numpy(weights["pos_embedding"]).reshape(1, GRID, GRID, -1)
    resized = interpolate(
        table.permute(0, 3, 1, 2), size=grid, mode="bilinear", antialias=True
    ).permute(0, 2, 3, 1)
    resized = resized.reshape(1, grid[0] * grid[1], -1)
    if min(grid) >= GRID:  # an enlargement is the same with and without antialiasing
        np.testing.assert_allclose(model.pos_embed.detach(), resized, atol=1e-6)
    model.pos_embed.data = resized
    return model


def answers(model, images, where=""):
    outputs = []
    hooks = [
        block.register_forward_hook(lambda _, __, out: outputs.append(out.numpy()))
        for block in model.blocks
    ]
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    for hook in hooks:
        hook.remove()
    found = {f"block_{i}": output for i, output in enumerate(outputs)} | {"logits": logits}
    return {f"{where}{name}": array.astype(np.float32) for name, array in found.items()}


if __name__ == "__main__":
    main()
