"""Makes the golden files of image and text towers together: CLIP, SigLIP, and the authors of PE.

    python -m tests.goldens.weights.two_towers.make_two_towers

needs torch, timm, transformers and open_clip. A file has `tensors/...` and `config`, or `openclip`,
the `open_clip_config.json`, as the library writes them; `asked`, what they do not tell; `images`
and `ids`; and of these `image_block_0`, ..., `text_block_0`, ..., `image` and `text`, the vectors
of both towers before they are normalised, and `logits` (images, texts).

- `openai.pt` is a TorchScript archive of the model of `openai.npz` with one block in each tower,
  in half precision.
- `pe.npz` has the names of PE's authors: the image tower is timm's, the text tower open_clip's.
- `big_vision.npz` is the model of `hf_siglip.npz` under the names of big_vision.
"""

import json
import math
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import torch

from tests.goldens.weights.modern.common import coarse, halves, import_torchvision, randomise
from tests.goldens.weights.modern.make_text_towers import IDS
from tests.goldens.weights.modern.make_timm_towers import (
    GRID_OF_TRAINING,
    authors_names,
    timm_model,
)
from tests.goldens.weights.two_towers.big_vision_names import big_vision

HERE = Path(__file__).parent
SIZE, PATCH, DEPTH, HEADS, EMBED = 16, 4, 2, 2, 20
WIDTH, TEXT_WIDTH, HIDDEN, TEXT_HIDDEN = 16, 24, 40, 36
VOCABULARY, LENGTH, START, END, PAD = 24, 8, 22, 23, 1
SCALE, BIAS = 2.5, -3.25
VISION = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "image_size": SIZE,
    "patch_size": PATCH,
}
TEXT = {
    "hidden_size": TEXT_WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": TEXT_HIDDEN,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LENGTH,
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": PAD,
}
# Arguments of timm's models.
TINY = {"img_size": SIZE, "patch_size": PATCH, "embed_dim": WIDTH}
TINY |= {"depth": DEPTH, "num_heads": HEADS}
ASKED = {"heads": HEADS, "text_heads": HEADS}


def main():
    cases = (
        *(hf_clip, hf_clip_old, hf_siglip, hf_siglip2),
        *(openai, openclip, openclip_siglip, pe, openclip_pe),
    )
    for number, make in enumerate(cases):
        torch.manual_seed(number)
        make()


# ------------------------------------------------------------------------------------ transformers


def hf_clip():
    library = transformers()
    config = library.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=EMBED)
    of_transformers("hf_clip", library.CLIPModel(config))


def hf_clip_old():
    """The end is the largest id, as an old configuration says; GELU and epsilon of others."""
    library = transformers()
    other = {"hidden_act": "gelu", "layer_norm_eps": 1e-6}
    config = library.CLIPConfig(
        text_config={**TEXT, **other, "eos_token_id": 2},
        vision_config={**VISION, **other},
        projection_dim=EMBED,
    )
    of_transformers("hf_clip_old", library.CLIPModel(config))


def hf_siglip():
    library = transformers()
    text = {**TEXT, "projection_size": WIDTH}
    config = library.SiglipConfig(text_config=text, vision_config=VISION)
    model = library.SiglipModel(config)
    config, state, answered = of_transformers("hf_siglip", model)
    tensors = {key: x.double().numpy() for key, x in state.items()}
    write("big_vision", big_vision(tensors, DEPTH, HEADS), answered, asked={"origin": "siglip"})


def hf_siglip2():
    """NaFlex."""
    library = transformers()
    vision = {key: value for key, value in VISION.items() if key != "image_size"}
    vision["num_patches"] = (SIZE // PATCH) ** 2
    text = {**TEXT, "projection_size": WIDTH}
    config = library.Siglip2Config(text_config=text, vision_config=vision)
    of_transformers("hf_siglip2", library.Siglip2Model(config))


def of_transformers(name, model):
    from safetensors.torch import load_file

    randomise(model.double().eval())
    set_numbers(model)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        tensors = load_file(Path(folder) / "model.safetensors")
    config["dtype"] = "float32"  # here it computes in float64
    images, ids = draw(), torch.from_numpy(IDS)
    packed = {"pixel_values": images}
    if name == "hf_siglip2":
        patches = images.reshape(-1, 3, SIZE // PATCH, PATCH, SIZE // PATCH, PATCH)
        patches = patches.permute(0, 2, 4, 3, 5, 1).flatten(1, 2).flatten(2)
        grid = torch.tensor([[SIZE // PATCH] * 2] * len(images))
        mask = torch.ones(patches.shape[:2], dtype=torch.long)
        packed = {"pixel_values": patches, "spatial_shapes": grid, "pixel_attention_mask": mask}

    def answer():
        out = model(input_ids=ids, **packed)
        image, text = (
            model.get_image_features(**packed).pooler_output,
            model.get_text_features(input_ids=ids).pooler_output,
        )
        return {"image": image, "text": text, "logits": out.logits_per_image}

    layers = [tower.encoder.layers for tower in (model.vision_model, model.text_model)]
    answered = answers(images, layers, answer)
    write(name, tensors, answered, config=config)
    return config, tensors, answered


def transformers():
    import_torchvision()
    import transformers

    return transformers


# --------------------------------------------------------------------------------------- open_clip


def openai():
    """OpenAI's names without a configuration; also as the archive that OpenAI publishes."""
    model = open_clip_model(clip_settings(quick_gelu=True))
    of_open_clip("openai", model, asked={**ASKED, "origin": "clip"})
    model = model.float().half()
    for tower in (model.visual, model):
        tower.transformer.resblocks = tower.transformer.resblocks[:1]
    for key, value in {"input_resolution": SIZE, "context_length": LENGTH}.items():
        vars(model).pop(key, None)
        model.register_buffer(key, torch.tensor(value))
    images = torch.zeros(1, 3, SIZE, SIZE).half()
    traced = torch.jit.trace_module(
        model,
        {
            "forward": (images, torch.from_numpy(IDS[:1])),
            "encode_image": images,
            "encode_text": torch.from_numpy(IDS[:1]),
        },
        check_trace=False,
    )
    path = HERE / "openai.pt"
    traced.save(path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:  # without what only debuggers read
        for name, content in members.items():
            if not name.endswith(".debug_pkl"):
                archive.writestr(name, content)
    print("openai.pt", f"{path.stat().st_size / 1000:.0f} kB")


def openclip():
    """The text tower under a prefix, exact GELU, and the end at a token of another tokenizer."""
    settings = clip_settings(quick_gelu=False)
    settings["text_cfg"] |= {"pool_type": "eos", "eos_id": END}
    settings["custom_text"] = True
    of_open_clip("openclip", open_clip_model(settings), settings)


def openclip_siglip():
    """timm's image tower; exact GELU in both, as open_clip computes the first SigLIP."""
    settings = {
        "embed_dim": WIDTH,
        "init_logit_bias": -10,
        "custom_text": True,
        "vision_cfg": {
            "image_size": SIZE,
            "timm_model_name": "vit_base_patch16_siglip_224",
            "timm_model_pretrained": False,
            "timm_pool": "map",
            "timm_proj": "none",
        },
        "text_cfg": {
            **text_settings(),
            "no_causal_mask": True,
            "proj_bias": True,
            "pool_type": "last",
            "norm_kwargs": {"eps": 1e-6},
        },
    }
    model = open_clip_model(settings, TINY)
    of_open_clip("openclip_siglip", model, settings, asked={"heads": HEADS})


def openclip_pe():
    """timm's image tower, whose head is the projection; its bias is zero in published files."""
    settings = {
        "embed_dim": EMBED,
        "custom_text": True,
        "vision_cfg": {
            "image_size": SIZE,
            "timm_model_name": "vit_pe_core_base_patch16_224",
            "timm_pool": "map",
            "timm_proj": None,
        },
        "text_cfg": text_settings(),
    }
    model = open_clip_model(settings, TINY)
    model.visual.trunk.head.bias.data.zero_()
    of_open_clip("openclip_pe", model, settings, asked={"heads": HEADS})


def pe():
    tower = timm_model(
        "vit_pe_core_base_patch16_224",
        num_classes=EMBED,
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        **GRID_OF_TRAINING,
    )
    model = open_clip_model(clip_settings(quick_gelu=False))
    images, ids = draw(), torch.from_numpy(IDS)
    state = authors_names(tower, "visual.")
    texts = {k: x for k, x in model.state_dict().items() if not k.startswith("visual.")}

    def answer():
        image, text = tower(images), model.encode_text(ids)
        normal = [x / x.norm(dim=-1, keepdim=True) for x in (image, text)]
        logits = math.exp(SCALE) * normal[0] @ normal[1].T
        return {"image": image, "text": text, "logits": logits}

    layers = [tower.blocks, model.transformer.resblocks]
    write("pe", {**state, **texts}, answers(images, layers, answer), asked=ASKED)


def text_settings():
    return {
        "context_length": LENGTH,
        "vocab_size": VOCABULARY,
        "width": TEXT_WIDTH,
        "heads": HEADS,
        "layers": DEPTH,
        "mlp_ratio": TEXT_HIDDEN / TEXT_WIDTH,
    }


def clip_settings(quick_gelu):
    vision = {
        "image_size": SIZE,
        "patch_size": PATCH,
        "width": WIDTH,
        "head_width": WIDTH // HEADS,
        "layers": DEPTH,
        "mlp_ratio": HIDDEN / WIDTH,
    }
    settings = {"embed_dim": EMBED, "vision_cfg": vision, "text_cfg": text_settings()}
    return {**settings, "quick_gelu": True} if quick_gelu else settings


def open_clip_model(settings, trunk=None):
    """trunk: arguments of timm's model, which are no part of open_clip's settings."""
    from benchmarks.peers import import_timm

    timm = import_timm()
    from open_clip import model as library

    settings = dict(settings)
    custom = settings.pop("custom_text", False)
    create = timm.create_model
    if trunk is not None:
        library.TimmModel.__init__.__globals__["timm"] = type(
            "Tiny", (), {"create_model": lambda name, **more: create(name, **{**more, **trunk})}
        )
    kind = library.CustomTextCLIP if custom else library.CLIP
    model = randomise(kind(**settings).double().eval())
    return set_numbers(model)


def of_open_clip(name, model, settings=None, asked=None):
    images, ids = draw(), torch.from_numpy(IDS)

    def answer():
        image, text = model.encode_image(images), model.encode_text(ids)
        return {"image": image, "text": text, "logits": model.get_logits(images, ids)[0]}

    visual, text = model.visual, getattr(model, "text", model)
    trunk = getattr(visual, "trunk", None)
    blocks = visual.transformer.resblocks if trunk is None else trunk.blocks
    answered = answers(images, [blocks, text.transformer.resblocks], answer)
    if settings is None:
        return write(name, model.state_dict(), answered, asked=asked)
    mean = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "interpolation": "bicubic"}
    written = {"model_cfg": settings, "preprocess_cfg": mean | {"resize_mode": "squash"}}
    return write(name, model.state_dict(), answered, openclip=written, asked=asked)


# ------------------------------------------------------------------------------------------- files


def draw():
    return coarse(torch.randn(3, 3, SIZE, SIZE)).double()


def set_numbers(model):
    model.logit_scale.data.fill_(SCALE)
    if getattr(model, "logit_bias", None) is not None:
        model.logit_bias.data.fill_(BIAS)
    return model


def answers(images, layers, answer):
    outputs = {"image": [], "text": []}
    hooks = []
    with torch.no_grad():
        found = answer()
        for kind, blocks in zip(outputs, layers, strict=True):
            hooks += [
                block.register_forward_hook(lambda _, __, out, kind=kind: outputs[kind].append(out))
                for block in blocks
            ]
        answer()
    for hook in hooks:
        hook.remove()
    for kind, outs in outputs.items():
        outs = [out[0] if isinstance(out, tuple) else out for out in outs]
        found |= {f"{kind}_block_{i}": out for i, out in enumerate(outs[:DEPTH])}
    arrays = {key: value.numpy().astype(np.float32) for key, value in found.items()}
    assert all(np.isfinite(array).all() for array in arrays.values())
    arrays["images"] = images.permute(0, 2, 3, 1).numpy().astype(np.float16)
    return {**arrays, "ids": IDS}


def write(name, tensors, answered, **texts):
    arrays = {f"tensors/{key}": halves(value) for key, value in tensors.items()}
    texts.setdefault("asked", {})
    texts = {key: json.dumps({} if x is None else x) for key, x in texts.items()}
    path = HERE / f"{name}.npz"
    np.savez_compressed(path, **texts, **arrays, **answered)
    print(name, f"{path.stat().st_size / 1000:.0f} kB")
    for key, value in tensors.items():
        print("   ", key, tuple(value.shape))
    print({key: x.shape for key, x in answered.items()})
    print(answered["logits"])


if __name__ == "__main__":
    main()
