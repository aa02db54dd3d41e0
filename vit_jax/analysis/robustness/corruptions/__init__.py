"""The fifteen common corruptions of ImageNet-C, each at five severities.

Hendrycks and Dietterich (2019), "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", https://arxiv.org/abs/1903.12261. The reference is `imagecorruptions` 1.1.2 of
Michaelis et al. (2019), https://arxiv.org/abs/1907.07484, which does not need ImageMagick and takes
images of any shape: with the same random numbers and frost images, results differ by at most one
grey level, and mostly not at all (tests/goldens/analysis/make_corruptions.py).

The published images of ImageNet-C differ from both: motion blur and snow use ImageMagick, elastic
transform also warps the image, the enlargements of zoom blur are centre crops, frost is not
enlarged, and all are JPEG files of quality 85. Error rates on one are not comparable with those on
the other.
"""

from vit_jax.analysis.robustness.corruptions.registry import (
    CORRUPTIONS,
    GROUPS,
    SEVERITIES,
    corrupt,
)

__all__ = ["CORRUPTIONS", "GROUPS", "SEVERITIES", "corrupt"]
