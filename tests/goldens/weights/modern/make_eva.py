"""Makes the golden files of EVA-02: tiny models of timm and what they answer.

    python -m tests.goldens.weights.modern.make_eva

`common.py` says what is in a file. Positions rotate as on the 16 x 16 patches of the architectures,
whatever the grid is.
"""

import torch

from tests.goldens.weights.modern.common import CLASSES, timm_case


def main():
    for number, make in enumerate((tiny, base, clip)):
        torch.manual_seed(number)
        make()


def tiny():
    """Ti and S: q, k and v in one matrix, gate and value of the MLP in another."""
    timm_case("eva/tiny", "eva02_tiny_patch14_336.mim_in22k_ft_in1k", num_classes=CLASSES)


def base():
    """B and L: three matrices, and a norm inside the MLP."""
    timm_case("eva/base", "eva02_base_patch14_224.mim_in22k", num_classes=0)


def clip():
    """The image tower of EVA-CLIP: a norm before the projection of attention too."""
    timm_case("eva/clip", "eva02_base_patch16_clip_224.merged2b", num_classes=CLASSES)


if __name__ == "__main__":
    main()
