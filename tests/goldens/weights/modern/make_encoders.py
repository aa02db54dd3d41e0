"""Makes the golden files of encoders that are a plain ViT: I-JEPA, MSN, and DINOv2's classifiers.

    python -m tests.goldens.weights.modern.make_encoders

`common.py` says what is in a file. The classifiers of DINOv2's own repository are timm's backbone
of the same function, whose tokens are put together as `hub/classifiers.py` there says: the class
tokens of the last one or four blocks, each past the last norm, and the mean of the last patches.
Their file has no answers at another size.
"""

import copy

import torch

from tests.goldens.weights.modern.common import (
    CLASSES,
    DEPTH,
    HEADS,
    NAMES,
    PATCH,
    SIZE,
    TINY,
    WIDTH,
    coarse,
    import_timm,
    import_torchvision,
    randomise,
    save,
    timm_answer,
    transformers_case,
)


def main():
    cases = (
        ijepa,
        ijepa_classifier,
        original_ijepa,
        msn,
        msn_classifier,
        dinov2_classifier,
        dinov2_registers_classifier,
        one_layer,
        four_layers,
    )
    for number, make in enumerate(cases):
        torch.manual_seed(number)
        make()


# ------------------------------------------------------------------------------------ transformers

# What facebook/ijepa_vith14_1k has beside the file; the model was trained with other means.
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def ijepa():
    encoder("encoders/hf_ijepa", "IJepa", "IJepaModel", in_memory=True)


def ijepa_classifier():
    encoder("encoders/hf_ijepa_classifier", "IJepa", "IJepaForImageClassification")


def msn():
    encoder("encoders/hf_msn", "ViTMSN", "ViTMSNModel", in_memory=True)


def msn_classifier():
    encoder("encoders/hf_msn_classifier", "ViTMSN", "ViTMSNForImageClassification")


def dinov2_classifier():
    encoder("encoders/hf_dinov2_classifier", "Dinov2", "Dinov2ForImageClassification")


def dinov2_registers_classifier():
    kind = "Dinov2WithRegisters"
    encoder("encoders/hf_dinov2_registers_classifier", kind, f"{kind}ForImageClassification")


def encoder(name, kind, architecture, in_memory=False):
    import_torchvision()
    import transformers

    settings = {
        "hidden_size": WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "image_size": SIZE,
        "patch_size": PATCH,
        **({"mlp_ratio": 3} if kind.startswith("Dinov2") else {"intermediate_size": 40}),
        **({"layer_norm_eps": 1e-6} if kind == "IJepa" else {}),  # as the published ones
        **({"id2label": dict(enumerate(NAMES))} if "Classification" in architecture else {}),
    }
    configuration = getattr(transformers, f"{kind}Config")(**settings)
    model = randomise(getattr(transformers, architecture)(configuration).double().eval())
    body = getattr(model, model.base_model_prefix, model)
    if kind == "ViTMSN":
        body = getattr(model, "vit", model)
    elif kind == "IJepa":
        body = getattr(model, "ijepa", model)
    resized = {} if kind.startswith("Dinov2") else {"interpolate_pos_encoding": True}

    def answer(images):
        tokens = body(images, **resized).last_hidden_state
        prefix = 1 + getattr(configuration, "num_register_tokens", 0)
        if kind == "IJepa":
            pooled = tokens.mean(1)
        elif kind == "ViTMSN" or body is model:
            pooled = tokens[:, 0]
        else:
            pooled = torch.cat([tokens[:, 0], tokens[:, prefix:].mean(1)], 1)
        found = {"tokens": tokens, "pooled": pooled}
        return found if body is model else {**found, "logits": model.classifier(pooled)}

    images = coarse(torch.randn(1, 3, SIZE, SIZE)).double()
    with torch.no_grad():
        if body is not model:
            assert torch.equal(model(images).logits, answer(images)["logits"])
    layers = body.encoder.layer if hasattr(body, "encoder") else body.layers
    transformers_case(name, model, layers, answer, preprocessor=PROCESSOR, in_memory=in_memory)


# ------------------------------------------------------------------------------- the authors' names


def timm_vit(architecture, **arguments):
    settings = {**TINY, "img_size": SIZE, "mlp_ratio": 2, "num_classes": 0, **arguments}
    model = import_timm().create_model(architecture, **settings)
    return randomise(model.double().eval())


def original_ijepa():
    """A checkpoint of pre-training has this for the encoder, and once more for its mean."""
    without = {"class_token": False, "global_pool": "avg", "fc_norm": False}
    model = timm_vit("vit_small_patch16_224", **without)
    state = {f"module.{key}": value for key, value in model.state_dict().items()}
    own = (model.blocks, timm_answer(model))
    other = copy.deepcopy(model)
    other.set_input_size((24, 12))
    there = (other.blocks, timm_answer(other))
    save("encoders/ijepa_original", state, own, there, asked={"heads": HEADS})


def one_layer():
    linear_classifier("encoders/dinov2_lc1", 1, depth=DEPTH)


def four_layers():
    linear_classifier("encoders/dinov2_lc4", 4, depth=4, embed_dim=16)


def linear_classifier(name, layers, **arguments):
    backbone = timm_vit("vit_small_patch14_dinov2", **arguments)
    width = backbone.embed_dim
    head = randomise(torch.nn.Linear((1 + layers) * width, CLASSES)).double()

    def answer(images):
        kept = []
        hooks = [
            block.register_forward_hook(lambda _, __, out: kept.append(backbone.norm(out)))
            for block in backbone.blocks
        ]
        tokens = backbone.forward_features(images)
        for hook in hooks:
            hook.remove()
        classes = [out[:, 0] for out in kept[-layers:]]
        pooled = torch.cat([*classes, tokens[:, 1:].mean(1)], 1)
        return {"tokens": tokens, "pooled": pooled, "logits": head(pooled)}

    state = {f"backbone.{key}": value for key, value in backbone.state_dict().items()}
    assert state["backbone.pos_embed"].shape[1] == 1 + (SIZE // PATCH) ** 2
    state["backbone.mask_token"] = coarse(torch.randn(1, width))
    state |= {f"linear_head.{key}": value for key, value in head.state_dict().items()}
    save(name, state, (backbone.blocks, answer), None, asked={"heads": HEADS})


if __name__ == "__main__":
    main()
