"""Temporary memory of attention by number of tokens, from the compiler's analysis.

    python -m benchmarks.attention_memory                      under a minute; runs nothing
    python -m benchmarks.attention_memory --tokens 1025 4097 --time

Forward, and forward with gradients for q, k and v, in float32, of one image and 12 heads of 64 as
in ViT-B. Tokens are those of 16-pixel patches and a class token at 224, 384, 512, 720 and 1024
pixels. `--time` also runs the compiled programs and prints CPU time as a ratio to `xla`.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.attention.multi_head import attention

TOKENS = (197, 577, 1025, 2049, 4097)
IMPLEMENTATIONS = ("xla", "chunked")
HEADS, HEAD_DIM = 12, 64


def compile_attention(
    implementation: str, tokens: int, gradients: bool, heads: int = HEADS
) -> jax.stages.Compiled:
    """Compile self-attention of one image; with `gradients`, those for q, k and v."""

    def forward(q, k, v):
        return attention(q, k, v, implementation=implementation)

    def backward(q, k, v):
        return jax.grad(lambda *x: (forward(*x) ** 2).sum(), argnums=(0, 1, 2))(q, k, v)

    shape = jax.ShapeDtypeStruct((1, tokens, heads, HEAD_DIM), jnp.float32)
    return jax.jit(backward if gradients else forward).lower(shape, shape, shape).compile()


def temporary_bytes(compiled: jax.stages.Compiled) -> int:
    """Return the memory that a program needs besides its arguments and results."""
    return compiled.memory_analysis().temp_size_in_bytes


def processor_seconds(compiled: list[jax.stages.Compiled], tokens: int, rounds: int) -> list[float]:
    """Return the median CPU time of a call of each, over all threads, in alternation."""
    rng = np.random.default_rng(0)
    shape = (1, tokens, HEADS, HEAD_DIM)
    qkv = [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(3)]
    seconds = [[] for _ in compiled]
    for _ in range(rounds + 1):
        for times, program in zip(seconds, compiled, strict=True):
            start = time.process_time()
            jax.block_until_ready(program(*qkv))
            times.append(time.process_time() - start)
    return [statistics.median(times[1:]) for times in seconds]  # the first call allocates memory


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--time", action="store_true", help="also run the programs")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of timing (default: 5)")
    options = parser.parse_args()

    heading = f"{'MB of temporaries':24}" + "".join(f"{n:>10}" for n in options.tokens) + "  tokens"
    print(heading)
    for gradients in (False, True):
        compiled = {
            name: [compile_attention(name, tokens, gradients) for tokens in options.tokens]
            for name in IMPLEMENTATIONS
        }
        what = "with gradients" if gradients else "forward"
        for name, programs in compiled.items():
            cells = "".join(f"{temporary_bytes(program) / 1e6:10.1f}" for program in programs)
            print(f"{name + ', ' + what:24}{cells}")
        if options.time:
            ratios = []
            for at, tokens in enumerate(options.tokens):
                pair = [programs[at] for programs in compiled.values()]
                plain, chunked = processor_seconds(pair, tokens, options.rounds)
                ratios.append(f"{chunked / plain:10.2f}")
            print(f"{'  time of chunked / xla':24}{''.join(ratios)}")


if __name__ == "__main__":
    main()
