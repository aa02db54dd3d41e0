"""Makes the golden files of AIMv2: of timm, of the authors and of transformers.

    python -m tests.goldens.weights.modern.make_aimv2

`common.py` says what is in a file. The authors' files have their own names for timm's tensors.
"""

import copy

import torch

from tests.goldens.weights.modern.common import (
    CLASSES,
    DEPTH,
    HEADS,
    OTHER,
    PATCH,
    SIZE,
    WIDTH,
    import_torchvision,
    randomise,
    save,
    timm_answer,
    timm_case,
    timm_model,
    transformers_case,
)


def main():
    for number, make in enumerate((timm, original, hugging_face, hugging_face_native)):
        torch.manual_seed(number)
        make()


def timm():
    timm_case("aimv2/timm", "aimv2_large_patch14_224", num_classes=CLASSES)


def original():
    model = timm_model("aimv2_large_patch14_224", num_classes=0)
    other = copy.deepcopy(model)
    other.set_input_size(OTHER)
    names = {
        "patch_embed.": "preprocessor.patchifier.",
        "pos_embed": "preprocessor.pos_embed",
        "blocks.": "trunk.blocks.",
        "norm1.": "norm_1.",
        "norm2.": "norm_2.",
        "fc1_g.": "fc1.",
        "fc1_x.": "fc3.",
    }
    state = {}
    for key, value in model.state_dict().items():
        for timms, theirs in names.items():
            key = key.replace(timms, theirs)
        state["trunk.post_trunk_norm.weight" if key == "norm.weight" else key] = value
    assert len(state) == len(model.state_dict())
    config = {
        "architectures": ["AIMv2Model"],
        "attention_dropout": 0.0,
        "hidden_size": WIDTH,
        "image_size": SIZE,
        "intermediate_size": model.blocks[0].mlp.fc1_g.out_features,
        "model_type": "aimv2",
        "num_attention_heads": HEADS,
        "num_channels": 3,
        "num_hidden_layers": DEPTH,
        "patch_size": PATCH,
        "projection_dropout": 0.0,
        "qkv_bias": False,
        "rms_norm_eps": 1e-5,
        "use_bias": False,
    }
    own = (model.blocks, timm_answer(model))
    save("aimv2/original", state, own, (other.blocks, timm_answer(other)), config=config)


# What the published files have beside them.
PROCESSOR = {
    "image_processor_type": "CLIPImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": 224},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


def hugging_face():
    """With the head that pools by attention."""
    transformers_aimv2("aimv2/hf", SIZE)


def hugging_face_native():
    """Of any size: sines and cosines instead of a table, no head."""
    transformers_aimv2("aimv2/hf_native", OTHER, is_native=True, use_head=False)


def transformers_aimv2(name, other, **arguments):
    import_torchvision()
    from transformers import Aimv2VisionConfig, Aimv2VisionModel

    config = Aimv2VisionConfig(
        hidden_size=WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        intermediate_size=40,
        image_size=SIZE,
        patch_size=PATCH,
        **arguments,
    )
    model = randomise(Aimv2VisionModel(config).double().eval())

    def answer(images):
        out = model(images)
        pooled = out.last_hidden_state.mean(1)
        if out.pooler_output is not None:
            pooled = out.pooler_output
        return {"tokens": out.last_hidden_state, "pooled": pooled}

    other = (other, other) if isinstance(other, int) else other
    layers = model.encoder.layers
    transformers_case(name, model, layers, answer, preprocessor=PROCESSOR, other_size=other)


if __name__ == "__main__":
    main()
