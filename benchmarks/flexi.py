"""One FlexiViT at four patch sizes against four ViTs of one patch size each, on the digits.

    taskset -c 1 python -m benchmarks.flexi          15 runs
    python -m benchmarks.flexi --scale 0.05 --seeds 0    to check that it works

`configs/flexivit/digits.py` trains both, with blocks, augmentation, batch and learning rate alike.
Each ViT is trained for as many multiply-adds as the whole FlexiViT, so for more epochs the larger
its patches are; the four of them together cost four times as much. The FlexiViT is judged at each
patch size. The test images are looked at once, after the last step of each run. Prints the table of
docs/results/flexi.md. Finished runs are reused.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.families import ROOT
from benchmarks.label_efficiency import interval
from vit_jax.config import load_config
from vit_jax.models import create_model
from vit_jax.models.summary.cost import cost
from vit_jax.runs import RunDir
from vit_jax.training import fit

CONFIG = "configs/flexivit/digits.py"
SIZES = (4, 6, 8, 12)
EPOCHS = 30.0  # of the FlexiViT
MODELS = ("FlexiViT", "ViT")

Accuracies = Mapping[tuple[str, int], Sequence[float]]  # by model and patch size: percent, by seed


def macs() -> dict[int, int]:
    """Return the multiply-adds of a ViT on one image, by its patch size."""
    fields = load_config(f"{CONFIG}:vit").model.to_dict()
    name = fields.pop("name")
    return {size: cost(create_model(name, **{**fields, "patch_size": size})).macs for size in SIZES}


def epochs() -> dict[int, float]:
    """Return the epochs of each ViT: the multiply-adds of a FlexiViT with steps of every size."""
    by_size = macs()
    mean = sum(by_size.values()) / len(SIZES)
    return {size: EPOCHS * mean / by_size[size] for size in SIZES}


def train(
    preset: str, workdir: Path, length: float, changes: Mapping[str, str]
) -> dict[str, float]:
    """Return the result of a run of so many epochs, which is trained unless it is finished."""
    run = RunDir(workdir)
    if not (run.is_run() and run.result()):
        changes = {"duration": f"{length:.4g} epochs", "compile_cache": "none", **changes}
        fit(load_config(f"{ROOT / CONFIG}:{preset}", list(changes.items())), workdir)
    return run.result()


def compare(folder: Path, seed: int, scale: float) -> dict[tuple[str, int], float]:
    """Return the test accuracies of a seed in percent, by model and patch size."""
    found = {}
    result = train("flexible", folder / f"flexible_{seed}", scale * EPOCHS, {"seed": str(seed)})
    for size, length in epochs().items():
        workdir = folder / f"vit_{size}_{seed}"
        changes = {"seed": str(seed), "model.patch_size": str(size)}
        separate = train("vit", workdir, scale * length, changes)
        found["FlexiViT", size] = 100 * result[f"patch_{size}_accuracy"]
        found["ViT", size] = 100 * separate["accuracy"]
        line = ", ".join(f"{name} {found[name, size]:.2f} %" for name in MODELS)
        print(f"seed {seed}, patch size {size}: {line}", flush=True)
    return found


def table(accuracies: Accuracies) -> str:
    """Return the results in Markdown: a row for each patch size."""
    side = load_config(CONFIG).model.image_size
    lines = [
        "| patch size | patches | MMACs | FlexiViT | ViT of this size | its epochs | difference |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    by_size, lengths = macs(), epochs()
    for size in SIZES:
        ours, theirs = (accuracies[name, size] for name in MODELS)
        cells = (
            str(size),
            str((side // size) ** 2),
            f"{by_size[size] / 1e6:.2f}",
            interval(ours),
            interval(theirs),
            f"{lengths[size]:.0f}",
            interval([a - b for a, b in zip(ours, theirs, strict=True)]),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "flexi")
    options = parser.parse_args()

    accuracies: dict[tuple[str, int], list[float]] = {}
    for seed in options.seeds:
        for key, reached in compare(options.runs, seed, options.scale).items():
            accuracies.setdefault(key, []).append(reached)
    print("\n" + table(accuracies))


if __name__ == "__main__":
    main()
