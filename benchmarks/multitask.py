"""One model for four tasks against a model for each, at equal steps, on scenes of digits.

    python train.py --config=configs/dense/detection_scenes.py:backbone --workdir=runs/backbone
    python -m benchmarks.multitask --backbone=runs/backbone --seeds=0,1,2 --steps=800

All models have the heads of configs/dense/multitask_scenes.py, and begin with the same trained
backbone. A model of one task sees only its own data, and in each step as many images of it as the
model of all tasks sees on average: 24 scenes, or 8 single digits with labels. Runs that are
finished are not run again. Printed are the test metrics, their differences, and the numbers of
parameters.
"""

import argparse
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from vit_jax.config import load_config
from vit_jax.data.sources.composed.mix import parts_of
from vit_jax.runs import RunDir
from vit_jax.training import fit

CONFIG = "dense/multitask_scenes"
LABELLED = "digits"  # part of the mixture that classification learns from; the others: scenes
# The metric of each head.
METRICS = {
    "classification": "accuracy",
    "segmentation": "mean_iou",
    "depth": "delta1",
    "detection": "ap50",
}
FURTHER = (("depth", "abs_rel"), ("detection", "ap"))


def settings(name: str, seed: int, steps: int, backbone: str) -> ConfigDict:
    """Return the config of a run with one head, or with all for "all".

    backbone: folder of the run that it begins with.
    """
    changes = {"seed": seed, "duration": f"{steps} steps", "log.every": "200 steps"}
    changes |= {"evaluate.every": "100%", "checkpoint.every": "25%", "init_from": backbone}
    config = load_config(CONFIG, changes)
    if name != "all":
        labelled = name == "classification"
        parts = parts_of(config.dataset)
        [config.dataset] = [part for part in parts if (part == LABELLED) == labelled]
        config.data.labels = labelled
        config.batch_size = round(config.batch_size * parts[config.dataset] / sum(parts.values()))
        heads = config.model.task_heads.to_dict()
        config.model.task_heads = {head: heads[head] for head in heads if head == name}
        config.objective.weights = ""
    return config


def run(folder: Path, name: str, seed: int, steps: int, backbone: str) -> dict[str, float]:
    """Return the test metrics of a run; train it if needed."""
    workdir = folder / f"{name}_{seed}_{steps}"
    result = RunDir(workdir).result() if workdir.is_dir() else None
    return result or fit(settings(name, seed, steps, backbone), workdir).result


def parameters(folder: Path, name: str, seed: int, steps: int) -> int:
    """Return the number of parameters of a finished run."""
    variables, _ = RunDir(folder / f"{name}_{seed}_{steps}").read_variables()

    def count(tree) -> int:
        return sum(map(count, tree.values())) if isinstance(tree, dict) else int(np.size(tree))

    return count(variables["params"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backbone", required=True, help="folder of a run")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--folder", type=Path, default=Path("runs/multitask"))
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    found = {
        name: [run(given.folder, name, seed, given.steps, given.backbone) for seed in seeds]
        for name in ("all", *METRICS)
    }
    print(f"{given.steps} steps, seeds {given.seeds}, in percent")
    rows = [*METRICS.items(), *FURTHER]
    for head, metric in rows:
        key = f"{head}_{metric}"
        alone, joint = (
            100 * np.array([result[key] for result in found[name]]) for name in (head, "all")
        )
        shown = [
            f"{x.mean():.2f} ± {x.std(ddof=1) if len(x) > 1 else 0:.2f}" for x in (alone, joint)
        ]
        print(f"{key}: alone {shown[0]}, all at once {shown[1]}, {np.mean(joint - alone):+.2f}")
    counts = {name: parameters(given.folder, name, seeds[0], given.steps) for name in found}
    of_all = counts.pop("all")
    share = of_all / sum(counts.values())
    print(f"parameters: {of_all:,} against {sum(counts.values()):,}, {100 * share:.1f} %")


if __name__ == "__main__":
    main()
