"""Makes the golden files of BEiT: of timm, of transformers, and as the authors' files have it.

    python -m tests.goldens.weights.modern.make_beit

`common.py` says what is in a file. The authors' files have timm's names and, with each table, the
index of its rows; what masked pre-training has besides is in `beit/pretrained.npz`.
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
    cases = (timm, original, pretrained, hugging_face, hugging_face_shared)
    for number, make in enumerate(cases):
        torch.manual_seed(number)
        make()


def timm():
    timm_case("beit/timm", "beitv2_base_patch16_224", num_classes=CLASSES)


def original():
    model = timm_model("beitv2_base_patch16_224", num_classes=CLASSES)
    authors("beit/original", model, asked={"origin": "beitv2"})


def pretrained():
    """One table for all blocks, no norm of the mean, and a head that predicts visual words."""
    shared = {"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True, "use_fc_norm": False}
    model = timm_model("beit_base_patch16_224", num_classes=0, global_pool="token", **shared)
    words = {"mask_token": (1, 1, WIDTH), "lm_head.weight": (8, WIDTH), "lm_head.bias": (8,)}
    authors("beit/pretrained", model, {key: coarse(torch.randn(s)) for key, s in words.items()})


def authors(name, model, more=(), asked=None):
    state = dict(model.state_dict()) | dict(more)
    for key, buffer in model.named_buffers():
        if key.endswith("relative_position_index"):
            state[key] = buffer
    other = copy.deepcopy(model)
    other.set_input_size((24, 12))
    answers = (model.blocks, timm_answer(model)), (other.blocks, timm_answer(other))
    save(name, state, *answers, asked=asked)


# ------------------------------------------------------------------------------------ transformers

# What microsoft/beit-base-patch16-224 has beside the file.
PROCESSOR = {
    "image_processor_type": "BeitImageProcessor",
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 2,
    "do_center_crop": False,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def hugging_face():
    transformers_beit("beit/hf", "BeitForImageClassification", use_relative_position_bias=True)


def hugging_face_shared():
    """A table for all blocks, positions in front, and the class token alone: no published file."""
    transformers_beit(
        "beit/hf_shared",
        "BeitModel",
        use_shared_relative_position_bias=True,
        use_absolute_position_embeddings=True,
        use_mask_token=True,
        use_mean_pooling=False,
    )


def transformers_beit(name, architecture, **arguments):
    import_torchvision()
    import transformers

    config = transformers.BeitConfig(
        hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=40,
        image_size=SIZE,
        patch_size=PATCH,
        id2label=dict(enumerate(NAMES)),
        **arguments,
    )
    model = randomise(getattr(transformers, architecture)(config).double().eval())
    body = getattr(model, "beit", model)

    def answer(images):
        out = body(images)
        found = {"tokens": out.last_hidden_state, "pooled": out.pooler_output}
        return found if body is model else {**found, "logits": model.classifier(out.pooler_output)}

    memory = body is not model
    transformers_case(name, model, body.layers, answer, preprocessor=PROCESSOR, in_memory=memory)


if __name__ == "__main__":
    main()
