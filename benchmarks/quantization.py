"""Quantization benchmark: accuracy, size and speed of runs with fewer bits.

    python -m benchmarks.quantization runs/digits runs/fashion

- Every variant of a run is evaluated on all its test images; the difference of logits is the
  largest of any image and class, relative to the largest logit.
- Sizes are those of all arrays, as they are in a checkpoint.
- Speeds are those of a batch in CPU time of this process, alternately with float32 in rounds, of
  each of which the ratio is taken; the median counts. Other load on the machine changes both alike.
- The last rows are a ViT-Ti/16 for 224 pixels with random weights, for speed and size alone.
"""

import argparse
import dataclasses
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.distillation import LAST, ROOT, write_rows
from vit_jax.analysis.latency.timing import time_in_turns
from vit_jax.compress.quantize import SKIPPED, quantized_variables
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.inference import Classifier
from vit_jax.models.inputs import trace_init
from vit_jax.models.quantized import packed
from vit_jax.runs import ModelRecord
from vit_jax.runs.derived import read_finished
from vit_jax.training.open_run import open_run

PAGE = ROOT / "docs" / "deploy.md"
FIRST = "<!-- rows: python -m benchmarks.quantization -->\n"
HEAD = """\
| model | numbers | accuracy | largest difference | bytes | share | speed |
|---|---|---:|---:|---:|---:|---:|
"""
BATCH = 64
FLOAT32, BFLOAT16 = "float32", "bfloat16"
BITS = {  # bits and activations
    "int8 weights": (8, "float"),
    "int8 x int8": (8, "int8"),
    "4-bit weights": (4, "float"),
}


class Variant(NamedTuple):
    """A model with other numbers, and the bytes of its arrays in a file."""

    name: str
    classifier: Classifier
    size: int


def variants(record: ModelRecord, variables: dict[str, Any]) -> Iterator[Variant]:
    """Yield a model in float32, in bfloat16, and quantized."""

    def made(name: str, record: ModelRecord, variables: dict[str, Any]) -> Variant:
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(packed(variables)))
        return Variant(name, Classifier.of_record(record, variables), size)

    yield made(FLOAT32, record, variables)
    rough = dataclasses.replace(record, fields={**record.fields, "dtype": BFLOAT16})
    yield made(BFLOAT16, rough, jax.tree.map(lambda x: x.astype(jnp.bfloat16), variables))
    for name, (bits, activations) in BITS.items():
        yield made(name, record, quantized_variables(record, variables, bits, activations, SKIPPED))


def logits_of(variant: Variant, images: np.ndarray) -> np.ndarray:
    """Return the logits of preprocessed images, in batches of one size."""
    padded = np.concatenate([images, np.zeros((-len(images) % BATCH, *images.shape[1:]), np.uint8)])
    batches = [variant.classifier.run(part) for part in np.split(padded, len(padded) // BATCH)]
    return np.concatenate([np.asarray(one["logits"], np.float32) for one in batches])[: len(images)]


def speeds(some: list[Variant], images: np.ndarray, rounds: int) -> list[float]:
    """Return the speed of each by that of the first, in CPU time, the median of rounds."""

    def run(variant: Variant) -> None:
        jax.block_until_ready(variant.classifier.run(images))

    runs = [functools.partial(run, variant) for variant in some]
    times = time_in_turns(runs, 0, rounds, time.process_time)  # one call in a round
    return [one.speed_up(times[0]) for one in times]


def rows_of_run(path: Path, rounds: int, limit: int) -> Iterator[str]:
    """Yield the rows of a run: its accuracy on the test images, or the first `limit` of them."""
    _, record, variables, _ = read_finished(path)
    source = open_run(path).source("test")
    count = min(len(source), limit or len(source))
    examples = [source[i] for i in range(count)]
    images = np.stack([record.preprocessing(one["image"]) for one in examples])
    labels = np.array([one["label"] for one in examples])
    found = list(variants(record, variables))
    fast = speeds(found, images[:BATCH], rounds)
    exact = logits_of(found[0], images)
    for variant, speed in zip(found, fast, strict=True):
        logits = logits_of(variant, images)
        accuracy = f"{100 * np.mean(logits.argmax(-1) == labels):.2f} %"
        difference = f"{100 * np.abs(logits - exact).max() / np.abs(exact).max():.1f} %"
        yield row(path.name, variant, found[0].size, speed, accuracy, difference)


def rows_of_size(name: str, rounds: int, batch: int) -> Iterator[str]:
    """Yield the rows of a model with random weights: bytes and speed."""
    side = 224
    record = ModelRecord(name, {"num_classes": 1000}, Preprocessing((side, side)), ())
    model = record.create_model()
    shapes = trace_init(model, jnp.zeros((1, side, side, 3)))
    draw = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda x: draw.normal(scale=0.02, size=x.shape).astype(np.float32), shapes
    )
    images = draw.integers(0, 256, (batch, side, side, 3)).astype(np.uint8)
    found = list(variants(record, dict(variables)))
    for variant, speed in zip(found, speeds(found, images, rounds), strict=True):
        yield row(f"{name}, {side} pixels", variant, found[0].size, speed, "", "")


def row(
    model: str, variant: Variant, whole: int, speed: float, accuracy: str, difference: str
) -> str:
    """Return a row of the table."""
    share = f"{100 * variant.size / whole:.1f} %"
    cells = [model, variant.name, accuracy, difference, f"{variant.size:,}", share, f"{speed:.2f}"]
    return f"| {' | '.join(cells)} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", type=Path, nargs="+", help="run folders of classifiers")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="to check that it runs; no page")
    options = parser.parse_args()
    rounds, limit = (1, BATCH) if options.quick else (options.rounds, 0)
    rows = HEAD
    for path in options.runs:
        for line in rows_of_run(path, rounds, limit):
            print(line, end="", flush=True)
            rows += line
    if options.quick:
        return
    for line in rows_of_size("ViT-Ti/16", rounds, batch=4):
        print(line, end="", flush=True)
        rows += line
    write_rows(PAGE, rows, FIRST, LAST)


if __name__ == "__main__":
    main()
