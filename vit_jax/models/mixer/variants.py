"""Names of the Mixers."""

from vit_jax.models.mixer.module import Mixer
from vit_jax.models.registry import register

# width, depth, D_S, D_C, and the patch sizes: Tolstikhin et al. 2021, table 1.
_SIZES = {
    "S": (512, 8, 256, 2048, (32, 16)),
    "B": (768, 12, 384, 3072, (32, 16)),
    "L": (1024, 24, 512, 4096, (32, 16)),
    "H": (1280, 32, 640, 5120, (14,)),
}
for _size, (_width, _depth, _tokens, _channels, _patches) in _SIZES.items():
    for _patch in _patches:
        register(
            f"Mixer-{_size}/{_patch}",
            Mixer,
            "MLP-Mixer: An all-MLP Architecture for Vision (Tolstikhin et al. 2021), table 1",
            patch_size=_patch,
            width=_width,
            depth=_depth,
            token_mlp_width=_tokens,
            channel_mlp_width=_channels,
        )

register(
    "Mixer",
    Mixer,
    "the class itself, with the sizes of Mixer-B/16: for weights and sizes that have no name here",
)
