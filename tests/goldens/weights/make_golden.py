"""Makes the golden files of reading weights: tiny models of other libraries and what they answer.

    python -m tests.goldens.weights.make_golden

needs torch, timm, transformers and torchvision, which neither the package nor its tests need. Every
case is one `.npz` beside this script:

- `tensors/...`: what the library writes to disk, under its own names; `memory/...`: the same under
  the names that transformers 5 uses in memory, where they differ.
- `config`, `preprocessor`: JSON, the files beside; `asked`: what a person has to say.
- `images`, `block_0`, ..., `logits`: images of the model's own size, every block's output, and
  the answer (of a model without a head its class token or mean, past the last norm).
- `other/images`, ...: the same for another size, whose positions the library has resized itself.

Every parameter is random, away from 0 and 1 and a multiple of 1/64, which float16 holds exactly;
libraries compute in float64, so that what is measured is our own rounding.

The original repositories of DeiT, DeiT III, MAE, DINO and DINOv2 are no packages. Their models are
timm's of the same function here, with tensors under the repository's names, and positions resized
by the call of torch that stands in the repository.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import interpolate

from benchmarks.peers import import_timm, import_torchvision
from tests.goldens.models.make_golden import run_with_blocks

HERE = Path(__file__).parent
WIDTH, DEPTH, HEADS, PATCH, GRID, CLASSES = 16, 2, 2, 4, 4, 5
SIZE = PATCH * GRID
OTHER = (24, 12)  # 6 x 3 patches: one side longer, one shorter
NAMES = ["ant", "bee", "cat", "dog", "eel"]


def main():
    for number, make in enumerate((*TIMM, *ORIGINAL, *TRANSFORMERS, torchvision_vit, *LATER)):
        torch.manual_seed(number)
        make()


# -------------------------------------------------------------------------------------------- timm


def pretrained_cfg(size):
    """The section of timm's `config.json` on images and classes."""
    return {
        "input_size": [3, size, size],
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "crop_pct": 0.75,
        "interpolation": "bicubic",
        "label_names": NAMES,
    }


def timm_case(name, *, config=(), architecture="vit_tiny_patch16_224", **arguments):
    """timm's own model, with the `config.json` that timm writes."""
    model = timm_vit(dynamic_img_size=True, **arguments)
    small = arguments.get("pre_norm", False)  # tokens so small that the epsilon of norms shows
    randomise(model, embedding_scale=2**-6 if small else 1.0)
    settings = {
        "architecture": architecture,
        "num_classes": CLASSES,
        **({"global_pool": "token"} if arguments.get("fc_norm") else {}),
        "model_args": {"img_size": SIZE, "patch_size": PATCH, "num_heads": HEADS, **dict(config)},
        "pretrained_cfg": pretrained_cfg(SIZE),
    }
    save(name, model.state_dict(), model, model.blocks, model, config=settings)


TIMM = (
    partial(timm_case, "timm_vit"),
    partial(timm_case, "timm_avg", global_pool="avg", config={"global_pool": "avg"}),
    partial(
        timm_case,
        "timm_map",
        global_pool="map",
        class_token=False,
        act_layer="gelu_tanh",
        config={"global_pool": "map", "class_token": False, "act_layer": "gelu_tanh"},
    ),
    # Registers with positions of their own, and without any.
    partial(timm_case, "timm_registers", reg_tokens=3),
    partial(timm_case, "timm_registers_bare", reg_tokens=3, no_embed_class=True, init_values=0.5),
    partial(
        timm_case,
        "timm_clip",
        pre_norm=True,
        act_layer="quick_gelu",
        norm_layer=partial(nn.LayerNorm, eps=1e-5),
        architecture="vit_base_patch32_clip_quickgelu_224",  # which has that epsilon
        config={"act_layer": "quick_gelu"},
    ),
)


# Behind the others, whose random numbers depend on their place.
LATER = (
    # A norm after pooling, of the class token; only the root says which pooling it is.
    partial(timm_case, "timm_token_fc_norm", fc_norm=True, config={"fc_norm": True}),
    # A norm before the blocks, as CLIP has it, with the epsilon of all others.
    partial(timm_case, "timm_pre_norm", pre_norm=True, config={"pre_norm": True}),
)


def timm_vit(**arguments):
    timm = import_timm()
    settings = {
        "img_size": SIZE,
        "patch_size": PATCH,
        "num_classes": CLASSES,
        "embed_dim": WIDTH,
        "depth": DEPTH,
        "num_heads": HEADS,
        "mlp_ratio": 3,
        "norm_layer": partial(nn.LayerNorm, eps=1e-6),
        **arguments,
    }
    return timm.models.VisionTransformer(**settings).double().eval()


# ------------------------------------------------------------------------ the original repositories


def original(
    name,
    origin,
    *,
    resize,
    rename=(),
    make=timm_vit,
    extra=(),
    prefix=1,
    cut=lambda s: s,
    **arguments,
):
    """timm's model as the file of a repository: `rename` maps parts of names, `extra` adds tensors.

    resize: how the repository resizes the table of patches. prefix: rows of other tokens. cut:
    makes the repository's tensors of timm's where they are not the same numbers.
    """
    model = make(**arguments)
    randomise(model)
    state = cut(dict(model.state_dict()))
    for old, new in rename:
        state = {key.replace(old, new): value for key, value in state.items()}
    state |= {key: coarse(torch.randn(shape)) for key, shape in extra}

    other = make(**{**arguments, "img_size": OTHER})
    table = model.pos_embed.data
    in_front = table[:, :prefix]
    grid = table[:, prefix:].reshape(1, GRID, GRID, -1).permute(0, 3, 1, 2)
    target = (OTHER[0] // PATCH, OTHER[1] // PATCH)
    resized = resize(grid, target).permute(0, 2, 3, 1).flatten(1, 2)
    assert resized.shape[1] == target[0] * target[1]
    other.load_state_dict({**model.state_dict(), "pos_embed": torch.cat([in_front, resized], 1)})
    asked = {"origin": origin, "heads": HEADS}
    save(name, state, model, model.blocks, other, asked=asked)


def by_size(grid, target):
    """DeiT: main.py; MAE: util/pos_embed.py."""
    return interpolate(grid, size=target, mode="bicubic", align_corners=False)


def by_size_antialiased(grid, target):
    """DINOv2 with registers: interpolate_offset 0 and interpolate_antialias in hub/backbones.py."""
    return interpolate(grid, size=target, mode="bicubic", antialias=True)


def by_scale(grid, target):
    """DINO and DINOv2: interpolate_pos_encoding, which adds 0.1 so that rounding loses no row."""
    scale = tuple((side + 0.1) / GRID for side in target)
    return interpolate(grid, scale_factor=scale, mode="bicubic")


def distilled_vit(**arguments):
    timm = import_timm()
    del arguments["num_classes"]
    model = timm.models.deit.VisionTransformerDistilled(
        **{"img_size": SIZE, **arguments},
        patch_size=PATCH,
        num_classes=CLASSES,
        embed_dim=WIDTH,
        depth=DEPTH,
        num_heads=HEADS,
        norm_layer=partial(nn.LayerNorm, eps=1e-6),
    )
    return model.double().eval()


def position_apart(state):
    """timm has DINOv2's position of the class token in the token; here both are drawn."""
    row = coarse(torch.randn(1, 1, WIDTH)).double()
    state["cls_token"] = state["cls_token"] - row
    state["pos_embed"] = torch.cat([row, state["pos_embed"]], 1)
    return state


DECODER = (
    ("mask_token", (1, 1, 8)),
    ("decoder_pos_embed", (1, 1 + GRID**2, 8)),
    ("decoder_embed.weight", (8, WIDTH)),
    ("decoder_embed.bias", (8,)),
    ("decoder_blocks.0.norm1.weight", (8,)),
    ("decoder_norm.weight", (8,)),
    ("decoder_pred.weight", (PATCH * PATCH * 3, 8)),
)
LAYER_SCALE = {"init_values": 0.5}
NO_HEAD = {"num_classes": 0}
DINO_MASK = (("mask_token", (1, WIDTH)),)

ORIGINAL = (
    partial(original, "deit", "deit", resize=by_size),
    partial(
        original, "deit_distilled", "deit", resize=by_size, prefix=2, make=distilled_vit, **NO_HEAD
    ),
    partial(
        original,
        "deit3",
        "deit3",
        resize=by_size,
        prefix=0,
        rename=((".ls1.gamma", ".gamma_1"), (".ls2.gamma", ".gamma_2")),
        no_embed_class=True,
        **LAYER_SCALE,
    ),
    partial(original, "mae_encoder", "mae", resize=by_size, **NO_HEAD),
    partial(original, "mae_with_decoder", None, resize=by_size, extra=DECODER, **NO_HEAD),
    partial(original, "mae_fine_tuned", "mae", resize=by_size, global_pool="avg"),
    partial(original, "dino", "dino", resize=by_scale, **NO_HEAD),
    partial(original, "dinov2", None, resize=by_scale, extra=DINO_MASK, **LAYER_SCALE, **NO_HEAD),
    partial(
        original,
        "dinov2_registers",
        None,
        resize=by_size_antialiased,
        prefix=0,
        rename=(("reg_token", "register_tokens"),),
        extra=DINO_MASK,
        cut=position_apart,
        reg_tokens=3,
        no_embed_class=True,
        **LAYER_SCALE,
        **NO_HEAD,
    ),
)


def dinov2_giant():
    from timm.layers import SwiGLUPacked

    original(
        "dinov2_giant",
        None,
        resize=by_scale,
        rename=((".mlp.fc1.", ".mlp.w12."), (".mlp.fc2.", ".mlp.w3.")),
        extra=DINO_MASK,
        mlp_layer=SwiGLUPacked,
        act_layer=nn.SiLU,
        **LAYER_SCALE,
        **NO_HEAD,
    )


ORIGINAL = (*ORIGINAL, dinov2_giant)


# ------------------------------------------------------------------------------------ transformers


def transformers_case(name, kind, architecture, *, in_memory=False, preprocessor=None, **settings):
    import_torchvision()
    import transformers

    configuration = getattr(transformers, f"{kind}Config")
    settings = {
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "image_size": SIZE,
        "patch_size": PATCH,
        **({"mlp_ratio": 3} if kind.startswith("Dinov2") else {"intermediate_size": 40}),
        **settings,
    }
    if architecture.endswith(("Classification", "Teacher")):
        settings |= {"id2label": dict(enumerate(NAMES))}
    model = getattr(transformers, architecture)(configuration(**settings)).double().eval()
    randomise(model, embedding_scale=2**-6 if kind == "ViT" else 1.0)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        from safetensors.torch import load_file

        state = load_file(Path(folder) / "model.safetensors")

    body = getattr(model, model.base_model_prefix, model)
    layers = body.encoder.layer if hasattr(body, "encoder") else body.layers
    arguments = {} if kind.startswith("Dinov2") else {"interpolate_pos_encoding": True}
    answer = model
    if kind == "ViTMAE":  # nothing hidden, and patches in their order
        body.config.mask_ratio = 0.0
        answer = lambda images, **kinds: body(  # noqa: E731
            images, noise=torch.arange(images[0, 0].numel() // PATCH**2)[None].double(), **kinds
        )

    def forward(images):
        out = answer(images, **arguments)
        return out.logits if "logits" in out else out.last_hidden_state[:, 0]

    memory = model.state_dict() if in_memory else {}
    save(
        name,
        state,
        forward,
        layers,
        forward,
        config=config,
        preprocessor=preprocessor,
        memory=memory,
        count=1 if kind == "ViTMAE" else 2,
    )


SQUASHED = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": SIZE, "width": SIZE},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
CROPPED = {
    "image_processor_type": "BitImageProcessor",
    "do_resize": True,
    "size": {"shortest_edge": 10},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 8, "width": 8},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}

TRANSFORMERS = (
    partial(
        transformers_case,
        "hf_vit",
        "ViT",
        "ViTForImageClassification",
        in_memory=True,
        preprocessor=SQUASHED,
    ),
    partial(
        transformers_case,
        "hf_vit_headless",
        "ViT",
        "ViTModel",
        hidden_act="gelu_new",
        layer_norm_eps=1e-5,
        qkv_bias=False,
    ),
    partial(
        transformers_case, "hf_deit_distilled", "DeiT", "DeiTForImageClassificationWithTeacher"
    ),
    partial(
        transformers_case, "hf_deit", "DeiT", "DeiTForImageClassification", intermediate_size=48
    ),
    partial(
        transformers_case,
        "hf_mae",
        "ViTMAE",
        "ViTMAEForPreTraining",
        **{
            "decoder_hidden_size": 8,
            "decoder_num_attention_heads": 2,
            "decoder_num_hidden_layers": 1,
            "decoder_intermediate_size": 8,
        },
    ),
    partial(transformers_case, "hf_dinov2", "Dinov2", "Dinov2Model", preprocessor=CROPPED),
    partial(
        transformers_case,
        "hf_dinov2_giant",
        "Dinov2",
        "Dinov2Model",
        use_swiglu_ffn=True,
        in_memory=True,
    ),
    partial(
        transformers_case,
        "hf_dinov2_registers",
        "Dinov2WithRegisters",
        "Dinov2WithRegistersModel",
        num_register_tokens=3,
    ),
)


# ------------------------------------------------------------------------------------- torchvision


def torchvision_vit():
    import_torchvision()
    from torchvision.models.vision_transformer import VisionTransformer, interpolate_embeddings

    sizes = {
        "patch_size": PATCH,
        "num_layers": DEPTH,
        "num_heads": HEADS,
        "hidden_dim": WIDTH,
        "mlp_dim": 40,
        "num_classes": CLASSES,
    }
    model = VisionTransformer(image_size=SIZE, **sizes).double().eval()
    randomise(model)
    for size in (24, 12):  # it knows squares only
        other = VisionTransformer(image_size=size, **sizes).double().eval()
        other.load_state_dict(interpolate_embeddings(size, PATCH, dict(model.state_dict())))
        save(
            f"torchvision_to_{size}",
            model.state_dict(),
            model,
            model.encoder.layers,
            other,
            other_size=(size, size),
            asked={"origin": "torchvision", "heads": HEADS},
        )


# -------------------------------------------------------------------------------------- all of them


def randomise(model, embedding_scale=1.0):
    """Fills every parameter with random multiples of 1/64, embeddings times `embedding_scale`."""
    scaled = ("patch_embed", "cls_token", "pos_embed", "embeddings", "vit.embeddings")
    for name, parameter in model.named_parameters():
        is_norm = any(part in name for part in ("norm", "ln_", "encoder.ln."))
        if name.endswith(("gamma", "lambda1")) or (is_norm and name.endswith("weight")):
            drawn = 0.5 + torch.rand(parameter.shape)
        elif parameter.ndim == 1:
            drawn = 0.3 * torch.randn(parameter.shape)
        elif "token" in name or "pos" in name or "latent" in name:
            drawn = 0.7 * torch.randn(parameter.shape)
        else:
            drawn = 1.5 * torch.randn(parameter.shape) / parameter[0].numel() ** 0.5
        drawn = coarse(drawn)
        if name.startswith(scaled):
            drawn = drawn * embedding_scale
        parameter.data = drawn.double()


def coarse(values):
    return (values * 64).round() / 64


def save(
    name,
    tensors,
    model,
    blocks,
    other,
    *,
    other_size=OTHER,
    config=None,
    preprocessor=None,
    asked=None,
    memory=(),
    count=2,
):
    arrays = {f"tensors/{key}": exact_halves(value) for key, value in tensors.items()}
    arrays |= {f"memory/{key}": exact_halves(value) for key, value in dict(memory).items()}
    arrays |= answers(model, blocks, count, (SIZE, SIZE))
    same = other is model or not isinstance(other, nn.Module)
    other_blocks = blocks if same else blocks_of(other)
    there = answers(other, other_blocks, count, other_size)
    arrays |= {f"other/{key}": value for key, value in there.items()}
    texts = {"config": config, "preprocessor": preprocessor, "asked": asked or {}}
    texts = {key: json.dumps(value) for key, value in texts.items() if value is not None}
    np.savez_compressed(HERE / f"{name}.npz", **texts, **arrays)


def blocks_of(model):
    return model.encoder.layers if hasattr(model, "encoder") else model.blocks


def answers(model, blocks, count, size):
    images = coarse(torch.randn(count, 3, *size)).double()
    logits, outputs = run_with_blocks(model, blocks, images)
    outputs = [out[0] if isinstance(out, tuple) else out for out in outputs]
    assert len(outputs) == DEPTH
    arrays = {f"block_{i}": out.numpy().astype(np.float32) for i, out in enumerate(outputs)}
    arrays["images"] = images.permute(0, 2, 3, 1).numpy().astype(np.float16)
    arrays["logits"] = logits.numpy().astype(np.float32)
    return arrays


def exact_halves(tensor):
    array = tensor.numpy()
    halves = array.astype(np.float16)
    assert np.array_equal(halves.astype(array.dtype), array)
    return halves


if __name__ == "__main__":
    main()
