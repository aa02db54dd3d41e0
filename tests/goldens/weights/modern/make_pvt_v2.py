"""Makes the golden files of PVT v2 and of SegFormer's encoder, MiT.

    python -m tests.goldens.weights.modern.make_pvt_v2

`common.py` says what is in a file. Besides the output of every block there is that of every stage
past its norm, `stage_0`, ... as `(1, height, width, channels)`. The sides of the other size are no
multiples of any stride or reduction.

- `timm`, `timm_linear`: timm's, with reductions and with 7 x 7 keys.
- `original`: the authors' repository is no package. Its model is timm's, whose names are the result
  of renaming theirs; here they are renamed back.
- `hf`, `hf_linear`: transformers' `pvt_v2`, with an epsilon that shows.
- `segformer`: transformers' classifier of SegFormer; `make_segmentation.py` has its segmenter.
"""

import re

import torch

from tests.goldens.weights.modern.common import (
    CLASSES,
    NAMES,
    import_timm,
    import_torchvision,
    randomise,
    save,
    timm_config,
    transformers_case,
)

SIZE, OTHER = (32, 32), (43, 26)
WIDTHS, DEPTHS, HEADS, RATIOS, REDUCTIONS = [4, 8, 8], [1, 2, 1], [1, 2, 2], [3, 2, 1], [4, 2, 1]
TIMM = {"embed_dims": WIDTHS, "depths": DEPTHS, "num_heads": HEADS, "mlp_ratios": RATIOS}
TIMM |= {"sr_ratios": REDUCTIONS}
HUGGING_FACE = {
    "num_encoder_blocks": 3,
    "hidden_sizes": WIDTHS,
    "depths": DEPTHS,
    "num_attention_heads": HEADS,
    "mlp_ratios": RATIOS,
    "sr_ratios": REDUCTIONS,
    "patch_sizes": [7, 3, 3],
    "strides": [4, 2, 2],
}


def main():
    cases = (timm, timm_linear, original, hugging_face, hugging_face_linear, segformer)
    for number, make in enumerate(cases):
        torch.manual_seed(number)
        make()


def small(model):
    """Random parameters; what the first norms see is small, so that their epsilons show."""
    randomise(model.double().eval())
    for name, parameter in model.named_parameters():
        if re.search(r"patch_embed(ding|dings)?\.(norm|layer_norm)\.", name):
            parameter.data *= 2**-6
    return model


# ------------------------------------------------------------------------------- timm, the authors


def timm_model(**arguments):
    return small(import_timm().create_model("pvt_v2_b0", num_classes=CLASSES, **TIMM, **arguments))


def timm_run(model):
    def answer(images):
        x, maps = model.forward_intermediates(images)
        return {**stages_of(maps), "logits": model.forward_head(x)}

    return [block for stage in model.stages for block in stage.blocks], answer


def stages_of(maps):
    stages = {f"stage_{i}": one.permute(0, 2, 3, 1) for i, one in enumerate(maps)}
    return {**stages, "pooled": maps[-1].mean((2, 3))}


def timm(name="pvt_v2/timm", **arguments):
    model = timm_model(**arguments)
    run = timm_run(model)
    config = timm_config(model)
    config["model_args"] = {**TIMM, **arguments}  # of which timm writes nothing
    save(name, model.state_dict(), run, run, config=config, size=SIZE, other_size=OTHER)


def timm_linear():
    timm("pvt_v2/timm_linear", linear=True)


def original():
    model = timm_model()
    run = timm_run(model)
    tensors = {}
    for name, tensor in model.state_dict().items():
        name = re.sub(r"^patch_embed\.", "patch_embed1.", name)
        name = re.sub(r"^stages\.(\d)\.downsample", lambda m: f"patch_embed{int(m[1]) + 1}", name)
        name = re.sub(r"^stages\.(\d)\.blocks", lambda m: f"block{int(m[1]) + 1}", name)
        name = re.sub(r"^stages\.(\d)\.norm", lambda m: f"norm{int(m[1]) + 1}", name)
        tensors[name.replace("dwconv", "dwconv.dwconv")] = tensor
    save("pvt_v2/original", tensors, run, run, asked={"heads": 1}, size=SIZE, other_size=OTHER)


# ------------------------------------------------------------------------------------ transformers

PROCESSOR = {
    "do_resize": True,
    "size": {"height": 32, "width": 32},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def of_transformers(name, model, blocks, encoder, processor, **more):
    def answer(images):
        out = encoder(images, output_hidden_states=True)
        stages = stages_of(out.hidden_states)
        return {**stages, "logits": out.logits} if encoder is model else stages

    transformers_case(
        name,
        model,
        blocks,
        answer,
        preprocessor={**PROCESSOR, **processor},
        size=SIZE,
        other_size=OTHER,
        **more,
    )


def labels():
    return {"id2label": dict(enumerate(NAMES)), "num_labels": len(NAMES)}


def hugging_face(name="pvt_v2/hf", **arguments):
    import_torchvision()
    from transformers import PvtV2Config, PvtV2ForImageClassification

    config = PvtV2Config(
        **HUGGING_FACE, **labels(), image_size=32, layer_norm_eps=1e-3, **arguments
    )
    model = small(PvtV2ForImageClassification(config))
    blocks = [block for layer in model.pvt_v2.encoder.layers for block in layer.blocks]
    processor = {"image_processor_type": "PvtImageProcessor", "resample": 3}
    of_transformers(name, model, blocks, model, processor)


def hugging_face_linear():
    hugging_face("pvt_v2/hf_linear", linear_attention=True, qkv_bias=False)


def segformer():
    import_torchvision()
    from transformers import SegformerConfig, SegformerForImageClassification

    model = small(SegformerForImageClassification(SegformerConfig(**HUGGING_FACE, **labels())))
    blocks = [block for stage in model.segformer.stages for block in stage.blocks]
    processor = {"feature_extractor_type": "SegformerFeatureExtractor", "resample": 2, "size": 32}
    processor |= {"reduce_labels": True}
    of_transformers("pvt_v2/segformer", model, blocks, model, processor)


if __name__ == "__main__":
    main()
