"""Makes the golden files of Google's layouts.

    python -m tests.goldens.weights.make_google

needs torch, timm and SciPy, which the tests do not; the versions are in `pyproject.toml` under
`parity`, but for SciPy.

Google's own code does not run beside today's libraries. So the weights are drawn here under the
names that it writes, and what they compute is worked out in float64 by NumPy from the paper
(`forward`); where timm can read the layout, its answer must be the same to 1e-10. Positions for
another image size are resized as Google's code does, by `scipy.ndimage.zoom` of order 1. Tokens
begin small, so that a wrong epsilon shows.

Every file holds one case: the tensors as `file/NAME`, in float16, which holds them exactly;
images `(batch, height, width, 3)`; each block's output and the answer in float32; and the same
for images of another size as `other/...`.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import scipy.ndimage
import torch

HERE = Path(__file__).parent
from tests.goldens.models.make_golden import import_timm  # noqa: E402

PATCH, WIDTH, DEPTH, HEADS, HIDDEN, CLASSES = 4, 16, 2, 2, 24, 5
SIZE, OTHER_SIZE = (16, 16), (24, 12)
SMALL = 1 / 64  # what embeddings, class token and positions are multiplied by

# What tells the cases apart. positions: "with class" has a row for the class token, "patches" none,
# "fixed" is in no file. numbers: of attention, second norm and MLP. timm: it can read the file.
CASES = {
    # The 2020 paper's files, AugReg and SAM.
    "classic": {"pool": "cls", "positions": "with class", "numbers": (1, 2, 3), "timm": True},
    "pre_logits": {
        "pool": "cls",
        "positions": "with class",
        "numbers": (1, 2, 3),
        "representation": 12,
    },
    "gap": {"pool": "mean", "positions": "patches", "numbers": (1, 2, 3), "timm": True},
    # What today's vision_transformer saves.
    "linen": {"pool": "cls", "positions": "with class", "numbers": (0, 1, 0)},
    # big_vision.
    "class_token": {"pool": "cls", "prefix": "params/", "timm": True},
    "map": {"pool": "map", "prefix": "params/", "extra": ("opt/0/count",), "timm": True},
    "stacked": {"pool": "mean", "prefix": "params/", "stacked": True, "timm": True},
    "sincos": {"pool": "mean", "positions": "fixed", "representation": 16, "stacked": True},
    "siglip": {
        "pool": "map",
        "prefix": "params/img/",
        "head": False,
        "extra": ("params/txt/Embed_0/embedding", "params/t", "params/b"),
        "timm": True,
    },
}


def main():
    timm = import_timm()
    for number, (name, case) in enumerate(CASES.items()):
        generator = np.random.default_rng(number)
        weights = draw_weights(generator, case)
        tensors = as_file(weights, case)
        arrays = {f"file/{key}": value.astype(np.float16) for key, value in tensors.items()}
        for where, size in (("", SIZE), ("other/", OTHER_SIZE)):
            images = coarse(generator.normal(size=(2, *size, 3)))
            blocks, answer = forward(weights, images, case)
            if case.get("timm") and size == SIZE:
                compare(timm, tensors, case, images, blocks, answer)
            arrays[f"{where}images"] = images.astype(np.float16)
            arrays[f"{where}answer"] = answer.astype(np.float32)
            for i, block in enumerate(blocks):
                arrays[f"{where}block_{i}"] = block.astype(np.float32)
        np.savez_compressed(HERE / f"google_{name}.npz", case=json.dumps(case), **arrays)


# ------------------------------------------------------------------------------------- the weights


def draw_weights(generator, case):
    """Random weights by the names that linen gives, without prefix, blocks apart."""

    def kernel(*shape, inputs):
        return coarse(1.5 * generator.normal(size=shape) / inputs**0.5)

    def bias(*shape):
        return coarse(0.3 * generator.normal(size=shape))

    def token(rows):
        return coarse(0.7 * generator.normal(size=(1, rows, WIDTH)))

    def dense(name, inputs, outputs):
        return {
            f"{name}/kernel": kernel(inputs, outputs, inputs=inputs),
            f"{name}/bias": bias(outputs),
        }

    def norm(name):
        scale = coarse(0.5 + generator.uniform(size=WIDTH))
        return {f"{name}/scale": scale, f"{name}/bias": bias(WIDTH)}

    def attention(name):
        made, head_dim = {}, WIDTH // HEADS
        for part in ("query", "key", "value"):
            made[f"{name}/{part}/kernel"] = kernel(WIDTH, HEADS, head_dim, inputs=WIDTH)
            made[f"{name}/{part}/bias"] = bias(HEADS, head_dim)
        made[f"{name}/out/kernel"] = kernel(HEADS, head_dim, WIDTH, inputs=WIDTH)
        made[f"{name}/out/bias"] = bias(WIDTH)
        return made

    def mlp(name):
        return {
            **dense(f"{name}/Dense_0", WIDTH, HIDDEN),
            **dense(f"{name}/Dense_1", HIDDEN, WIDTH),
        }

    weights = {
        "embedding/kernel": kernel(PATCH, PATCH, 3, WIDTH, inputs=PATCH * PATCH * 3) * SMALL,
        "embedding/bias": bias(WIDTH) * SMALL,
    }
    if case["pool"] == "cls":
        weights["cls"] = token(1) * SMALL
    rows = SIZE[0] * SIZE[1] // PATCH**2
    if case.get("positions") == "with class":
        weights["Transformer/posembed_input/pos_embedding"] = token(rows + 1) * SMALL
    elif case.get("positions") == "patches":
        weights["Transformer/posembed_input/pos_embedding"] = token(rows) * SMALL
    elif case.get("positions") != "fixed":
        weights["pos_embedding"] = token(rows) * SMALL
    for i in range(DEPTH):
        block = f"Transformer/encoderblock_{i}"
        weights |= norm(f"{block}/LayerNorm_0")
        weights |= attention(f"{block}/MultiHeadDotProductAttention_0")
        weights |= norm(f"{block}/LayerNorm_1")
        weights |= mlp(f"{block}/MlpBlock_0")
    weights |= norm("Transformer/encoder_norm")
    if case["pool"] == "map":
        weights["MAPHead_0/probe"] = token(1)
        weights |= attention("MAPHead_0/MultiHeadDotProductAttention_0")
        weights |= norm("MAPHead_0/LayerNorm_0")
        weights |= mlp("MAPHead_0/MlpBlock_0")
    pooled = case.get("representation", WIDTH)
    if "representation" in case:
        weights |= dense("pre_logits", WIDTH, pooled)
    if case.get("head", True):
        weights |= dense("head", pooled, CLASSES)
    return weights


def as_file(weights, case):
    """The same numbers by the names of a published file, and what stands beside them there."""
    attention, norm2, mlp = case.get("numbers", (0, 1, 0))
    renumbered = {}
    for name, value in weights.items():
        if name.startswith("Transformer/encoderblock_"):
            name = name.replace("LayerNorm_1", f"LayerNorm_{norm2}")
            name = name.replace("Attention_0", f"Attention_{attention}")
            name = name.replace("MlpBlock_0", f"MlpBlock_{mlp}")
        renumbered[name] = value
    if case.get("stacked"):
        first = "Transformer/encoderblock_0/"
        for name in [name for name in renumbered if name.startswith(first)]:
            of_block = [renumbered.pop(name.replace("_0/", f"_{i}/", 1)) for i in range(DEPTH)]
            renumbered[name.replace("_0/", "/", 1)] = np.stack(of_block)
    prefix = case.get("prefix", "")
    beside = {name: np.ones(3) for name in case.get("extra", ())}
    return {**{prefix + name: value for name, value in renumbered.items()}, **beside}


def coarse(values):
    return np.round(values * 64) / 64


# ----------------------------------------------------------------------------------- the reference


def forward(weights, images, case):
    """Each block's output and the answer, by the paper's equations 1 to 4, in float64."""
    batch, height, width, _ = images.shape
    rows, columns = height // PATCH, width // PATCH
    patches = images.reshape(batch, rows, PATCH, columns, PATCH, 3)
    x = np.einsum("brpcqi,pqid->brcd", patches, weights["embedding/kernel"])
    x = x.reshape(batch, rows * columns, WIDTH) + weights["embedding/bias"]
    x = with_positions(weights, x, (rows, columns), case)
    blocks = []
    for i in range(DEPTH):
        block = partial("Transformer/encoderblock_{}/{}".format, i)
        normed = layer_norm(weights, block("LayerNorm_0"), x)
        x = x + attend(weights, block("MultiHeadDotProductAttention_0"), normed, normed)
        normed = layer_norm(weights, block("LayerNorm_1"), x)
        x = x + mlp(weights, block("MlpBlock_0"), normed)
        blocks.append(x)
    x = layer_norm(weights, "Transformer/encoder_norm", x)
    if case["pool"] == "map":
        probe = np.tile(weights["MAPHead_0/probe"], (batch, 1, 1))
        x = attend(weights, "MAPHead_0/MultiHeadDotProductAttention_0", probe, x)
        x = x + mlp(
            weights, "MAPHead_0/MlpBlock_0", layer_norm(weights, "MAPHead_0/LayerNorm_0", x)
        )
    x = x.mean(axis=1) if case["pool"] == "mean" else x[:, 0]
    if "pre_logits/kernel" in weights:
        x = np.tanh(dense(weights, "pre_logits", x))
    return blocks, dense(weights, "head", x) if "head/kernel" in weights else x


def with_positions(weights, x, grid, case):
    """Class token and positions, in the order of the case's code."""
    in_front = np.tile(weights["cls"], (len(x), 1, 1)) if "cls" in weights else x[:, :0]
    if case.get("positions") == "with class":
        table = weights["Transformer/posembed_input/pos_embedding"]
        resized = [table[:, :1], resize(table[:, 1:], grid)]
        return np.concatenate([in_front, x], axis=1) + np.concatenate(resized, axis=1)
    if case.get("positions") == "patches":
        x = x + resize(weights["Transformer/posembed_input/pos_embedding"], grid)
    elif case.get("positions") == "fixed":
        x = x + sincos(grid)
    else:
        x = x + resize(weights["pos_embedding"], grid)
    return np.concatenate([in_front, x], axis=1)


def resize(table, grid):
    source = (SIZE[0] // PATCH, SIZE[1] // PATCH)
    factors = (grid[0] / source[0], grid[1] / source[1], 1)
    return scipy.ndimage.zoom(table.reshape(*source, -1), factors, order=1).reshape(1, -1, WIDTH)


def sincos(grid):
    """big_vision's fixed positions: sine and cosine of the column, then of the row."""
    frequencies = 10_000.0 ** -(np.arange(WIDTH // 4) / (WIDTH // 4 - 1))
    table = [
        [fn(place * f) for place in (c, r) for fn in (np.sin, np.cos) for f in frequencies]
        for r in range(grid[0])
        for c in range(grid[1])
    ]
    return np.array(table)[None]


def attend(weights, name, of, to):
    def project(part, x):
        kernel, bias = (weights[f"{name}/{part}/{kind}"] for kind in ("kernel", "bias"))
        return np.einsum("bnd,dhk->bhnk", x, kernel) + bias[:, None]

    query, key, value = project("query", of), project("key", to), project("value", to)
    logits = np.einsum("bhqk,bhnk->bhqn", query, key) / query.shape[-1] ** 0.5
    unscaled = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares = unscaled / unscaled.sum(axis=-1, keepdims=True)
    mixed = np.einsum("bhqn,bhnk->bhqk", shares, value)
    return (
        np.einsum("bhqk,hkd->bqd", mixed, weights[f"{name}/out/kernel"])
        + (weights[f"{name}/out/bias"])
    )


def mlp(weights, name, x):
    hidden = dense(weights, f"{name}/Dense_0", x)
    inner = np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3)
    return dense(weights, f"{name}/Dense_1", 0.5 * hidden * (1 + np.tanh(inner)))


def dense(weights, name, x):
    return x @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]


def layer_norm(weights, name, x):
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-6)
    return centred / spread * weights[f"{name}/scale"] + weights[f"{name}/bias"]


# ---------------------------------------------------------------------------------- timm's reading


def compare(timm, tensors, case, images, blocks, answer):
    """Fails unless timm, from the same file, computes the same."""
    model = timm.models.VisionTransformer(
        img_size=SIZE,
        patch_size=PATCH,
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        mlp_ratio=HIDDEN / WIDTH,
        num_classes=CLASSES if case.get("head", True) else 0,
        global_pool={"cls": "token", "mean": "avg", "map": "map"}[case["pool"]],
        class_token=case["pool"] == "cls",
        no_embed_class=case.get("positions") != "with class",
        fc_norm=False,
        act_layer="gelu_tanh",
    ).double()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "weights.npz"
        np.savez(path, **tensors)
        model.load_pretrained(path)
    outputs = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, __, out: outputs.append(out.numpy()))
    with torch.no_grad():
        theirs = model.eval()(torch.from_numpy(images).permute(0, 3, 1, 2)).numpy()
    for ours, other in zip([*blocks, answer], [*outputs, theirs], strict=True):
        np.testing.assert_allclose(ours, other, rtol=0, atol=1e-10)


if __name__ == "__main__":
    main()
