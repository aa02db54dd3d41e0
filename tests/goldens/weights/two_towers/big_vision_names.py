"""Tensors of a SigLIP of transformers under the names of big_vision, for the golden files."""

import numpy as np
import torch

IMAGE = "vision_model."


def big_vision(tensors, depth, heads):
    """Tensors of transformers by the names of big_vision, blocks apart."""
    found = {
        "params/img/embedding/kernel": tensors[
            f"{IMAGE}embeddings.patch_embedding.weight"
        ].transpose(2, 3, 1, 0),
        "params/img/embedding/bias": tensors[f"{IMAGE}embeddings.patch_embedding.bias"],
        "params/img/pos_embedding": tensors[f"{IMAGE}embeddings.position_embedding.weight"][None],
        "params/txt/pos_embedding": tensors["text_model.embeddings.position_embedding.weight"][
            None
        ],
        "params/txt/Embed_0/embedding": tensors["text_model.embeddings.token_embedding.weight"],
        "params/txt/head/kernel": tensors["text_model.head.weight"].T,
        "params/txt/head/bias": tensors["text_model.head.bias"],
        "params/t": tensors["logit_scale"],
        "params/b": tensors["logit_bias"],
        "params/img/MAPHead_0/probe": tensors[f"{IMAGE}head.probe"],
    }

    def norm(ours, theirs):
        found[f"params/{ours}/scale"] = tensors[f"{theirs}.weight"]
        found[f"params/{ours}/bias"] = tensors[f"{theirs}.bias"]

    def mlp(ours, theirs):
        for number in range(2):
            found[f"params/{ours}/Dense_{number}/kernel"] = tensors[
                f"{theirs}.fc{number + 1}.weight"
            ].T
            found[f"params/{ours}/Dense_{number}/bias"] = tensors[f"{theirs}.fc{number + 1}.bias"]

    def attention(ours, weights, biases, out):
        width = weights[0].shape[1]
        parts = zip(("query", "key", "value"), weights, biases, strict=True)
        for part, weight, bias in parts:
            found[f"params/{ours}/{part}/kernel"] = weight.T.reshape(width, heads, -1)
            found[f"params/{ours}/{part}/bias"] = bias.reshape(heads, -1)
        found[f"params/{ours}/out/kernel"] = tensors[f"{out}.weight"].T.reshape(heads, -1, width)
        found[f"params/{ours}/out/bias"] = tensors[f"{out}.bias"]

    for ours, theirs in (("img/Transformer", IMAGE), ("txt/Encoder_0", "text_model.")):
        for i in range(depth):
            block, layer = f"{ours}/encoderblock_{i}", f"{theirs}encoder.layers.{i}"
            norm(f"{block}/LayerNorm_0", f"{layer}.layer_norm1")
            norm(f"{block}/LayerNorm_1", f"{layer}.layer_norm2")
            mlp(f"{block}/MlpBlock_0", f"{layer}.mlp")
            weights, biases = (
                [tensors[f"{layer}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
                for kind in ("weight", "bias")
            )
            name = f"{block}/MultiHeadDotProductAttention_0"
            attention(name, weights, biases, f"{layer}.self_attn.out_proj")
    norm("img/Transformer/encoder_norm", f"{IMAGE}post_layernorm")
    norm("txt/Encoder_0/encoder_norm", "text_model.final_layer_norm")
    head, pooling = "img/MAPHead_0", f"{IMAGE}head"
    norm(f"{head}/LayerNorm_0", f"{pooling}.layernorm")
    mlp(f"{head}/MlpBlock_0", f"{pooling}.mlp")
    weights, biases = (
        np.split(tensors[f"{pooling}.attention.in_proj_{kind}"], 3) for kind in ("weight", "bias")
    )
    name = f"{head}/MultiHeadDotProductAttention_0"
    attention(name, weights, biases, f"{pooling}.attention.out_proj")
    assert sum(x.size for x in found.values()) == sum(x.size for x in tensors.values())
    return {key: torch.from_numpy(np.ascontiguousarray(x)) for key, x in found.items()}
