"""Patch kernels of another size, against timm and the definition of the paper.

The golden file is made by `tests/goldens/models/make_patch_resize.py`.
"""

import numpy as np
import pytest

from tests.folders import GOLDENS
from vit_jax.models.layers.patch_resize import PAPER_METHOD, resize_patch_kernel

with np.load(GOLDENS / "models" / "patch_resize.npz") as file:
    GOLDEN = {name: file[name].astype(np.float32) for name in file}
CASES = sorted({name.partition("/")[0] for name in GOLDEN})
METHODS = {
    "paper": PAPER_METHOD,
    "timm": "torch-bicubic-antialias",
    "timm-bilinear": "torch-bilinear",
}


@pytest.mark.parametrize("case", CASES)
def test_kernels_agree_with_the_definition_and_with_timm(case):
    """timm computes the pseudo-inverse in float32; the definition, in float64, is nearer."""
    kernel = GOLDEN[f"{case}/kernel"]
    for name, method in METHODS.items():
        expected = GOLDEN[f"{case}/{name}"]
        found = resize_patch_kernel(kernel, expected.shape[:2], method)
        tolerance = 2e-6 if name == "paper" else 1e-5
        np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max())


def test_a_kernel_of_the_same_size_keeps_its_bits():
    kernel = GOLDEN["4x4-8x8/kernel"]
    assert resize_patch_kernel(kernel, (4, 4)) is kernel
