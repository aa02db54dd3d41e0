"""The fifteen common corruptions of ImageNet-C, each at five severities.

Hendrycks and Dietterich (2019), "Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations", https://arxiv.org/abs/1903.12261. The reference is `imagecorruptions` 1.1.2 of
Michaelis et al. (2019), https://arxiv.org/abs/1907.07484, which does without ImageMagick and takes
images of any shape: given the same random numbers and images of frost, results differ by one
grey level at most, and mostly not at all (tests/goldens/analysis/make_corruptions.py).

The published images of ImageNet-C differ from both: motion blur and snow are ImageMagick's,
elastic transform also warps the image, enlargements of zoom blur are cut from their middle, frost
is not enlarged, and all are kept as JPEG files of quality 85. Error rates on one are no error rates
on the other.
"""

from vit_jax.analysis.robustness.corruptions.registry import (
    CORRUPTIONS,
    GROUPS,
    SEVERITIES,
    corrupt,
)

__all__ = ["CORRUPTIONS", "GROUPS", "SEVERITIES", "corrupt"]
