"""Subnets of a supernet by the weights they inherit, against the same trained alone, on the digits.

    taskset -c 1 python -m benchmarks.autoformer                     37 runs
    python -m benchmarks.autoformer --scale 0.05 --subnets 2         to check that it works

`configs/autoformer/digits.py` trains the supernet, and every subnet alone with the same settings:
once for the same epochs, at which nearly all have learned the digits, and with three seeds for a
sixth of them, at which subnets differ. The search has 250 evaluations on the validation images, for
at most half of the supernet's parameters. The other subnets are random ones of the search space,
spread over its costs: of 400 that are drawn, sorted by multiply-adds, the middle one of each of as
many parts. Accuracies are those on images that no run was trained on: the validation and the test
images together. Prints the table of docs/results/autoformer.md. Finished runs are reused.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from benchmarks.families import ROOT
from vit_jax.compress.search.inherited import InheritedAccuracy
from vit_jax.compress.search.search import Budget, search
from vit_jax.config import load_config
from vit_jax.models.supernet.cost import subnet_cost
from vit_jax.models.supernet.space import Subnet
from vit_jax.runs import RunDir
from vit_jax.training import fit
from vit_jax.training.open_run import open_run

CONFIG = "configs/autoformer/digits.py"
EPOCHS = 120.0
SHORT, SHORT_SEEDS = 20.0, (0, 1, 2)
SPLITS = ("validation", "test")


def train(preset: str, workdir: Path, length: float, changes: dict[str, str]) -> Path:
    """Train a run of so many epochs, unless it is finished; return its folder."""
    run = RunDir(workdir)
    if not (run.is_run() and run.result()):
        changes = {"duration": f"{length:.4g} epochs", "compile_cache": "none", **changes}
        fit(load_config(f"{ROOT / CONFIG}:{preset}", list(changes.items())), workdir)
    return workdir


def alone(subnet: Subnet, workdir: Path, length: float, seed: int) -> float:
    """Return the accuracy of a subnet that is trained alone, in percent."""
    fields = {f"model.{name}": str(value) for name, value in subnet.fields().items()}
    opened = open_run(train("subnet", workdir, length, {"seed": str(seed), **fields}))
    variables, _ = opened.run.read_variables()
    correct, images = 0, 0
    for split in SPLITS:
        metrics = opened.experiment.evaluate(variables, opened.source(split)).metrics
        correct += round(metrics["accuracy"] * metrics["examples"])
        images += metrics["examples"]
    return 100 * correct / images


def kendall(one: list[float], other: list[float]) -> float:
    """Return Kendall's rank correlation, tau b: ties count in neither direction."""
    pairs = [(i, j) for i in range(len(one)) for j in range(i)]
    signs = [
        [np.sign(values[i] - values[j]) for i, j in pairs]
        for values in map(np.asarray, (one, other))
    ]
    untied = np.sqrt(np.prod([np.count_nonzero(side) for side in signs]))
    return float(np.dot(*signs) / untied) if untied else float("nan")


def spread(task, count: int, seed: int) -> list[Subnet]:
    """Return random subnets whose costs are spread over those of the space."""
    rng = np.random.default_rng(seed)
    drawn = {task.space.random(rng) for _ in range(400)}
    ordered = sorted(drawn, key=lambda one: (subnet_cost(task.model, one).macs, str(one)))
    return [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--subnets", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "autoformer")
    options = parser.parse_args()
    folder, seed, length = options.runs, options.seed, EPOCHS * options.scale

    run = train("supernet", folder / f"supernet_{seed}", length, {"seed": str(seed)})
    opened = open_run(run)
    task, (variables, _) = opened.experiment.task, opened.run.read_variables()
    judges = [InheritedAccuracy(opened, variables, split) for split in SPLITS]
    half = subnet_cost(task.model, task.space.largest).parameters // 2

    began = time.monotonic(), time.process_time()
    found = search(run, folder / f"search_{seed}", Budget(parameters=half), seed=seed)
    took = time.monotonic() - began[0], time.process_time() - began[1]
    print(f"{len(found)} subnets in {took[0]:.0f} s, {took[1]:.0f} s of the processor", flush=True)

    chosen = [found[0].subnet, *spread(task, options.subnets, seed)]
    names = ["found", *map(str, range(1, len(chosen)))]
    images = sum(judge.images for judge in judges)
    rows = []
    print("\n| subnet | parameters | MMACs | inherited | alone | difference | alone, short |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, subnet in zip(names, chosen, strict=True):
        inherited = 100 * sum(judge([subnet])[0] for judge in judges) / images
        trained = alone(subnet, folder / f"alone_{name}_{seed}", length, seed)
        short = np.mean(
            [
                alone(subnet, folder / f"short_{name}_{one}", SHORT * options.scale, one)
                for one in SHORT_SEEDS
            ]
        )
        rows.append((inherited, trained, short))
        cost = subnet_cost(task.model, subnet)
        cells = (
            f"{name}: {subnet}",
            f"{cost.parameters:,}",
            f"{cost.macs / 1e6:.2f}",
            f"{inherited:.2f}",
            f"{trained:.2f}",
            f"{inherited - trained:+.2f}",
            f"{short:.2f}",
        )
        print(f"| {' | '.join(cells)} |", flush=True)
    inherited, *others = zip(*rows[1:], strict=True)
    for name, trained in zip(("alone", "alone, short"), others, strict=True):
        print(f"Kendall's tau b of inherited and {name}: {kendall(inherited, trained):.2f}")


if __name__ == "__main__":
    main()
