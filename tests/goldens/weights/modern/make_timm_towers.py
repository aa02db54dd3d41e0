"""Makes the golden files of image towers of timm, and of OpenAI's, open_clip's and PE's own files.

    python -m tests.goldens.weights.modern.make_timm_towers

`common.py` says what is in a file. The authors' names are those that timm reads; their projection
has no bias, so that of timm's head is zero there. A file of a whole model has a text tower of one
block beside the image tower. PE's own code rotates by the number of the patch, whatever the size;
timm by its place on the grid of training, which here is that of the tiny model in either case.
"""

import copy

import torch

from tests.goldens.weights.modern.common import (
    CLASSES,
    GRID,
    HEADS,
    OTHER,
    WIDTH,
    coarse,
    save,
    timm_answer,
    timm_case,
    timm_model,
)

PROJECTION = 24


def main():
    cases = (
        siglip,
        clip,
        pe_core,
        pe_lang,
        pe_spatial,
        openai,
        open_clip,
        open_clip_trunk,
        pe_original,
        pe_lang_original,
    )
    for number, make in enumerate(cases):
        torch.manual_seed(number)
        make()


# -------------------------------------------------------------------------------------------- timm


def siglip():
    timm_case("timm_towers/siglip", "vit_base_patch16_siglip_224", num_classes=0)


def clip():
    """Its head is the projection."""
    timm_case("timm_towers/clip", "vit_base_patch16_clip_224.laion2b", num_classes=PROJECTION)


def pe_core():
    timm_case("timm_towers/pe_core", "vit_pe_core_base_patch16_224", num_classes=PROJECTION)


def pe_lang():
    """With layer scale; no norm behind the blocks, no pooling by attention."""
    timm_case("timm_towers/pe_lang", "vit_pe_lang_large_patch14_448")


def pe_spatial():
    timm_case("timm_towers/pe_spatial", "vit_pe_spatial_base_patch16_512", num_classes=CLASSES)


# ------------------------------------------------------------------------------- the authors' names

NAMES = (
    ("patch_embed.proj.", "conv1."),
    ("cls_token", "class_embedding"),
    ("pos_embed", "positional_embedding"),
    ("blocks.", "transformer.resblocks."),
    ("norm1.", "ln_1."),
    ("norm2.", "ln_2."),
    ("norm_pre.", "ln_pre."),
    ("gamma_1", "ls_1.gamma"),
    ("gamma_2", "ls_2.gamma"),
    ("attn.qkv.", "attn.in_proj_"),
    ("attn.proj.", "attn.out_proj."),
    ("mlp.fc1.", "mlp.c_fc."),
    ("mlp.fc2.", "mlp.c_proj."),
    ("attn_pool.latent", "attn_pool.probe"),
    ("attn_pool.proj.", "attn_pool.attn.out_proj."),
    ("attn_pool.norm.", "attn_pool.layernorm."),
)


def authors(name, model, prefix, more=(), asked=None):
    state = authors_names(model, prefix)
    own = (model.blocks, timm_answer(model))
    there = None
    if getattr(model, "rope", None) is None:
        other = copy.deepcopy(model)
        other.set_input_size(OTHER)
        there = (other.blocks, timm_answer(other))
    save(name, state | dict(more), own, there, asked=asked)


def authors_names(model, prefix):
    """The tensors of a model by the authors' names; its head loses its bias."""
    if model.num_classes:
        model.head.bias.data.zero_()
    state = {}
    for key, value in model.state_dict().items():
        if key in ("cls_token", "pos_embed"):
            value = value.squeeze(0).squeeze(0)
        if key.startswith(("head.bias", "attn_pool.kv.")):
            continue
        if key == "head.weight":
            key, value = "proj", value.T
        elif key.startswith("attn_pool.q."):
            keys_and_values = model.state_dict()[key.replace(".q.", ".kv.")]
            key, value = key.replace("q.", "attn.in_proj_"), torch.cat([value, keys_and_values])
        elif key.startswith("norm."):
            key = key.replace("norm.", "ln_post.")
        for timms, theirs in NAMES:
            key = key.replace(timms, theirs)
        state[prefix + key] = value
    return state


def text_tower(projection):
    """Names and shapes as in OpenAI's files; the numbers are never computed with."""
    block = {
        "ln_1.weight": (16,),
        "ln_1.bias": (16,),
        "attn.in_proj_weight": (48, 16),
        "attn.in_proj_bias": (48,),
        "attn.out_proj.weight": (16, 16),
        "attn.out_proj.bias": (16,),
        "ln_2.weight": (16,),
        "ln_2.bias": (16,),
        "mlp.c_fc.weight": (64, 16),
        "mlp.c_fc.bias": (64,),
        "mlp.c_proj.weight": (16, 64),
        "mlp.c_proj.bias": (16,),
    }
    shapes = {f"transformer.resblocks.0.{key}": shape for key, shape in block.items()}
    shapes |= {
        "token_embedding.weight": (12, 16),
        "positional_embedding": (6, 16),
        "ln_final.weight": (16,),
        "ln_final.bias": (16,),
        "text_projection": (16, projection),
        "logit_scale": (),
    }
    return {key: coarse(torch.randn(shape)) for key, shape in shapes.items()}


def openai():
    """The whole of OpenAI's CLIP, whose MLPs have the quick GELU."""
    model = timm_model("vit_base_patch16_clip_quickgelu_224", num_classes=PROJECTION)
    asked = {"heads": HEADS}
    authors("timm_towers/openai", model, "visual.", text_tower(PROJECTION), asked)


def open_clip():
    """The image tower alone, without its prefix, with the exact GELU of open_clip."""
    model = timm_model("vit_base_patch16_clip_224", num_classes=PROJECTION)
    authors("timm_towers/open_clip", model, "", asked={"heads": HEADS})


def open_clip_trunk():
    """open_clip around timm's SigLIP, as it is published for open_clip."""
    model = timm_model("vit_base_patch16_siglip_224", num_classes=0)
    state = {f"visual.trunk.{key}": value for key, value in model.state_dict().items()}
    text = {f"text.{key}": value for key, value in text_tower(WIDTH).items()}
    del text["text.logit_scale"]
    numbers = {"logit_scale": torch.tensor(2.5), "logit_bias": torch.tensor(-3.25)}
    other = copy.deepcopy(model)
    other.set_input_size(OTHER)
    there = (other.blocks, timm_answer(other))
    own = (model.blocks, timm_answer(model))
    tensors = state | text | numbers
    save("timm_towers/open_clip_trunk", tensors, own, there, asked={"heads": HEADS})


GRID_OF_TRAINING = {"ref_feat_shape": (GRID, GRID)}


def pe_original():
    own = {"num_classes": PROJECTION, **GRID_OF_TRAINING}
    model = timm_model("vit_pe_core_base_patch16_224", **own)
    asked = {"heads": HEADS}
    authors("timm_towers/pe_original", model, "visual.", text_tower(PROJECTION), asked)


def pe_lang_original():
    model = timm_model("vit_pe_lang_large_patch14_448", **GRID_OF_TRAINING)
    authors("timm_towers/pe_lang_original", model, "", asked={"heads": HEADS})


if __name__ == "__main__":
    main()
