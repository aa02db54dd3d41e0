"""Training steps of small ViTs: this library against timm and plain linen.

    python -m benchmarks.train_step                     a quarter of an hour on two idle cores
    python -m benchmarks.train_step --peers plain       without torch and timm
    python -m benchmarks.train_step --accelerator       ViT-B/16 and L/16, bfloat16, GPU or TPU
    python -m benchmarks.train_step --quick             to check that it runs

A step is forward and backward pass, clipping of the gradient to norm 1 and AdamW with weight decay
on kernels. All start from the same weights and see the same batch; the loss and the gradient norm
over the first steps are compared before they are timed, which also checks the optimizers. This
library runs the step of `train.py`, built from a configuration: it also takes images as bytes,
normalises them and computes its metrics. See `alternation.py` for the method of timing.
"""

import argparse
import time
from typing import Any

import jax
import numpy as np
import optax
from flax.traverse_util import unflatten_dict

from benchmarks.alternation import Candidate, add_options, compare_chosen
from benchmarks.peers import COMPILED, OURS, PLAIN, Case, plain_vit, timm_vit

CASES = [
    Case("Ti/16-b8", 8, image_size=224, patch_size=16, width=192, depth=12, heads=3),
    Case("32px-w192-b32", 32, image_size=32, patch_size=4, width=192, depth=12, heads=3),
    Case("28px-w64-b128", 128, image_size=28, patch_size=4, width=64, depth=6, heads=4),
]
_LARGE = {"batch": 256, "image_size": 224, "patch_size": 16, "dtype": "bfloat16"}
ACCELERATOR = [
    Case("B/16-bf16-b256", **_LARGE, width=768, depth=12, heads=12),
    Case("L/16-bf16-b256", **_LARGE, width=1024, depth=24, heads=16),
]
QUICK = [Case("tiny", 4, image_size=16, patch_size=4, width=32, depth=2, heads=2)]

LEARNING_RATE, WEIGHT_DECAY, CLIP = 1e-4, 0.05, 1.0
COMPARED_STEPS = 3
TOLERANCE = 1e-4  # of the number; float32 after twelve blocks and back


class LibraryStep:
    """Training step of this library, built from a configuration, on a kind of device."""

    def __init__(self, case: Case, device: str = "auto"):
        # Imported here, so that the other processes do not load the data and checkpoint libraries.
        from vit_jax.config import restore_config
        from vit_jax.training.distributed.sharding import to_devices
        from vit_jax.training.setup.build import build

        fields = {key: value for key, value in case.fields.items() if key != "dtype"}
        fields["name"] = "ViT-Ti/16"  # changed to the case's model by the fields
        fields["mlp_width"] = 4 * case.width
        config = {
            "dataset": "digits",  # for its ten classes; the batch is that of the benchmark
            "model": fields,
            "precision": case.dtype,
            "batch_size": case.batch,
            "device": device,
            "optimizer": {
                "learning_rate": LEARNING_RATE,
                "weight_decay": WEIGHT_DECAY,
                "clip": CLIP,
            },
            "schedule": {"warmup": "0 steps", "end": 1.0},  # of the peak: constant
        }
        experiment = build(restore_config(config))
        self.flops = 3 * case.flops()
        self.model = experiment.model
        state = experiment.initial_state()
        params = jax.tree.map(
            lambda ours, drawn: jax.device_put(drawn, ours.sharding),
            state.params,
            unflatten_dict(case.params(), sep="/"),
        )
        self._state = state.replace(params=params)
        batch = {"image": case.pixels(), "label": case.labels()}
        self._batch = to_devices(batch, experiment.mesh)
        self._step = experiment.train_step()

    def outputs(self) -> dict[str, np.ndarray]:
        """Return means over the first steps, from the step's own metrics."""
        self.seconds(COMPARED_STEPS)
        totals = jax.device_get(self._state.totals)
        return {
            "loss": totals["loss"] / totals["weight"],
            "gradient norm": totals["grad_norm"] / totals["steps"],
        }

    def losses(self, steps: int) -> np.ndarray:
        """Return the loss of each of so many steps."""
        sums = [(0.0, 0.0)]
        for _ in range(steps):
            self.seconds(1)
            totals = jax.device_get(self._state.totals)
            sums.append((float(totals["loss"]), float(totals["weight"])))
        loss, weight = np.diff(sums, axis=0).T
        return loss / weight

    def seconds(self, runs: int) -> float:
        """Return the time of so many steps."""
        start = time.perf_counter()
        for _ in range(runs):
            self._state = self._step(self._state, self._batch)
        jax.block_until_ready(self._state)
        return time.perf_counter() - start


class PlainStep:
    """Training step of linen and optax, written as in their documentation."""

    def __init__(self, case: Case):
        model, params = plain_vit(case)
        optimizer = optax.chain(
            optax.clip_by_global_norm(CLIP),
            optax.adamw(LEARNING_RATE, weight_decay=WEIGHT_DECAY, mask=_kernels),
        )

        def step(params, moments, images, labels):
            def mean_loss(params):
                logits = model.apply({"params": params}, images)
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

            loss, gradient = jax.value_and_grad(mean_loss)(params)
            updates, moments = optimizer.update(gradient, moments, params)
            params = optax.apply_updates(params, updates)
            return params, moments, loss, optax.global_norm(gradient)

        self.flops = 3 * case.flops()
        self._batch = jax.device_put((case.images(), case.labels()))
        params = jax.device_put(params)
        self._state = (params, optimizer.init(params))
        self._step = jax.jit(step, donate_argnums=(0, 1))

    def outputs(self) -> dict[str, np.ndarray]:
        """Return means over the first steps."""
        seen = []
        for _ in range(COMPARED_STEPS):
            *state, loss, norm = self._step(*self._state, *self._batch)
            self._state = state
            seen.append((loss, norm))
        return _means(seen)

    def seconds(self, runs: int) -> float:
        """Return the time of so many steps."""
        start = time.perf_counter()
        for _ in range(runs):
            *self._state, _, _ = self._step(*self._state, *self._batch)
        jax.block_until_ready(self._state)
        return time.perf_counter() - start


class TorchStep:
    """Training step of timm, eager or compiled, with torch's fused AdamW."""

    def __init__(self, case: Case, compiled: bool):
        import torch

        self.flops = 3 * case.flops()
        model = timm_vit(case).train()
        named = dict(model.named_parameters())
        kernels = [value for name, value in named.items() if _is_kernel(name, value)]
        others = [value for name, value in named.items() if not _is_kernel(name, value)]
        self._parameters = [*kernels, *others]
        self._optimizer = torch.optim.AdamW(
            [{"params": kernels}, {"params": others, "weight_decay": 0.0}],
            lr=LEARNING_RATE,
            weight_decay=WEIGHT_DECAY,
            fused=True,
        )
        self._model = torch.compile(model) if compiled else model
        self._images = torch.from_numpy(case.images()).permute(0, 3, 1, 2).contiguous()
        self._labels = torch.from_numpy(case.labels())

    def outputs(self) -> dict[str, np.ndarray]:
        """Return means over the first steps."""
        return _means([self._step() for _ in range(COMPARED_STEPS)])

    def seconds(self, runs: int) -> float:
        """Return the time of so many steps."""
        start = time.perf_counter()
        for _ in range(runs):
            self._step()
        return time.perf_counter() - start

    def _step(self) -> tuple[Any, Any]:
        import torch

        loss = torch.nn.functional.cross_entropy(self._model(self._images), self._labels)
        self._optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, CLIP)
        self._optimizer.step()
        return loss.detach(), norm


def _kernels(params: Any) -> Any:
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key == "kernel", params)


def _is_kernel(name: str, parameter: Any) -> bool:
    """Return whether a parameter of torch is a kernel in linen's terms."""
    return parameter.ndim > 1 and name.endswith("weight")


def _means(seen: list[tuple[Any, Any]]) -> dict[str, np.ndarray]:
    loss, norm = np.array([[float(number) for number in pair] for pair in seen]).mean(axis=0)
    return {"loss": loss, "gradient norm": norm}


def enter(peer: str, case: Case) -> Candidate:
    """Create an implementation of a case."""
    if peer == OURS:
        return LibraryStep(case)
    return PlainStep(case) if peer == PLAIN else TorchStep(case, compiled=peer == COMPILED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add_options(parser, CASES + ACCELERATOR)
    parser.add_argument(
        "--accelerator",
        action="store_true",
        help="only this library, large models in bfloat16, on the default device of JAX",
    )
    options = parser.parse_args()
    cases = ACCELERATOR if options.accelerator else CASES
    if options.accelerator:
        options.peers = []
    compare_chosen(enter, QUICK if options.quick else cases, TOLERANCE, options)


if __name__ == "__main__":
    main()
