"""Makes `preprocessing.json`: how other libraries preprocess for weights that can be read here.

    python -m tests.goldens.weights.make_preprocessing

needs torch, torchvision, timm and transformers, of which it writes down the versions:

- "torchvision": by the names of a model and its weights, the size and what is resized to.
- "timm": by a published configuration, as its `config.json` has it, what timm makes of it. Of
  many that are alike one stands here.
- "transformers": by the class of a processor, its defaults; and the class by `model_type`.
"""

import importlib
import json
from pathlib import Path

from tests.goldens.weights.make_golden import import_timm

TIMM = (
    "vit_*",
    "deit*",
    "swin_*",
    "mixer_*",
    "resnet*",
    "convnext*",
    "*efficientnet_b*",
    "flexivit*",
)
SWIN = ("swin_t", "swin_s", "swin_b")  # torchvision's, without Swin V2
PROCESSORS = {
    "vit": "ViTImageProcessor",
    "deit": "DeiTImageProcessor",
    "bit": "BitImageProcessor",
    "convnext": "ConvNextImageProcessor",
    "pvt": "PvtImageProcessor",
    "clip": "CLIPImageProcessor",
    "siglip": "SiglipImageProcessor",
}
MODEL_TYPES = (
    *("vit", "deit", "vit_mae", "dinov2", "dinov2_with_registers"),
    *("swin", "pvt", "resnet", "convnext", "convnextv2", "dinov3_convnext"),
)
DEFAULTS = (
    *("size", "crop_size", "resample", "image_mean", "image_std", "default_to_square"),
    *("do_resize", "do_center_crop", "do_rescale", "do_normalize", "crop_pct"),
)


def main():
    """Asks the installed libraries."""
    import_timm()  # and torchvision, which does not import as it is everywhere
    content = {
        "versions": {
            name: importlib.import_module(name).__version__
            for name in ("torchvision", "timm", "transformers")
        },
        "torchvision": dict(torchvision_weights()),
        "timm": list(timm_configurations()),
        "transformers": dict(transformers_processors()),
        "model_types": dict(processors_of_models()),
    }
    text = json.dumps(content)
    Path(__file__).with_name("preprocessing.json").write_text(text + "\n", encoding="utf-8")


def torchvision_weights():
    """(crop_size, resize_size, interpolation) by "model.WEIGHTS"."""
    from torchvision import models

    for name in models.list_models(module=models):
        if not name.startswith(("resnet", "vit_", "convnext_", "efficientnet_b", *SWIN)):
            continue
        for weights in models.get_model_weights(name):
            transform = weights.transforms()
            yield (
                f"{name}.{weights.name}",
                {
                    "crop_size": transform.crop_size[0],
                    "resize_size": transform.resize_size[0],
                    "interpolation": transform.interpolation.value,
                    "mean": transform.mean,
                    "std": transform.std,
                },
            )


def timm_configurations():
    """A configuration, and what timm resolves it to; each kind once."""
    import timm
    from timm.data import resolve_data_config
    from timm.models import get_pretrained_cfg

    seen = set()
    for name in timm.list_pretrained(list(TIMM)):
        told = get_pretrained_cfg(name).to_dict()
        kept = ("input_size", "mean", "std", "crop_pct", "crop_mode", "interpolation")
        told = {key: told[key] for key in kept if told.get(key) is not None}
        resolved = resolve_data_config({}, pretrained_cfg=told)
        family = name.split("_")[0].split(".")[0]
        if (kind := json.dumps([family, resolved])) not in seen:
            seen.add(kind)
            yield {"name": name, "pretrained_cfg": told, "resolved": resolved}


def transformers_processors():
    """Defaults by the name of a class."""
    for model, name in PROCESSORS.items():
        module = importlib.import_module(
            f"transformers.models.{model}.image_processing_pil_{model}"
        )
        kind = getattr(module, f"{name}Pil")
        yield name, {key: getattr(kind, key, None) for key in DEFAULTS}


def processors_of_models():
    """The name of the class by `model_type`."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    for kind in MODEL_TYPES:
        found = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind)
        yield kind, found["torchvision"] if found else None


if __name__ == "__main__":
    main()
