"""Names of the TimeSformers: Bertasius et al. 2021, section 4, trained on Kinetics."""

from vit_jax.models.registry import register
from vit_jax.models.timesformer.module import TimeSformer

_SOURCE = "TimeSformer (Bertasius et al. 2021), section 4, {}"
_NAMES = {  # fields besides those of ViT-B/16
    "TimeSformer-B/16": ({}, "8 frames of 224 pixels"),
    "TimeSformer-B/16-HR": (
        {"num_frames": 16, "image_size": 448},
        "the one of high resolution, 16 frames of 448 pixels",
    ),
    "TimeSformer-B/16-L": ({"num_frames": 96}, "the long one, 96 frames of 224 pixels"),
}
for _name, (_fields, _what) in _NAMES.items():
    register(_name, TimeSformer, _SOURCE.format(_what), mlp_width=3072, **_fields)

register(
    "TimeSformer",
    TimeSformer,
    "the class itself, with the sizes of TimeSformer-B/16: for weights and sizes that have no name "
    "here",
)
