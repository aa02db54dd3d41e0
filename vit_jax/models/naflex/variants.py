"""Names of the NaFlex ViTs: sizes of the published image towers of SigLIP 2."""

from vit_jax.models.foreign_names import add_names
from vit_jax.models.naflex.module import NaFlexViT
from vit_jax.models.registry import get_preset, register

_SOURCE = "SigLIP 2 (Tschannen et al. 2025), section 2.4.2, NaFlex"
# Alabdulmohsin et al. 2023, "Getting ViT in Shape", the shape-optimised size of 400 M parameters.
_SO400M = {"width": 1152, "depth": 27, "heads": 16, "mlp_width": 4304}

register("NaFlexViT-B/16", NaFlexViT, _SOURCE, **get_preset("ViT-B/16").fields)
register("NaFlexViT-So400m/16", NaFlexViT, _SOURCE, patch_size=16, **_SO400M)

register(
    "NaFlexViT",
    NaFlexViT,
    "the class itself, with the sizes of NaFlexViT-B/16: for weights and sizes that have no name "
    "here",
)

for _theirs, _ours in (("base", "B"), ("so400m", "So400m")):
    add_names(rf"siglip2_{_theirs}_patch16_naflex(?:_.*)?", f"NaFlexViT-{_ours}/16")
    add_names(rf"naflexvit_{_theirs}_patch16(?:_.*)?", f"NaFlexViT-{_ours}/16")
