"""Makes the golden files of SegFormer and Segmenter.

    python -m tests.goldens.weights.modern.make_segmentation

`common.py` says what is in a file. `logits` are those of every pixel, `(1, height, width,
classes)`, enlarged to the images by torch. The sides of the other size are no multiples of strides.

- `segformer`: transformers' segmenter.
- `segformer_original`: the authors' repository is no package. Their model is that of transformers
  with other epsilons; here it is computed with theirs, and renamed as their files are.
- `segmenter`, `segmenter_linear`: the authors' repository is no package. The encoder is timm's ViT
  with torch's epsilon, and the decoders are written after its description with torch's layers.
"""

import re

import torch
from torch import nn
from torch.nn import functional as F

from tests.goldens.weights.modern.common import (
    CLASSES,
    NAMES,
    import_timm,
    import_torchvision,
    randomise,
    save,
    transformers_case,
)
from tests.goldens.weights.modern.make_pvt_v2 import HUGGING_FACE, PROCESSOR, small

SIZE, OTHER = (32, 32), (27, 18)
WIDTH, PATCH, HEADS = 16, 8, 2
EPSILON = 1e-5


def main():
    for number, make in enumerate((segformer, original, segmenter, linear)):
        torch.manual_seed(number)
        make()


def at_full_size(logits, images):
    return F.interpolate(logits, images.shape[2:], mode="bilinear").permute(0, 2, 3, 1)


def labels():
    return {"id2label": dict(enumerate(NAMES)), "num_labels": len(NAMES)}


def with_statistics(model):
    """The model with random parameters, and running statistics that are no longer 0 and 1."""
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.data = (0.3 * torch.randn(buffer.shape) * 64).round().to(buffer.dtype) / 64
        elif name.endswith("running_var"):
            buffer.data = ((0.5 + torch.rand(buffer.shape)) * 64).round().to(buffer.dtype) / 64
        elif name.endswith("num_batches_tracked"):
            buffer.zero_()
    return model


# ------------------------------------------------------------------------------------- SegFormer


def of_transformers():
    import_torchvision()
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(**HUGGING_FACE, **labels(), decoder_hidden_size=6)
    model = with_statistics(small(SegformerForSemanticSegmentation(config)))
    blocks = [block for stage in model.segformer.stages for block in stage.blocks]
    return model, blocks, lambda images: {"logits": at_full_size(model(images).logits, images)}


def segformer():
    model, blocks, answer = of_transformers()
    resize = {"resample": 2, "size": {"height": 32, "width": 32}}
    transformers_case(
        "segmentation/segformer",
        model,
        blocks,
        answer,
        preprocessor={
            **PROCESSOR,
            **resize,
            "image_processor_type": "SegformerImageProcessor",
            "do_reduce_labels": True,
        },
        in_memory=True,
        size=SIZE,
        other_size=OTHER,
    )


def original():
    from safetensors.torch import load_file

    model, blocks, answer = of_transformers()
    for name, module in model.named_modules():
        last = re.search(r"stages\.\d+\.(blocks\.\d+\.layernorm_(before|after)|layer_norm)$", name)
        if last:
            module.eps = 1e-6
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tensors = load_file(Path(folder) / "model.safetensors")
    tensors = {theirs: x for name, tensor in tensors.items() for theirs, x in named(name, tensor)}
    merged = {}
    for name, tensor in tensors.items():  # keys and values are one matrix
        if name.endswith(("attn.k.weight", "attn.k.bias")):
            value = tensors[name.replace("attn.k.", "attn.v.")]
            merged[name.replace("attn.k.", "attn.kv.")] = torch.cat([tensor, value])
        elif ".attn.v." not in name:
            merged[name] = tensor
    merged["decode_head.conv_seg.weight"] = torch.zeros(CLASSES, 3, 1, 1)
    run = (blocks, answer)
    save("segmentation/segformer_original", merged, run, None, asked={"heads": 1}, size=SIZE)


def named(name, tensor):
    """The name in the authors' files."""
    more = {"layer_norm_1": "norm1", "layer_norm_2": "norm2", "attention.output.dense": "attn.proj"}
    more |= {"attention.self.layer_norm": "attn.norm", "attention.self.sr": "attn.sr"}
    more |= {f"attention.self.{long}": f"attn.{long[0]}" for long in ("query", "key", "value")}
    more |= {"mlp.dense1": "mlp.fc1", "mlp.dense2": "mlp.fc2", "layer_norm": "norm"}
    number = {
        r"^segformer\.encoder\.patch_embeddings\.(\d)": "backbone.patch_embed{}",
        r"^segformer\.encoder\.block\.(\d)": "backbone.block{}",
        r"^segformer\.encoder\.layer_norm\.(\d)": "backbone.norm{}",
        r"^decode_head\.linear_c\.(\d)": "decode_head.linear_c{}",
    }
    for pattern, theirs in number.items():
        name = re.sub(pattern, lambda m, t=theirs: t.format(int(m[1]) + 1), name)
    if name.startswith("backbone"):
        for long, short in more.items():
            name = name.replace(long, short)
    name = name.replace("linear_fuse.weight", "linear_fuse.conv.weight")
    name = name.replace("decode_head.batch_norm", "decode_head.linear_fuse.bn")
    yield name.replace("decode_head.classifier", "decode_head.linear_pred"), tensor


# ------------------------------------------------------------------------------------- Segmenter


class MaskTransformer(nn.Module):
    """Patches and tokens of the classes in one more block, and cosines of their projections."""

    def __init__(self, block):
        super().__init__()
        self.proj_dec = nn.Linear(WIDTH, WIDTH)
        self.cls_emb = nn.Parameter(torch.randn(1, CLASSES, WIDTH))
        self.blocks = nn.ModuleList([block])
        self.decoder_norm, self.mask_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(CLASSES)
        self.proj_patch = nn.Parameter(torch.randn(WIDTH, WIDTH))
        self.proj_classes = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, patches):
        x = torch.cat([self.proj_dec(patches), self.cls_emb.expand(len(patches), -1, -1)], dim=1)
        for block in self.blocks:
            x = block(x)
        x = self.decoder_norm(x)
        patches, classes = x[:, :-CLASSES] @ self.proj_patch, x[:, -CLASSES:] @ self.proj_classes
        patches, classes = F.normalize(patches, dim=-1), F.normalize(classes, dim=-1)
        return self.mask_norm(patches @ classes.transpose(1, 2))


class Linear(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, patches):
        return self.head(patches)


class Segmenter(nn.Module):
    def __init__(self, decoder, distilled):
        super().__init__()
        timm = import_timm()
        fields = {"img_size": SIZE[0], "patch_size": PATCH, "embed_dim": WIDTH, "depth": 2}
        fields |= {"num_heads": HEADS, "num_classes": 4, "norm_layer": nn.LayerNorm}
        name = "deit_tiny_distilled_patch16_224" if distilled else "vit_tiny_patch16_224"
        self.encoder = timm.create_model(name, **fields)
        self.decoder = decoder(
            timm.models.vision_transformer.Block(WIDTH, 1, qkv_bias=True, norm_layer=nn.LayerNorm)
        )

    def forward(self, images):
        tokens = self.encoder.forward_features(images)
        places = self.decoder(tokens[:, self.encoder.num_prefix_tokens :])
        side = images.shape[2] // PATCH
        grid = places.transpose(1, 2).reshape(len(places), CLASSES, side, -1)
        return at_full_size(grid, images)


def segmenter(name="segmentation/segmenter", decoder=MaskTransformer, distilled=False):
    model = randomise(Segmenter(decoder, distilled).double().eval())
    assert {m.eps for m in model.modules() if isinstance(m, nn.LayerNorm)} == {EPSILON}
    run = (model.encoder.blocks, lambda images: {"logits": model(images)})
    save(name, model.state_dict(), run, None, asked={"heads": HEADS}, size=SIZE)


def linear():
    segmenter("segmentation/segmenter_linear", Linear, distilled=True)


if __name__ == "__main__":
    main()
