"""Makes the golden files of DPT and Depth Anything.

    python -m tests.goldens.weights.modern.make_depth

`common.py` says what is in a file; here `logits` is the depth, `(1, height, width)`, and `pooled`
is its first row.

- `dpt`, `dpt_add`, `dpt_ignore`: transformers' `dpt` with each kind of readout. Its patches are of
  16 x 16 pixels, for which alone its output has the size of the images, and those are square.
- `dpt_hybrid`: transformers' `dpt` on a ResNet of BiT, whose maps are read beside two blocks.
- `depth_anything`, `depth_anything_metric`: transformers' `depth_anything`, of which the other size
  has an odd number of patches on a side.
- `dpt_authors`, `depth_anything_authors`: the authors' repositories are no packages. The models are
  transformers', whose names are the result of renaming theirs; here they are renamed back. Of a
  file without a configuration the number of blocks says which are read, so there are twelve.
"""

import re
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file

from tests.goldens.weights.modern.common import (
    import_torchvision,
    randomise,
    save,
    transformers_case,
)

import_torchvision()  # before transformers

from transformers import (  # noqa: E402
    DepthAnythingConfig,
    DepthAnythingForDepthEstimation,
    Dinov2Config,
    DPTConfig,
    DPTForDepthEstimation,
    DPTImageProcessor,
)

WIDTH, DEPTH, HEADS = 8, 4, 2
MAPS, FUSED = [4, 5, 6, 6], 4
DPT_SIZE, DPT_OTHER = (32, 32), (64, 64)
SIZE, OTHER = (16, 16), (24, 12)


def main():
    cases = (dpt, add, ignore, depth_anything, metric, dpt_authors, depth_anything_authors)
    cases = (*cases, dpt_hybrid)
    for number, make in enumerate(cases):
        torch.manual_seed(number)
        make()


# ------------------------------------------------------------------------------------- the models


def small(model):
    """Random parameters, with a head whose output is seldom cut at 0."""
    randomise(model.double().eval())
    last = model.head.head[4] if hasattr(model.head, "head") else model.head.conv3
    last.weight.data /= 8
    last.bias.data[:] = 1
    return model


def dpt_model(width=WIDTH, depth=DEPTH, blocks=(0, 1, 2, 3), **others):
    config = DPTConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=HEADS,
        intermediate_size=2 * width,
        image_size=DPT_SIZE[0],
        neck_hidden_sizes=MAPS,
        fusion_hidden_size=FUSED,
        backbone_out_indices=list(blocks),
        layer_norm_eps=1e-3,
        **others,
    )
    return small(DPTForDepthEstimation(config))


def depth_anything_model(width=WIDTH, depth=DEPTH, out=(1, 2, 3, 4), patch=4, **others):
    backbone = Dinov2Config(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=HEADS,
        mlp_ratio=2,
        image_size=4 * patch,
        patch_size=patch,
        out_indices=list(out),
        apply_layernorm=True,
        reshape_hidden_states=False,
    )
    config = DepthAnythingConfig(
        backbone_config=backbone,
        patch_size=patch,
        reassemble_hidden_size=width,
        neck_hidden_sizes=MAPS,
        fusion_hidden_size=FUSED,
        head_hidden_size=5,
        **others,
    )
    return small(DepthAnythingForDepthEstimation(config))


def run(model):
    encoder = model.dpt.encoder if hasattr(model, "dpt") else model.backbone.encoder

    def answer(images):
        depth = model(images).predicted_depth
        return {"logits": depth, "pooled": depth[:, 0]}

    return list(encoder.layer), answer


# ---------------------------------------------------------------------------------- transformers


def processor(**fields):
    written = DPTImageProcessor(**fields).to_dict()
    kept = {key: value for key, value in written.items() if isinstance(value, bool | int | float)}
    kept |= {key: written[key] for key in ("image_mean", "image_std", "size")}
    return {**kept, "resample": 3, "image_processor_type": "DPTImageProcessor"}


def dpt(name="dpt", other_size=DPT_OTHER, **others):
    size = {"height": DPT_SIZE[0], "width": DPT_SIZE[1]}
    transformers_case(
        f"depth/{name}",
        *(model := dpt_model(**others), *run(model)),
        preprocessor=processor(size=size),
        size=DPT_SIZE,
        other_size=other_size,
    )


def add():
    dpt("dpt_add", DPT_SIZE, readout_type="add")


def ignore():
    dpt("dpt_ignore", DPT_SIZE, readout_type="ignore")


def depth_anything(name="depth_anything", **others):
    transformers_case(
        f"depth/{name}",
        *(model := depth_anything_model(**others), *run(model)),
        preprocessor=processor(
            size={"height": SIZE[0], "width": SIZE[1]},
            keep_aspect_ratio=True,
            ensure_multiple_of=14,
            image_mean=[0.485, 0.456, 0.406],
            image_std=[0.229, 0.224, 0.225],
        ),
        size=SIZE,
        other_size=OTHER,
    )


def metric():
    depth_anything("depth_anything_metric", depth_estimation_type="metric", max_depth=20)


# ------------------------------------------------------------------------------------ the authors

# From transformers' names of a block to those of timm and DINOv2.
_BLOCK = {
    r"encoder\.layer\.(\d+)\.": r"blocks.\1.",
    r"\.attention\.output\.dense\.": ".attn.proj.",
    r"\.layernorm_before\.": ".norm1.",
    r"\.layernorm_after\.": ".norm2.",
    r"\.intermediate\.dense\.": ".mlp.fc1.",
    r"(\d)\.output\.dense\.": r"\1.mlp.fc2.",
    r"\.layer_scale(\d)\.lambda1": r".ls\1.gamma",
    r"embeddings\.patch_embeddings\.projection\.": "patch_embed.proj.",
    r"embeddings\.cls_token": "cls_token",
    r"embeddings\.mask_token": "mask_token",
    r"embeddings\.position_embeddings": "pos_embed",
    r"\blayernorm\.": "norm.",
}
_FUSION = {
    r"neck\.convs\.(\d)\.": lambda m: f"scratch.layer{int(m[1]) + 1}_rn.",
    r"neck\.fusion_stage\.layers\.(\d)\.": lambda m: f"scratch.refinenet{4 - int(m[1])}.",
    r"\.residual_layer(\d)\.convolution(\d)\.": r".resConfUnit\1.conv\2.",
    r"(refinenet\d)\.projection\.": r"\1.out_conv.",
}
_DPT = {
    r"^dpt\.": "pretrained.model.",
    r"neck\.reassemble_stage\.layers\.(\d)\.projection\.": (
        lambda m: f"pretrained.act_postprocess{int(m[1]) + 1}.3."
    ),
    r"neck\.reassemble_stage\.layers\.(\d)\.resize\.": (
        lambda m: f"pretrained.act_postprocess{int(m[1]) + 1}.4."
    ),
    r"neck\.reassemble_stage\.readout_projects\.(\d)\.0\.": (
        lambda m: f"pretrained.act_postprocess{int(m[1]) + 1}.0.project.0."
    ),
    r"^head\.head\.": "scratch.output_conv.",
}
_DEPTH_ANYTHING = {
    r"^backbone\.": "pretrained.",
    r"neck\.reassemble_stage\.layers\.(\d)\.projection\.": r"depth_head.projects.\1.",
    r"neck\.reassemble_stage\.layers\.(\d)\.resize\.": r"depth_head.resize_layers.\1.",
    r"^scratch\.": "depth_head.scratch.",
    r"^head\.conv1\.": "depth_head.scratch.output_conv1.",
    r"^head\.conv2\.": "depth_head.scratch.output_conv2.0.",
    r"^head\.conv3\.": "depth_head.scratch.output_conv2.2.",
}


def renamed(model, *tables):
    """Tensors by the authors' names, with queries, keys and values in one."""
    with tempfile.TemporaryDirectory() as folder:  # whose names are not those in memory
        model.save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
    found, split = {}, {}
    for name, tensor in tensors.items():
        for pattern, new in (pair for table in tables for pair in table.items()):
            name = re.sub(pattern, new, name)
        part = re.search(r"\.attention\.attention\.(query|key|value)\.", name)
        if part:
            joined = name.replace(part[0], ".attn.qkv.")
            split.setdefault(joined, {})[part[1]] = tensor
        else:
            found[name] = tensor
    order = ("query", "key", "value")
    return found | {n: torch.cat([parts[o] for o in order]) for n, parts in split.items()}


def dpt_hybrid():
    config = DPTConfig(
        is_hybrid=True,
        hidden_size=WIDTH,
        num_hidden_layers=3,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        image_size=DPT_SIZE[0],
        neck_hidden_sizes=[32, 64, 6, 6],
        fusion_hidden_size=FUSED,
        backbone_out_indices=[0, 0, 1, 2],  # of which the first two are not used
        layer_norm_eps=1e-3,
        backbone_featmap_shape=[1, 128, 2, 2],
        backbone_config={
            "embedding_size": 8,
            "hidden_sizes": [32, 64, 128],
            "depths": [1, 2, 1],
            "num_groups": 4,
            "layer_type": "bottleneck",
            "global_padding": "same",
            "embedding_dynamic_padding": True,
            "out_features": ["stage1", "stage2", "stage3"],
        },
    )
    model = small(DPTForDepthEstimation(config))
    for name, parameter in model.named_parameters():
        if "position_embeddings" in name or "cls_token" in name:
            parameter.data *= 2**5  # beside what a ResNet gives, which is not small
    size = {"height": DPT_SIZE[0], "width": DPT_SIZE[1]}
    transformers_case(
        "depth/dpt_hybrid",
        *(model, *run(model)),
        preprocessor=processor(size=size),
        size=DPT_SIZE,
        other_size=None,
    )


def dpt_authors():
    model = dpt_model(WIDTH, 12, (2, 5, 8, 11))
    for layer in model.modules():
        if isinstance(layer, torch.nn.LayerNorm):
            layer.eps = 1e-6
    tensors = renamed(model, _BLOCK, _FUSION, _DPT)
    tensors |= {"pretrained.model.head.weight": torch.zeros(5, WIDTH)}
    asked = {"heads": HEADS, "image_size": DPT_SIZE}
    save("depth/dpt_authors", tensors, run(model), None, asked=asked, size=DPT_SIZE)


def depth_anything_authors():
    model = depth_anything_model(WIDTH, 12, (3, 6, 9, 12))
    tensors = renamed(model, _BLOCK, _FUSION, _DEPTH_ANYTHING)
    asked = {"heads": HEADS, "image_size": SIZE}
    save("depth/depth_anything_authors", tensors, run(model), None, asked=asked, size=SIZE)


if __name__ == "__main__":
    main()
