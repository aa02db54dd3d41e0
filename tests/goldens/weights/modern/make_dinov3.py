"""Makes the golden files of DINOv3: of timm, of transformers, and under the authors' names.

    python -m tests.goldens.weights.modern.make_dinov3

`common.py` says what is in a file. The authors' repository is no package: its models are timm's of
the same function, with the names and buffers of its files. They keep the periods of the rotary
embedding rounded to bfloat16, and so does the model here; `float32/logits` are the answers to
the same images with the periods of the other two libraries.
"""

import copy

import torch

from tests.goldens.weights.modern.common import (
    CLASSES,
    DEPTH,
    HEADS,
    PATCH,
    SIZE,
    WIDTH,
    coarse,
    import_torchvision,
    randomise,
    save,
    timm_answer,
    timm_case,
    timm_model,
    transformers_case,
)


def main():
    cases = (timm, timm_plus, timm_biased, hugging_face, hugging_face_plus, original, original_plus)
    for number, make in enumerate(cases):
        torch.manual_seed(number)
        make()


# -------------------------------------------------------------------------------------------- timm


def timm():
    timm_case("dinov3/timm", "vit_small_patch16_dinov3")


def timm_plus():
    """With a gated MLP, and the class token alone given to a head."""
    timm_case(
        "dinov3/timm_plus",
        "vit_small_plus_patch16_dinov3",
        num_classes=CLASSES,
        global_pool="token",
    )


def timm_biased():
    timm_case("dinov3/timm_qkvb", "vit_small_patch16_dinov3_qkvb")


# ------------------------------------------------------------------------------------ transformers

# What the published files have beside them.
PROCESSOR = {
    "image_processor_type": "DINOv3ViTImageProcessorFast",
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def hugging_face(name="dinov3/hf", in_memory=True, **arguments):
    import_torchvision()
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    config = DINOv3ViTConfig(
        hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        patch_size=PATCH,
        image_size=SIZE,
        num_register_tokens=4,
        **{"intermediate_size": 40, **arguments},
    )
    model = randomise(DINOv3ViTModel(config).double().eval())

    def answer(images):
        out = model(images)
        return {"tokens": out.last_hidden_state, "pooled": out.pooler_output}

    layers = model.model.layer
    transformers_case(name, model, layers, answer, preprocessor=PROCESSOR, in_memory=in_memory)


def hugging_face_plus():
    hugging_face(
        "dinov3/hf_plus",
        in_memory=False,
        use_gated_mlp=True,
        hidden_act="silu",
        intermediate_size=64,
    )


# ------------------------------------------------------------------------------- the authors' names


def original():
    authors("dinov3/original", "vit_small_patch16_dinov3_qkvb")


def original_plus():
    """With the norm that only training uses, which ViT-L of satellite images and ViT-7B have."""
    authors("dinov3/original_plus", "vit_small_plus_patch16_dinov3_qkvb", ("local_cls_norm",))


def authors(name, architecture, norms=()):
    model = timm_model(architecture, global_pool="token")
    precise = copy.deepcopy(model)
    model.rope.periods = model.rope.periods.bfloat16().double()
    state = {"mask_token": coarse(torch.randn(1, WIDTH)), "rope_embed.periods": model.rope.periods}
    for norm in norms:
        state |= {f"{norm}.{kind}": coarse(torch.randn(WIDTH)) for kind in ("weight", "bias")}
    tensors = dict(model.state_dict())
    gated = "blocks.0.mlp.fc1_x.weight" in tensors
    for key in list(tensors):
        if key.endswith("q_bias"):
            q = tensors.pop(key)
            v = tensors.pop(key.replace("q_bias", "v_bias"))
            qkv = key.replace("q_bias", "qkv.")
            state[qkv + "bias"] = torch.cat([q, torch.zeros(WIDTH), v])
            state[qkv + "bias_mask"] = torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(WIDTH)
    for key, value in tensors.items():
        key = key.replace("reg_token", "storage_tokens")
        key = key.replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma")
        if gated:
            for theirs, timms in (("w1.", "fc1_g."), ("w2.", "fc1_x."), ("w3.", "fc2.")):
                key = key.replace(timms, theirs)
        state[key] = value
    own = (model.blocks, timm_answer(model))
    more = {"float32/logits": (precise.blocks, timm_answer(precise))}
    save(name, state, own, own, more=more, asked={"heads": HEADS})


if __name__ == "__main__":
    main()
