"""Libraries that results are compared with; they belong to the optional group `parity`."""

import pytest

from benchmarks.peers import import_timm


@pytest.fixture(scope="module")
def torch():
    """torch without gradients, its random numbers seeded anew for every file."""
    import torch

    import_timm()  # before transformers, which cannot import torchvision without its help
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    return torch
