"""Cost of returning attention weights, relative to a call without them.

    python -m benchmarks.attention_weights                       under two minutes on two cores
    python -m benchmarks.attention_weights --images 64 256 --rounds 3

A small ViT (width 192, 4 blocks of 3 heads, patches of 16 pixels, a class token) computes logits of
a batch of 4 images in float32; 224 pixels are 197 tokens. Time is the median wall time of a call,
both calls in alternating order; memory is that of the compiled program's results and temporaries.
Both are absolute for the plain call, and ratios to it in the same run for the call with weights.
The table is Markdown.

Before measuring, it checks that the option costs nothing if it is off: the text of the plain call's
program must equal that of a model whose layers cannot return weights.
"""

import argparse
import statistics
import time
from unittest import mock

import jax
import jax.numpy as jnp
from flax import linen as nn

from vit_jax.models import create_model

IMAGES = (64, 224, 384)  # sides in pixels: 17, 197 and 577 tokens
BATCH = 4
SMALL = {"num_classes": 1000, "patch_size": 16, "width": 192, "depth": 4, "heads": 3}


def lower(model: nn.Module, side: int, asks: bool) -> jax.stages.Lowered:
    """Lower a call that returns logits, and with `asks` the weights of every block."""

    def call(params, images):
        if not asks:
            return model.apply({"params": params}, images)
        kept = {"attention_weights": True, "mutable": ["intermediates"]}
        logits, intermediates = model.apply({"params": params}, images, **kept)
        blocks = intermediates["intermediates"]
        return logits, [blocks[f"blocks_{i}"]["attn"]["weights"] for i in range(model.depth)]

    images = jax.ShapeDtypeStruct((BATCH, side, side, 3), jnp.float32)
    params = jax.eval_shape(model.init, jax.random.key(0), images)["params"]
    return jax.jit(call).lower(params, images)


def check_nothing_is_paid(model: nn.Module, side: int) -> None:
    """Raise ArithmeticError if the plain call differs from that of a model without weights."""
    plain = lower(model, side, asks=False).as_text()
    with mock.patch.object(nn.Module, "sow", lambda *_, **__: False):
        without = lower(model, side, asks=False).as_text()
    if plain != without:
        raise ArithmeticError(
            "the program of a call without attention weights has changed because of them"
        )


def bytes_of(program: jax.stages.Compiled) -> int:
    """Return the memory of results and temporaries."""
    memory = program.memory_analysis()
    return memory.output_size_in_bytes + memory.temp_size_in_bytes


def take_turns(programs: list[jax.stages.Compiled], arguments: tuple, rounds: int) -> list[list]:
    """Return the seconds of a call of each program in every round, in alternating order."""
    seconds = [[] for _ in programs]
    for number in range(rounds + 1):
        pairs = list(zip(programs, seconds, strict=True))
        for program, times in pairs if number % 2 == 0 else reversed(pairs):
            start = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            times.append(time.perf_counter() - start)
    return [times[1:] for times in seconds]  # the first call allocates memory


def measure(sides: list[int], rounds: int) -> None:
    """Print a row for every image size."""
    print(
        f"batch of {BATCH}, {SMALL['depth']} blocks of {SMALL['heads']} heads, "
        f"width {SMALL['width']}, float32; {jax.devices()[0].device_kind}, jax {jax.__version__}\n"
    )
    print("| tokens | ms | with weights | lowest-highest | MB | with weights |")
    print("|---:|---:|---:|---:|---:|---:|")
    for side in sides:
        model = create_model("ViT", image_size=side, **SMALL)
        check_nothing_is_paid(model, side)
        programs = [lower(model, side, asks).compile() for asks in (False, True)]
        images = jax.random.normal(jax.random.key(1), (BATCH, side, side, 3))
        params = jax.jit(model.init)(jax.random.key(0), images)["params"]
        plain, asking = take_turns(programs, (params, images), rounds)
        ratios = [a / b for a, b in zip(asking, plain, strict=True)]
        memory = [bytes_of(program) for program in programs]
        cells = (
            (side // SMALL["patch_size"]) ** 2 + 1,
            f"{1e3 * statistics.median(plain):.1f}",
            f"{statistics.median(ratios):.2f}",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
            f"{memory[0] / 1e6:.1f}",
            f"{memory[1] / memory[0]:.2f}",
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--images",
        type=int,
        nargs="+",
        default=IMAGES,
        help="sides in pixels, multiples of 16 (default: %(default)s)",
    )
    parser.add_argument("--rounds", type=int, default=10, help="rounds of timing (default: 10)")
    options = parser.parse_args()
    measure(options.images, options.rounds)


if __name__ == "__main__":
    main()
