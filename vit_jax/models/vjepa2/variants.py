"""Names of the encoders of V-JEPA 2: Assran et al. 2025, section 2, and its repository.

The published ones are for clips of 64 frames of 256 pixels, the last one of 384. Their sizes are
those of `src/hub/backbones.py` there: the giant one has 22 heads of 64 channels.
"""

from vit_jax.models.foreign_names import add_names
from vit_jax.models.registry import register
from vit_jax.models.vjepa2.module import VJEPA2

_SOURCE = "V-JEPA 2 (Assran et al. 2025), section 2, 64 frames of {} pixels; no head"
_HUGE = {"width": 1280, "depth": 32, "mlp_width": 5120}
_GIANT = {"width": 1408, "depth": 40, "heads": 22, "mlp_width": 6144}
_NAMES = {  # fields besides those of V-JEPA2-L/16
    "V-JEPA2-L/16": {"mlp_width": 4096},
    "V-JEPA2-H/16": _HUGE,
    "V-JEPA2-g/16": _GIANT,
    "V-JEPA2-g/16-384": {**_GIANT, "image_size": 384},
}
for _name, _fields in _NAMES.items():
    register(_name, VJEPA2, _SOURCE.format(_fields.get("image_size", 256)), **_fields)

register(
    "VJEPA2",
    VJEPA2,
    "the class itself, with the sizes of V-JEPA2-L/16: for weights and sizes that have no name "
    "here",
)

# transformers, and the authors' entry points of torch.hub.
add_names(r"v_?jepa_?2_vit_?(?:g|giant)(?:_(?:fpc\d+_)?384(?:_.*)?)", "V-JEPA2-g/16-384")
add_names(r"v_?jepa_?2_vit_?(large|huge|giant|l|h|g)(?:_.*)?", "V-JEPA2-{1}/16")
