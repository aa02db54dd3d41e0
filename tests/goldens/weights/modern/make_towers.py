"""Makes the golden files of image towers of transformers: CLIP, SigLIP and SigLIP 2.

    python -m tests.goldens.weights.modern.make_towers

`common.py` says what is in a file. `tokens` are past the last norm, also where the library applies
that norm to the class token alone. A whole model is saved with a text tower of one block.

SigLIP 2 takes patches in place of images; `naflex/...` are two images of 3 x 5 and 4 x 2 patches in
one padded batch: `pixels`, `mask`, `shapes`, and what the model makes of them. What it has of
padding stands in no file.
"""

import numpy as np
import torch

from tests.goldens.weights.modern.common import (
    DEPTH,
    HEADS,
    NAMES,
    PATCH,
    SIZE,
    WIDTH,
    answers,
    coarse,
    import_torchvision,
    randomise,
    transformers_case,
)

PROJECTION = 24
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": 40,
}
VISION = {**SIZES, "image_size": SIZE, "patch_size": PATCH}
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "vocab_size": 12,
    "max_position_embeddings": 6,
    "pad_token_id": 1,
    "bos_token_id": 10,
    "eos_token_id": 11,
}
CLIP_PROCESSOR = {
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
SIGLIP_PROCESSOR = {
    "image_processor_type": "SiglipImageProcessor",
    "do_resize": True,
    "size": {"height": 224, "width": 224},
    "resample": 3,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
NAFLEX_PROCESSOR = {
    "image_processor_type": "Siglip2ImageProcessor",
    "do_resize": True,
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "max_num_patches": 256,
    "patch_size": PATCH,
}


def main():
    cases = (
        clip,
        clip_projection,
        clip_whole,
        siglip,
        siglip_whole,
        siglip_classifier,
        siglip_headless,
        siglip2,
    )
    for number, make in enumerate(cases):
        torch.manual_seed(number)
        make()


# -------------------------------------------------------------------------------------------- CLIP


def clip():
    library = transformers()
    model = library.CLIPVisionModel(library.CLIPVisionConfig(**VISION))
    clip_case("towers/hf_clip", model, model)


def clip_projection():
    """As open_clip's models: exact GELU."""
    library = transformers()
    config = library.CLIPVisionConfig(**VISION, projection_dim=PROJECTION, hidden_act="gelu")
    model = library.CLIPVisionModelWithProjection(config)
    clip_case("towers/hf_clip_projection", model, model.vision_model, model.visual_projection)


def clip_whole():
    library = transformers()
    config = library.CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=PROJECTION)
    model = library.CLIPModel(config)
    clip_case("towers/hf_clip_whole", model, model.vision_model, model.visual_projection)


def clip_case(name, model, tower, projection=None):
    randomise(model.double().eval())

    def answer(images):
        out = tower(images, interpolate_pos_encoding=True)
        tokens = tower.post_layernorm(out.last_hidden_state)
        found = {"tokens": tokens, "pooled": out.pooler_output}
        return found if projection is None else {**found, "projected": projection(found["pooled"])}

    layers = tower.encoder.layers
    processor = CLIP_PROCESSOR
    transformers_case(name, model, layers, answer, preprocessor=processor)


# ------------------------------------------------------------------------------------------ SigLIP


def siglip():
    library = transformers()
    model = library.SiglipVisionModel(library.SiglipVisionConfig(**VISION))
    siglip_case("towers/hf_siglip", model, model)


def siglip_whole():
    library = transformers()
    text = {**TEXT, "projection_size": WIDTH}
    model = library.SiglipModel(library.SiglipConfig(text_config=text, vision_config=VISION))
    siglip_case("towers/hf_siglip_whole", model, model.vision_model)


def siglip_classifier():
    """The mean of the tokens goes to the classes, not what the head pools."""
    library = transformers()
    names = dict(enumerate(NAMES))
    config = library.SiglipConfig(text_config=TEXT, vision_config=VISION, id2label=names)
    model = library.SiglipForImageClassification(config)
    siglip_case("towers/hf_siglip_classifier", model, model.vision_model, model.classifier)


def siglip_headless():
    library = transformers()
    model = library.SiglipVisionModel(library.SiglipVisionConfig(**VISION, vision_use_head=False))
    siglip_case("towers/hf_siglip_headless", model, model)


def siglip_case(name, model, tower, classifier=None):
    randomise(model.double().eval())

    def answer(images):
        out = tower(images, interpolate_pos_encoding=True)
        pooled, mean = out.pooler_output, out.last_hidden_state.mean(1)
        if classifier is not None:
            return {"tokens": out.last_hidden_state, "pooled": mean, "logits": classifier(mean)}
        return {"tokens": out.last_hidden_state, "pooled": mean if pooled is None else pooled}

    layers = tower.encoder.layers
    processor = SIGLIP_PROCESSOR
    transformers_case(name, model, layers, answer, preprocessor=processor)


# ---------------------------------------------------------------------------------------- SigLIP 2


def siglip2():
    library = transformers()
    config = library.Siglip2VisionConfig(
        **SIZES, patch_size=PATCH, num_patches=(SIZE // PATCH) ** 2
    )
    model = randomise(library.Siglip2VisionModel(config).double().eval())
    layers = model.encoder.layers

    def pooled(pixels, mask, shapes):
        out = model(pixels, pixel_attention_mask=mask, spatial_shapes=shapes)
        return {"tokens": out.last_hidden_state, "pooled": out.pooler_output}

    def answer(images):
        pixels, (height, width) = cut(images)
        mask = torch.ones(pixels.shape[:2], dtype=torch.long)
        return pooled(pixels, mask, torch.tensor([[height, width]]))

    shapes = torch.tensor([[3, 5], [4, 2]])
    mask = (torch.arange(16) < shapes.prod(1)[:, None]).long()
    pixels = coarse(torch.randn(2, 16, 3 * PATCH**2)).double() * mask[:, :, None]
    together = answers(layers, lambda _: pooled(pixels, mask, shapes), torch.zeros(1, 3, 1, 1))
    hidden = mask.numpy()[:, :, None] == 0
    padded = {}
    for key, array in together.items():
        if key not in ("images", "logits"):
            padded[key] = np.where(hidden, 0, array) if array.ndim == 3 else array
    padded |= {"pixels": pixels.numpy().astype(np.float16), "shapes": shapes.numpy()}
    padded["mask"] = mask.numpy()
    more = {f"naflex/{key}": array for key, array in padded.items()}
    processor = NAFLEX_PROCESSOR
    transformers_case("towers/hf_siglip2", model, layers, answer, preprocessor=processor, more=more)


def cut(images):
    """Patches (batch, patches, rows * columns * channels) in the order of the processor."""
    batch, channels, height, width = images.shape
    rows, columns = height // PATCH, width // PATCH
    patches = images.reshape(batch, channels, rows, PATCH, columns, PATCH)
    patches = patches.permute(0, 2, 4, 3, 5, 1)
    return patches.reshape(batch, rows * columns, -1), (rows, columns)


def transformers():
    import_torchvision()
    import transformers

    return transformers


if __name__ == "__main__":
    main()
