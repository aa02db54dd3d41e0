"""Makes `crops.npz`: what the evaluation pipelines of other libraries make of small images.

    python -m tests.goldens.weights.make_crops

needs torch, torchvision, timm and transformers. `image(height, width)` makes the images by
arithmetic, so that the tests make the same ones. Every array is named by what made it, the size of
the image and the keywords of our `Preprocessing` that stand for it.
"""

import json
from pathlib import Path

import numpy as np

SIZES = ((37, 23), (23, 37), (301, 200), (200, 301), (64, 64), (100, 30), (30, 101), (45, 44))


def image(height: int, width: int) -> np.ndarray:
    """uint8 pixels (height, width, 3): a gradient with noise that no library has to draw."""
    numbers = np.arange(height * width * 3, dtype=np.uint64).reshape(height, width, 3)
    noise = (numbers * 2654435761 % 2**32) >> 25  # 0 to 127
    rows = np.arange(height, dtype=np.uint64)[:, None, None] * 127 // height
    return (noise + rows).astype(np.uint8)


def main():
    """Runs all pipelines on all images."""
    from make_golden import import_timm

    import_timm()  # and torchvision, which does not import as it is everywhere
    arrays = {}
    for pipeline, keywords, run in pipelines():
        for size in SIZES:
            name = json.dumps([pipeline, size, keywords])
            arrays[name] = run(image(*size))
    np.savez_compressed(Path(__file__).with_name("crops.npz"), **arrays)
    print(len(arrays), "arrays")


def pipelines():
    """Name, keywords of ours, and function from uint8 pixels to uint8 pixels."""
    for crop, resized, interpolation in ((32, 37, "bilinear"), (33, 38, "bicubic")):
        keywords = {"size": [crop, crop], "resized": resized, "interpolation": interpolation}
        yield "torchvision", keywords, torchvision_pipeline(crop, resized, interpolation)
    for mode, resize in (("center", "cover"), ("squash", "squash"), ("border", "pad")):
        for size in ((32, 32), (25, 40)):
            for crop in (1.0,) if mode == "border" else (0.875, 0.9, 0.95):
                keywords = {"size": size, "crop": crop, "resize": resize}
                yield "timm", keywords, timm_pipeline(size, crop, mode)
    for crop, resized in ((32, 37), (33, 38), (24, 24)):
        keywords = {"size": [crop, crop], "resized": resized, "crop_rounding": "down"}
        settings = {"size": {"shortest_edge": resized}, "crop_size": crop}
        yield (
            "BitImageProcessor",
            keywords,
            processor_pipeline("bit.BitImageProcessorPil", settings),
        )
        keywords = {**keywords, "resize": "squash"}
        settings = {"size": {"height": resized, "width": resized}, "crop_size": crop}
        yield (
            "DeiTImageProcessor",
            keywords,
            processor_pipeline("deit.DeiTImageProcessorPil", settings),
        )
    for side, share in ((32, 0.875), (29, 0.9)):
        keywords = {"size": [side, side], "crop": share, "crop_rounding": "down"}
        settings = {"size": {"shortest_edge": side}, "crop_pct": share}
        yield (
            "ConvNextImageProcessor",
            keywords,
            processor_pipeline("convnext.ConvNextImageProcessorPil", settings),
        )
    keywords = {"size": [32, 24], "resize": "squash", "interpolation": "bilinear"}
    settings = {"size": {"height": 32, "width": 24}}
    yield "ViTImageProcessor", keywords, processor_pipeline("vit.ViTImageProcessorPil", settings)


def torchvision_pipeline(crop, resized, interpolation):
    """What `ImageClassification` does before it makes floats."""
    from PIL import Image
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms import functional as F

    def run(pixels):
        resize = F.resize(Image.fromarray(pixels), [resized], InterpolationMode(interpolation))
        return np.asarray(F.center_crop(resize, [crop]))

    return run


def timm_pipeline(size, crop, mode):
    """timm's transform for evaluation, without its normalisation."""
    from PIL import Image
    from timm.data import create_transform

    transform = create_transform(
        input_size=(3, *size),
        crop_pct=crop,
        crop_mode=mode,
        interpolation="bicubic",
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        normalize=False,
    )
    return lambda pixels: transform(Image.fromarray(pixels)).numpy().transpose(1, 2, 0)


def processor_pipeline(name, settings):
    """A processor of transformers, without its normalisation."""
    import importlib

    from PIL import Image

    model, kind = name.split(".")
    stem = model.lower()
    module = importlib.import_module(f"transformers.models.{stem}.image_processing_pil_{stem}")
    processor = getattr(module, kind)(**settings, do_rescale=False, do_normalize=False)

    def run(pixels):
        [values] = processor(Image.fromarray(pixels))["pixel_values"]
        return np.asarray(values).transpose(1, 2, 0).astype(np.uint8)

    return run


if __name__ == "__main__":
    main()
