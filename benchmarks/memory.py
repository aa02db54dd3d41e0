"""Memory and time of a ViT's memory options: one compiled training step for each.

    python -m benchmarks.memory --models ViT-S/16 ViT-B/16
    python -m benchmarks.memory --models ViT-S/16 --rounds 3      with step times

Each row is AdamW with clipping on the cross-entropy of a batch, with the model's defaults. "traced"
and "compiled" are seconds of CPU time (of all threads, so other load distorts them less),
"temporaries" is the memory that the compiled step needs besides the state and the batch. The step's
time is also CPU time, measured in alternation with the plain step and given as a ratio to it. The
persistent compilation cache is off.
"""

import argparse
import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.models import create_model

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bfloat16": {"dtype": "bfloat16"},
    "remat dots": {"remat": "dots"},
    "remat full": {"remat": "full"},
    "scan": {"scan_layers": True},
    "scan, remat dots": {"scan_layers": True, "remat": "dots"},
    "scan, remat full": {"scan_layers": True, "remat": "full"},
}


class Step(NamedTuple):
    """Compiled training step, with the time of tracing and compiling it."""

    compiled: jax.stages.Compiled
    state: Any  # abstract: parameters and optimizer state
    traced: float  # seconds of processor time
    compile: float


def make_step(model_name: str, batch: int, fields: dict[str, Any]) -> Step:
    """Trace and compile the training step of a model."""
    model = create_model(model_name, **fields)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3, weight_decay=0.1))
    images = jax.ShapeDtypeStruct((batch, *[model.image_size] * 2, model.in_channels), jnp.float32)
    labels = jax.ShapeDtypeStruct((batch,), jnp.int32)

    def initial(rng, images):
        params = model.init(rng, images)["params"]
        return params, optimizer.init(params)

    def step(state, images, labels):
        def loss(params):
            logits = model.apply({"params": params}, images, train=True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        params, opt_state = state
        updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    state = jax.eval_shape(initial, jax.random.key(0), images)
    start = time.process_time()
    lowered = jax.jit(step, donate_argnums=0).lower(state, images, labels)
    traced = time.process_time()
    compiled = lowered.compile()
    return Step(compiled, state, traced - start, time.process_time() - traced)


def step_seconds(steps: dict[str, Step], batch: int, size: int, rounds: int) -> dict[str, float]:
    """Return the median CPU seconds of each step, timed in turn in every round."""
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.normal(size=(batch, size, size, 3)), jnp.float32)
    labels = jnp.zeros(batch, jnp.int32)

    def some(leaf):
        small = 0.02 * rng.normal(size=leaf.shape) if leaf.ndim > 1 else np.zeros(leaf.shape)
        return jnp.asarray(np.abs(small), leaf.dtype)  # second moments are not negative

    seconds = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            state = jax.block_until_ready(jax.tree.map(some, step.state))
            start = time.process_time()
            jax.block_until_ready(step.compiled(state, images, labels))
            seconds[name].append(time.process_time() - start)
    # The first call allocates memory.
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="+", default=["ViT-S/16", "ViT-B/16"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument(
        "--rounds", type=int, default=0, help="rounds of step times (default: none)"
    )
    options = parser.parse_args()
    jax.config.update("jax_enable_compilation_cache", False)

    for model_name in options.models:
        print(f"{model_name}, batch {options.batch}, {options.image_size} pixels", flush=True)
        print(f"{'':18}{'traced s':>10}{'compiled s':>12}{'temporaries MB':>16}", flush=True)
        steps = {}
        for name in options.variants:
            fields = {"image_size": options.image_size, **VARIANTS[name]}
            step = steps[name] = make_step(model_name, options.batch, fields)
            megabytes = step.compiled.memory_analysis().temp_size_in_bytes / 1e6
            row = f"{name:18}{step.traced:10.1f}{step.compile:12.1f}{megabytes:16.0f}"
            print(row, flush=True)
        if options.rounds:
            seconds = step_seconds(steps, options.batch, options.image_size, options.rounds)
            reference = seconds[options.variants[0]]
            print(f"time of a step, relative to {options.variants[0]}", flush=True)
            for name, value in seconds.items():
                print(f"{name:18}{value / reference:10.2f}", flush=True)
        print()


if __name__ == "__main__":
    main()
