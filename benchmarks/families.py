"""Accuracy, size and speed of every architecture and attention type on the digits.

    python -m benchmarks.families                    trains the variants without finished runs
    python -m benchmarks.families --only swin pvt
    python -m benchmarks.families --table            of the existing runs, without training

Each is trained by its own config, `configs/family/NAME.py`, with `train.py`, on an otherwise
idle machine, since images per second are part of the table. The output is the table of
`docs/results/families.md`.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from vit_jax.models.summary.cost import cost
from vit_jax.runs import TRAIN, RunDir

ROOT = Path(__file__).parents[1]
FAMILY = ROOT / "configs" / "family"


class Variant(NamedTuple):
    """Row of the table: a config by its path from the root, and the changed keys."""

    title: str
    config_file: str
    changes: tuple[tuple[str, str], ...] = ()


def _family(title: str, name: str, **fields: str) -> Variant:
    changes = tuple((f"model.{field}", value) for field, value in fields.items())
    return Variant(title, f"configs/family/{name}.py", changes)


VARIANTS = {
    "vit": Variant("ViT", "configs/digits.py"),
    "deit": _family("DeiT with two heads, labels only", "deit"),
    "conv_stem": _family("ViT, convolutional stem", "conv_stem"),
    "hybrid": _family("hybrid of ResNet and ViT", "hybrid"),
    "cait": _family("CaiT", "cait"),
    "swin": _family("Swin", "swin"),
    "swin_v2": _family("Swin V2", "swin_v2"),
    "pvt": _family("PVT", "pvt"),
    "pvt_v2": _family("PVT v2", "pvt_v2"),
    "mixer": _family("MLP-Mixer", "mixer"),
    "resnet": _family("ResNet", "resnet"),
    "convnext": _family("ConvNeXt", "convnext"),
    "efficientnet": _family("EfficientNet", "efficientnet"),
    **{
        f"attention_{kind}": _family(f"ViT, attention `{kind}`", "attention", attention_type=kind)
        for kind in ("performer", "linformer", "local", "talking_heads")
    },
    # Slower to train, but faster to compute.
    "attention_linear": Variant(
        "ViT, attention `linear`",
        "configs/family/attention.py",
        (("model.attention_type", "linear"), ("duration", "45 epochs")),
    ),
    "positions_rotary": _family("ViT, positions `rotary`", "positions"),
    # As in the config's docstring.
    "positions_relative": Variant(
        "ViT, positions `relative`",
        "configs/family/positions.py",
        (
            ("model.positions", "relative"),
            ("optimizer.lr_multipliers", '((".*relative_bias", 10),)'),
        ),
    ),
    "positions_learned2d_sum": _family(
        "ViT, positions `learned2d_sum`", "positions", positions="learned2d_sum"
    ),
}


def train(name: str, workdir: Path, *options: str) -> None:
    """Train a variant as a user would; a finished run is kept."""
    variant = VARIANTS[name]
    train_config(
        variant.config_file,
        workdir,
        *(f"--config.{key}={value}" for key, value in variant.changes),
        *options,
    )


def train_config(config_file: str, workdir: Path, *options: str) -> None:
    """Train a config with `train.py`. Raises RuntimeError with its output if it fails."""
    command = [
        sys.executable,
        "train.py",
        f"--config={config_file}",
        f"--workdir={workdir}",
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def accuracy(workdir: Path) -> float:
    """Return the test accuracy of a finished run, from 0 to 1."""
    return RunDir(workdir).result()["accuracy"]


def row(name: str, workdir: Path) -> str:
    """Return a line of the table, in Markdown."""
    variant, run = VARIANTS[name], RunDir(workdir)
    counts = cost(run.read_model().create_model())
    speed = statistics.median(
        line["images_per_second"] for line in run.read_metrics() if line["kind"] == TRAIN
    )
    cells = (
        variant.title,
        f"`{Path(variant.config_file).name}`",
        f"{100 * accuracy(workdir):.2f}",
        f"{counts.parameters:,}",
        f"{counts.macs / 1e6:.2f}",
        f"{speed:,.0f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "family")
    parser.add_argument("--table", action="store_true", help="train nothing")
    options = parser.parse_args()

    rows = []
    for name in options.only:
        workdir = (options.runs / name).resolve()
        if not options.table:
            start = time.perf_counter()
            train(name, workdir)
            seconds = time.perf_counter() - start
            print(f"{name}: {100 * accuracy(workdir):.2f} %, {seconds:.0f} s", flush=True)
        if (workdir / "metrics.jsonl").exists():
            rows.append(row(name, workdir))
    print("\n| model | config | accuracy, % | parameters | MMACs | images/s |")
    print("|---|---|---:|---:|---:|---:|")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
