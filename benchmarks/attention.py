"""Comparison of attention implementations, forward and backward, by number of tokens.

    python -m benchmarks.attention                       on the default device of JAX
    python -m benchmarks.attention --tokens 197 1025     only these numbers

Heads of 64 channels, as in ViT-S to ViT-L. The number of images decreases with the tokens, so that
all rows have about the same total number of tokens. An implementation that this device cannot run
is listed with the reason. All are compared with the first before they are timed in alternating
order.
"""

import argparse
import math
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.attention.multi_head import attention

IMPLEMENTATIONS = ("xla", "chunked", "cudnn", "pallas")
TOKENS = (197, 577, 1025, 4097)  # patches of 16 at 224, 384 and 512 pixels and of 8 at 512, and one
HEADS, HEAD_DIM = 6, 64
ROUND_SECONDS = 0.3


def make_runs(tokens: int, total: int, dtype: str) -> dict[str, object]:
    """Return for each implementation a compiled function without arguments, or an error.

    The functions give gradients with respect to queries, keys and values.
    """
    shape = (max(1, total // tokens), tokens, HEADS, HEAD_DIM)
    keys = jax.random.split(jax.random.key(0), 4)
    q, k, v, weights = (jax.random.normal(key, shape, dtype) for key in keys)
    runs = {}
    for name in IMPLEMENTATIONS:

        def loss(q, k, v, name=name):
            return jnp.sum(attention(q, k, v, implementation=name).astype(jnp.float32) * weights)

        try:
            gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(q, k, v).compile()
            jax.block_until_ready(gradient(q, k, v))
        except Exception as error:  # a kernel may reject a device with any exception
            runs[name] = str(error).partition("\n")[0] or type(error).__name__
        else:
            runs[name] = lambda gradient=gradient: jax.block_until_ready(gradient(q, k, v))
    return runs


def check_equal(runs: dict[str, object], dtype: str) -> None:
    """Raise ArithmeticError if a gradient differs from that of the first implementation."""
    for name, difference in find_differences(runs).items():
        if not difference <= tolerance(dtype):
            raise ArithmeticError(f"gradients of {name} differ by {difference:.1e}")


def tolerance(dtype: str) -> float:
    """Return the tolerance of gradients, relative to the largest value."""
    return 2e-5 if dtype == "float32" else 5e-2  # bfloat16 has 8 bits


def find_differences(runs: dict[str, object]) -> dict[str, float]:
    """Return the difference of each implementation's gradients from those of the first."""
    first, differences = None, {}
    for name, run in runs.items():
        if not callable(run):
            continue
        result = [np.asarray(array, np.float32) for array in run()]
        first = first or result
        pairs = list(zip(result, first, strict=True))
        differences[name] = max(np.abs(a - b).max() / np.abs(b).max() for a, b in pairs)
    return differences


def take_turns(runs: dict[str, object], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each implementation in each round."""
    able = [(name, run) for name, run in runs.items() if callable(run)]
    start = time.perf_counter()
    able[0][1]()
    repeats = max(1, math.ceil(ROUND_SECONDS / (time.perf_counter() - start)))
    seconds = {name: [] for name, _ in able}
    for number in range(rounds):
        for name, run in able if number % 2 == 0 else reversed(able):
            start = time.perf_counter()
            for _ in range(repeats):
                run()
            seconds[name].append((time.perf_counter() - start) / repeats)
    return seconds


def main() -> None:
    on_cpu = jax.default_backend() == "cpu"
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--rounds", type=int, default=9, help="number of rounds")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32" if on_cpu else "bfloat16"
    )
    parser.add_argument(
        "--total",
        type=int,
        default=4096 if on_cpu else 2**17,
        help="approximate total number of tokens",
    )
    options = parser.parse_args()
    print(f"{jax.devices()[0].device_kind}, {options.dtype}, {options.rounds} rounds")
    print("| tokens | implementation | ms | speed by xla | lowest-highest |")
    print("|---:|---|---:|---:|---:|")
    for tokens in options.tokens:
        runs = make_runs(tokens, options.total, options.dtype)
        check_equal(runs, options.dtype)
        seconds = take_turns(runs, options.rounds)
        for name, own in seconds.items():
            ratios = [first / s for first, s in zip(seconds["xla"], own, strict=True)]
            print(
                f"| {tokens} | {name} | {1e3 * statistics.median(own):.1f} "
                f"| {statistics.median(ratios):.2f} | {min(ratios):.2f}-{max(ratios):.2f} |",
                flush=True,
            )
        for name, reason in runs.items():
            if name not in seconds:
                print(f"| {tokens} | {name} | {reason} | | |", flush=True)


if __name__ == "__main__":
    main()
