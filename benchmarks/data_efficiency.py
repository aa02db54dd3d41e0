"""Data efficiency: a ViT and a convolutional network of equal FLOPs on subsets of the data.

    python -m benchmarks.data_efficiency             eighteen runs; some 15 minutes on two cores
    python -m benchmarks.data_efficiency --steps 20 --seeds 0        to check that it works

Trains `configs/data_efficiency.py` on 5, 20 and 100 % of the training digits. The seed determines
the initial parameters, the order of the images and, for the smaller fractions, the selected images.
Writes `data_efficiency.png` and prints the table of `docs/results/data_efficiency.md`. Finished
runs are reused.
"""

import argparse
import statistics
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.families import ROOT, accuracy, train_config
from vit_jax.models.summary.cost import Cost, cost
from vit_jax.runs import RunDir

TITLES = {"vit": "ViT", "cnn": "ResNet"}
SHARES = (5, 20, 100)  # percent of 1,437 images
STARTS = (0, 40, 80)  # percent; start of the images of the seeds 0, 1, 2

Accuracies = dict[tuple[str, int], list[float]]  # by model and fraction: percent, for every seed


def images(share: int, seed: int) -> str:
    """Return the training images of a fraction and a seed, as a slice."""
    start = STARTS[seed] if share < 100 else 0
    return f"train[{start}%:{start + share}%]"


def train(kind: str, share: int, seed: int, workdir: Path, steps: int) -> float:
    """Return the test accuracy in percent of one run, trained if it is missing."""
    train_config(
        f"configs/data_efficiency.py:{kind}",
        workdir,
        f"--config.seed={seed}",
        f"--config.duration={steps} steps",
        f"--config.data.train={images(share, seed)}",
    )
    return 100 * accuracy(workdir)


def draw(accuracies: Accuracies) -> Figure:
    """Draw accuracy over the fraction of the data, with standard deviations over the seeds."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for kind, title in TITLES.items():
        means, deviations = zip(*(_spread(accuracies[kind, s]) for s in SHARES), strict=True)
        axes.errorbar(SHARES, means, deviations, label=title, marker="o", capsize=4)
    axes.set_xscale("log")
    axes.set_xticks(SHARES, [f"{share} %" for share in SHARES])
    axes.minorticks_off()
    axes.set(xlabel="fraction of 1,437 training images", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def table(accuracies: Accuracies, costs: dict[str, Cost]) -> str:
    """Format the results in Markdown, a row for each model."""
    head = "| model | parameters | MMACs | " + " | ".join(f"{s} %" for s in SHARES) + " |"
    lines = [head, "|---|" + "---:|" * (2 + len(SHARES))]
    for kind, title in TITLES.items():
        spreads = [_spread(accuracies[kind, share]) for share in SHARES]
        cells = [f"{mean:.2f} ± {deviation:.2f}" for mean, deviation in spreads]
        counts = costs[kind]
        size = f"{counts.parameters:,} | {counts.macs / 1e6:.2f}"
        lines.append(f"| {title} | {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: list[float]) -> tuple[float, float]:
    """Return mean and standard deviation; 0 for a single value."""
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", choices=(0, 1, 2), default=(0, 1, 2))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "efficiency")
    parser.add_argument("--image", type=Path, default=Path("data_efficiency.png"))
    options = parser.parse_args()

    accuracies: Accuracies = {}
    costs = {}
    for kind in TITLES:
        for share in SHARES:
            for seed in options.seeds:
                workdir = (options.runs / f"{kind}_{share}_{seed}").resolve()
                reached = train(kind, share, seed, workdir, options.steps)
                accuracies.setdefault((kind, share), []).append(reached)
                print(f"{kind}, {share} %, seed {seed}: {reached:.2f} %", flush=True)
        costs[kind] = cost(RunDir(workdir).read_model().create_model())
    draw(accuracies).savefig(options.image, dpi=120)
    print("\n" + table(accuracies, costs))


if __name__ == "__main__":
    main()
