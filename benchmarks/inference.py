"""Inference of ViTs on images of 224 pixels: this library against timm and plain linen.

    python -m benchmarks.inference                     a quarter of an hour on two idle cores
    python -m benchmarks.inference --peers plain       without torch and timm
    python -m benchmarks.inference --quick             to check that it runs

All have the same weights and images, and their logits are compared before they are timed. See
`alternation.py` for the method.
"""

import argparse
import time

import numpy as np

from benchmarks.alternation import Candidate, add_options, compare_chosen
from benchmarks.peers import COMPILED, OURS, PLAIN, Case, plain_vit, timm_vit

SIZES = {"Ti": (192, 3, (1, 8, 32)), "S": (384, 6, (1, 8, 32)), "B": (768, 12, (1, 8))}
CASES = [
    Case(
        f"{size}/16-b{batch}",
        batch,
        image_size=224,
        patch_size=16,
        width=width,
        depth=12,
        heads=heads,
        num_classes=1000,
    )
    for size, (width, heads, batches) in SIZES.items()
    for batch in batches
]
QUICK = [Case("tiny", 2, image_size=16, patch_size=4, width=32, depth=2, heads=2)]
TOLERANCE = 1e-4  # of the largest logit; float32 after twelve blocks


class JaxInference:
    """Compiled forward pass of this library or of plain linen."""

    def __init__(self, peer: str, case: Case):
        import jax
        from flax.traverse_util import unflatten_dict

        if peer == OURS:
            model, params = case.model(), unflatten_dict(case.params(), sep="/")
        else:
            model, params = plain_vit(case)
        self.flops = case.flops()
        self._params, self._images = jax.device_put((params, case.images()))
        self._forward = jax.jit(lambda params, images: model.apply({"params": params}, images))
        self.seconds(2)

    def outputs(self) -> dict[str, np.ndarray]:
        """Return the logits."""
        return {"logits": np.asarray(self._forward(self._params, self._images))}

    def seconds(self, runs: int) -> float:
        """Return the time of so many batches."""
        start = time.perf_counter()
        for _ in range(runs):
            logits = self._forward(self._params, self._images)
        logits.block_until_ready()
        return time.perf_counter() - start


class TorchInference:
    """Forward pass of timm, eager or compiled."""

    def __init__(self, peer: str, case: Case):
        import torch

        self.flops = case.flops()
        model = timm_vit(case).eval()
        self._model = torch.compile(model) if peer == COMPILED else model
        self._images = torch.from_numpy(case.images()).permute(0, 3, 1, 2).contiguous()
        self.seconds(2)

    def outputs(self) -> dict[str, np.ndarray]:
        """Return the logits."""
        import torch

        with torch.inference_mode():
            return {"logits": self._model(self._images).numpy()}

    def seconds(self, runs: int) -> float:
        """Return the time of so many batches."""
        import torch

        with torch.inference_mode():
            start = time.perf_counter()
            for _ in range(runs):
                self._model(self._images)
            return time.perf_counter() - start


def enter(peer: str, case: Case) -> Candidate:
    """Create an implementation of a case."""
    return (JaxInference if peer in (OURS, PLAIN) else TorchInference)(peer, case)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_options(parser, CASES)
    options = parser.parse_args()
    compare_chosen(enter, QUICK if options.quick else CASES, TOLERANCE, options)


if __name__ == "__main__":
    main()
