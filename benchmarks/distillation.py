"""Distillation benchmark: a small DeiT on digits without teacher, with hard and soft targets.

    python -m benchmarks.distillation

- The teacher is the run of configs/digits.py: all 1,437 training digits, 45 epochs. Students are
  those of configs/family/deit.py with two heads; those without a teacher are trained on the mean of
  the heads. All take the same number of steps, see the same images in the same order for one seed,
  and differ only in `distillation`.
- There are two tasks: all training digits for a third of the teacher's time, and the first tenth of
  them. In the latter the teacher's knowledge of the other digits reaches a student only through its
  predictions on augmented copies of this tenth; the student sees no other image or label.
- Nothing was tuned on the test digits: weight, temperature and length are fixed as written here.
- Finished runs are not trained again, so an interrupted measurement can be resumed.
"""

import argparse
import statistics
from pathlib import Path

from vit_jax.config import load_config
from vit_jax.training import fit
from vit_jax.training.compile_cache import use_compile_cache

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "distillation.md"
FIRST, LAST = "<!-- rows: python -m benchmarks.distillation -->\n", "<!-- end of rows -->\n"

STEPS = 330  # of 64 images: 21,120, fifteen passes over all training digits
TASKS = {  # by folder name: title, and training digits
    "all": ("all 1,437 training digits", "train"),
    "tenth": ("the first 144", "train[:10%]"),
}
KINDS = {
    "alone": ("alone", {}),
    "hard": ("hard", {"kind": "hard", "alpha": 0.5}),
    "soft": ("soft, T = 2", {"kind": "soft", "alpha": 0.5, "temperature": 2.0}),
}


def train(config_file: str, workdir: Path, **overrides) -> float:
    """Return the test accuracy in percent of a config, trained unless it is finished."""
    pairs = [(name.replace("__", "."), str(value)) for name, value in overrides.items()]
    outcome = fit(load_config(str(ROOT / "configs" / config_file), pairs), workdir)
    if outcome.result is None:
        raise SystemExit(f"{workdir} was stopped; run the same command again to resume")
    return 100 * outcome.result["accuracy"]


def measure(folder: Path, seeds: int, steps: int, **of_teacher) -> str:
    """Return rows of a Markdown table; every run is kept in `folder`."""
    use_compile_cache("auto", folder / "teacher")
    best = train("digits.py", folder / "teacher", **of_teacher)
    rows = [
        f"| task | {' | '.join(title for title, _ in KINDS.values())} | teacher |",
        "|---|" + "---:|" * (len(KINDS) + 1),
    ]
    for task, (digits, part) in TASKS.items():
        cells = []
        for kind, (_, keys) in KINDS.items():
            taught = {f"distillation__{name}": value for name, value in keys.items()}
            if keys:
                taught["distillation__teacher"] = folder / "teacher"
            reached = [
                train(
                    "family/deit.py",
                    folder / f"{task}_{kind}_{seed}",
                    data__train=part,
                    seed=seed,
                    duration=f"{steps} steps",
                    schedule__warmup="10%",
                    log__every="10%",
                    **taught,
                )
                for seed in range(seeds)
            ]
            spread = f" ± {statistics.stdev(reached):.2f}" if seeds > 1 else ""
            cells.append(f"{statistics.mean(reached):.2f}{spread}")
        rows.append(f"| {digits} | {' | '.join(cells)} | {best:.2f} |")
    return "\n".join(rows) + "\n"


def write_rows(page: Path, rows: str, first: str = FIRST, last: str = LAST) -> None:
    """Replace the rows in a page, between two lines."""
    text = page.read_text("utf-8")
    before, _, rest = text.partition(first)
    _, mark, after = rest.partition(last)
    if not mark:
        raise SystemExit(f"{page} has no place for the rows, between {first!r} and {last!r}")
    page.write_text(before + first + rows + last + after, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, default=Path("runs/distillation"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="to check that it runs; writes no page"
    )
    options = parser.parse_args()
    if options.quick:
        short = {"duration": "2 epochs", "schedule__warmup": "10%"}
        print(measure(options.workdir, seeds=1, steps=10, **short))
        return
    rows = measure(options.workdir, options.seeds, STEPS)
    print(rows)
    write_rows(PAGE, rows)


if __name__ == "__main__":
    main()
