"""Memory and time of the attention types of a ViT, relative to softmax, by tokens.

    python -m benchmarks.attention_kinds                          every type, 197 to 4,097 tokens
    python -m benchmarks.attention_kinds --tokens 197 577 --rounds 3
    python -m benchmarks.attention_kinds --errors                 error of Performer

Forward with gradients for q, k, v and the parameters of the type, in float32, for one image and 3
heads of 64 channels. Tokens are a class token and a grid: 14 x 14, 24 x 24, 32 x 32, 32 x 64 or
64 x 64. Memory is that of the compiled program's temporaries, time the median wall time of a call;
types are timed in turn. Both are absolute for softmax by plain matrix products, and ratios to it in
the same run for the others; `softmax, chunked` is the same function by blocks of queries. The
tables are Markdown.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.attention.linear import orthogonal_features, performer_attention
from vit_jax.models.attention.multi_head import attention
from vit_jax.models.attention.types import ATTENTION_KINDS, AttentionType, mix_tokens

GRIDS = {197: (14, 14), 577: (24, 24), 1025: (32, 32), 2049: (32, 64), 4097: (64, 64)}
HEADS, HEAD_DIM = 3, 64
KIND = {"performer_features": 256, "linformer_rank": 64, "local_window": 7}
# For --errors: standard deviations of q and k (logits have their square), and numbers of features.
DEVIATIONS = (0.1, 0.5, 1.0, 1.5)
FEATURES = (64, 256, 1024, 4096)


def compile_kind(name: str, tokens: int) -> tuple[jax.stages.Compiled, list[jax.Array]]:
    """Compile the gradients of a type; return them with q, k, v and its parameters."""
    keys = iter(jax.random.split(jax.random.key(0), 8))
    qkv = [jax.random.normal(next(keys), (1, tokens, HEADS, HEAD_DIM)) for _ in range(3)]
    learned: dict[str, jax.Array] = {}

    def forward(q, k, v, learned, parameter=None):
        if name.startswith("softmax"):
            return attention(q, k, v, implementation=name.partition(", ")[2] or "xla")
        get = parameter or (lambda name, *_: learned[name])
        return mix_tokens(AttentionType(name, **KIND), q, k, v, parameter=get, grid=GRIDS[tokens])[
            0
        ]

    def create(parameter, initializer, shape):
        learned[parameter] = initializer(next(keys), shape)
        return learned[parameter]

    forward(*qkv, {}, create)

    def loss(*arguments):
        return (forward(*arguments) ** 2).sum()

    program = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    return program.lower(*qkv, learned).compile(), [*qkv, learned]


def take_turns(runs: list[tuple[jax.stages.Compiled, list]], rounds: int) -> list[float]:
    """Return the median seconds of a call of each program, timed in alternating order."""
    seconds = [[] for _ in runs]
    for number in range(rounds + 1):
        pairs = list(zip(runs, seconds, strict=True))
        for (program, arguments), times in pairs if number % 2 == 0 else reversed(pairs):
            start = time.perf_counter()
            jax.block_until_ready(program(*arguments))
            times.append(time.perf_counter() - start)
    return [statistics.median(times[1:]) for times in seconds]  # the first call allocates memory


def print_table(title: str, unit: str, tokens: list[int], rows: dict[str, list[float]]) -> None:
    """Print the first row in absolute numbers, the others as ratios to it."""
    print(f"\n{title}\n\n| | " + " | ".join(f"{n:,}" for n in tokens) + " |")
    print("|---" * (len(tokens) + 1) + "|")
    base = next(iter(rows.values()))
    print(f"| softmax, {unit} | " + " | ".join(f"{number:.3g}" for number in base) + " |")
    for name, numbers in list(rows.items())[1:]:
        ratios = (f"{number / first:.2f}" for number, first in zip(numbers, base, strict=True))
        print(f"| {name} | " + " | ".join(ratios) + " |")


def measure(tokens: list[int], kinds: list[str], rounds: int) -> None:
    names = ["softmax", "softmax, chunked", *(kind for kind in kinds if kind != "softmax")]
    megabytes, milliseconds = ({name: [] for name in names} for _ in range(2))
    for count in tokens:
        runs = [compile_kind(name, count) for name in names]
        for name, (program, _), seconds in zip(names, runs, take_turns(runs, rounds), strict=True):
            memory = program.memory_analysis().temp_size_in_bytes
            megabytes[name].append(memory / 1e6)
            milliseconds[name].append(seconds * 1e3)
    print(
        f"{HEADS} heads of {HEAD_DIM}, one image, float32, "
        + ", ".join(f"{key} {value}" for key, value in KIND.items())
        + f"; {jax.devices()[0].device_kind}, jax {jax.__version__}"
    )
    print_table("Temporary memory by tokens", "MB", tokens, megabytes)
    print_table("Time of a call by tokens", "ms", tokens, milliseconds)


def errors(tokens: int = 197, seeds: int = 5) -> None:
    """Print Performer's error relative to softmax: of the output, and of the mean weights.

    Both are root mean squares of differences divided by those of the exact numbers. The unit for
    the weights is the error of uniform weights, so that 1 is as bad as no attention.
    """
    rng = np.random.default_rng(0)
    table = {deviation: [] for deviation in DEVIATIONS}
    for deviation, cells in table.items():
        q, k, v = rng.normal(size=(3, 1, tokens, HEADS, HEAD_DIM)).astype(np.float32)
        q, k = deviation * q, deviation * k
        exact, weights = attention(q, k, v, return_weights=True)
        informative = rms(weights - 1 / tokens)
        attend = jax.jit(lambda *x: performer_attention(*x, return_weights=True))
        for features in FEATURES:
            pairs = []
            for seed in range(seeds):
                given = attend(q, k, v, orthogonal_features(features, HEAD_DIM, seed))
                pairs.append((rms(given[0] - exact) / rms(exact), rms(given[1] - weights)))
            of_result, of_weights = np.mean(pairs, axis=0)
            cells.append(f"{of_result:.3f}; {of_weights / informative:.2f}")
    print(
        f"Performer against softmax, {tokens} tokens, heads of {HEAD_DIM}, mean of {seeds} seeds:\n"
        "relative error of the output; error of the weights (1: that of uniform weights)"
    )
    print("\n| deviation of q and k | " + " | ".join(f"{f:,} features" for f in FEATURES) + " |")
    print("|---" * (len(FEATURES) + 1) + "|")
    for deviation, cells in table.items():
        print(f"| {deviation} | " + " | ".join(cells) + " |")


def rms(x: jax.Array) -> float:
    return float(jnp.sqrt(jnp.mean(jnp.square(x))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", choices=GRIDS, default=list(GRIDS))
    parser.add_argument("--kinds", nargs="+", choices=ATTENTION_KINDS, default=ATTENTION_KINDS)
    parser.add_argument("--rounds", type=int, default=10, help="rounds of timing (default: 10)")
    parser.add_argument("--errors", action="store_true", help="print only the errors of Performer")
    options = parser.parse_args()
    if options.errors:
        errors()
    else:
        measure(options.tokens, options.kinds, options.rounds)


if __name__ == "__main__":
    main()
