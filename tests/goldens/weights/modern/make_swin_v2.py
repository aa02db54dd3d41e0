"""Makes the golden files of Swin V2: tiny models of three libraries and what they answer.

    python -m tests.goldens.weights.modern.make_swin_v2

`common.py` says what is in a file. `block_0`, ... are the blocks of all stages. The maps are 8 x 8
and 4 x 4 tokens with windows of 4, so that the first stage is shifted and nothing is padded, where
other libraries differ. A scale of logits is above the largest that counts.

The authors' repository is no package: its model is timm's of the same function, with the names and
buffers that its files have, and coordinates relative to other windows, as after fine-tuning.
"""

import torch

from tests.goldens.weights.modern.common import (
    CLASSES,
    NAMES,
    coarse,
    import_timm,
    import_torchvision,
    randomise,
    save,
    timm_answer,
    timm_config,
    transformers_case,
)

SIZES = {"patch_size": 2, "embed_dim": 8, "depths": (2, 2), "num_heads": (1, 2), "mlp_ratio": 2.0}
SIZE = (16, 16)
PRETRAINED = {"pretrained_window_sizes": (3, 2)}


def main():
    for number, make in enumerate((timm_square, timm_oblong, original, transformers, torchvision)):
        torch.manual_seed(number)
        make()


def timm_square():
    timm_case("timm", SIZE, 4, other=(32, 16))  # one axis of the second stage is shifted


def timm_oblong():
    arguments = {"qkv_bias": False, "pretrained_window_sizes": (5, 3)}
    timm_case("timm_oblong", (16, 8), (4, 2), other=(16, 16), **arguments)


def timm_case(name, size, window, other, **arguments):
    model = timm_swin(size, window, **arguments)
    larger = timm_swin(other, window, **arguments)
    larger.load_state_dict(model.state_dict())
    save(
        f"swin_v2/{name}",
        model.state_dict(),
        (blocks_of(model), timm_answer(model)),
        (blocks_of(larger), timm_answer(larger)),
        config=timm_config(model),
        size=size,
        other_size=other,
    )


def original():
    model = timm_swin(SIZE, 4, **PRETRAINED)
    state = {}
    for name, value in [*model.state_dict().items(), *model.named_buffers()]:
        name = name.replace("layers.1.downsample", "layers.0.downsample")
        if not name.endswith("k_bias"):
            state[name.replace("head.fc.", "head.")] = value
    assert "layers.0.blocks.1.attn_mask" in state
    assert "layers.1.blocks.1.attn.relative_coords_table" in state
    save("swin_v2/original", state, (blocks_of(model), timm_answer(model)), None, size=SIZE)


def transformers():
    import_torchvision()
    import transformers

    config = transformers.Swinv2Config(
        image_size=SIZE[0], window_size=4, id2label=dict(enumerate(NAMES)), **SIZES, **PRETRAINED
    )
    model = randomised(transformers.Swinv2ForImageClassification(config))

    def answer(images):
        out = model.swinv2(images)
        logits = model.classifier(out.pooler_output)
        return {"tokens": out.last_hidden_state, "pooled": out.pooler_output, "logits": logits}

    transformers_case("swin_v2/hf", model, blocks_of(model.swinv2.encoder), answer, other_size=SIZE)


def torchvision():
    import_torchvision()
    from torchvision.models import swin_transformer as v2

    model = v2.SwinTransformer(
        patch_size=[2, 2],
        embed_dim=SIZES["embed_dim"],
        depths=SIZES["depths"],
        num_heads=SIZES["num_heads"],
        window_size=[4, 4],
        mlp_ratio=SIZES["mlp_ratio"],
        num_classes=CLASSES,
        block=v2.SwinTransformerBlockV2,
        downsample_layer=v2.PatchMergingV2,
    )
    randomised(model)
    model.features[0][0].weight.data *= 2**-6
    model.features[0][0].bias.data *= 2**-6
    for stage in (1, 3):
        for block in model.features[stage]:
            bias = block.attn.qkv.bias.data
            bias[len(bias) // 3 : 2 * len(bias) // 3] = 0  # keys have none, and the file zeros

    def answer(images):
        tokens = model.norm(model.features(images))
        pooled = tokens.mean((1, 2))
        return {"tokens": tokens, "pooled": pooled, "logits": model.head(pooled)}

    blocks = [block for stage in (1, 3) for block in model.features[stage]]
    save(
        "swin_v2/torchvision",
        model.state_dict(),
        (blocks, answer),
        (blocks, answer),
        size=SIZE,
        other_size=(32, 16),
    )


def timm_swin(size, window, **arguments):
    timm = import_timm()
    arguments = {"img_size": size, "window_size": window, "num_classes": CLASSES, **arguments}
    return randomised(timm.create_model("swinv2_tiny_window8_256", **SIZES, **arguments))


def randomised(model):
    randomise(model.double().eval())
    for name, parameter in model.named_parameters():
        if name.endswith("logit_scale"):
            drawn = 2.0 + 0.5 * torch.rand(parameter.shape)
            parameter.data = coarse(drawn).double()
    last = [p for name, p in model.named_parameters() if name.endswith("logit_scale")][-1]
    last.data[0] = 4.75  # log(100) is 4.605
    return model


def blocks_of(model):
    return [block for stage in model.layers for block in stage.blocks]


if __name__ == "__main__":
    main()
