"""Names of DPT and Depth Anything V2."""

from vit_jax.models.depth.module import DPT
from vit_jax.models.registry import register

register(
    "DPT-B/16",
    DPT,
    "Vision Transformers for Dense Prediction (Ranftl et al. 2021), DPT-Base of section 3",
    backbone_name="ViT-B/16",
    blocks=(2, 5, 8, 11),
    widths=(96, 192, 384, 768),
)
register(
    "DPT-L/16",
    DPT,
    "Vision Transformers for Dense Prediction (Ranftl et al. 2021), DPT-Large of section 3",
)
register(
    "DPT-Hybrid",
    DPT,
    "Vision Transformers for Dense Prediction (Ranftl et al. 2021), DPT-Hybrid of section 3",
    backbone_name="R50+ViT-B/16",
    # timm's, in which the authors and transformers have it
    backbone_fields={"stem_norm_eps": 1e-5, "stem_std_eps": 0.0, "stem_var_eps": 1e-8},
    blocks=(8, 11),
    stages=(0, 1),
    widths=(256, 512, 768, 768),
)

# Blocks, channels of the maps, and of the fused maps: DepthAnything/Depth-Anything-V2, `dpt.py`.
for _size, (_blocks, _widths, _fusion) in {
    "S": ((2, 5, 8, 11), (48, 96, 192, 384), 64),
    "B": ((2, 5, 8, 11), (96, 192, 384, 768), 128),
    "L": ((4, 11, 17, 23), (256, 512, 1024, 1024), 256),
    "g": ((9, 19, 29, 39), (1536, 1536, 1536, 1536), 384),
}.items():
    register(
        f"DepthAnythingV2-{_size}",
        DPT,
        "Depth Anything V2 (Yang et al. 2024), on the encoder of DINOv2",
        image_size=518,
        backbone_name=f"DINOv2-{_size}/14",
        blocks=_blocks,
        normed=True,
        readout="ignore",
        widths=_widths,
        fusion_width=_fusion,
    )
register(
    "DPT",
    DPT,
    "the class itself, with the sizes of DPT-L/16: for weights and sizes that have no name here",
)
