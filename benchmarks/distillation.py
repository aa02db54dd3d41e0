"""Whether a teacher helps: the same small DeiT alone, and taught hard and soft, on digits.

    python -m benchmarks.distillation

What is notable here:
- The teacher is the run of configs/digits.py: all 1,437 training digits, 45 epochs. Students are
  those of configs/family/deit.py, two heads each, also the ones that learn alone, through their
  mean. All take the same number of steps, draw the same images in the same order for one seed,
  and differ in `distillation` alone.
- There are two tasks: all training digits for a third of the teacher's time, and the first tenth
  of them. There what the teacher knows of the other digits reaches a student only through what it
  says of augmented copies of this tenth; no image or label of the rest is shown to it.
- Nothing was tuned on the test digits: weight, temperature and length stand as written here.
- Runs that are finished are not trained again, so a measurement that was cut off goes on.
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
TASKS = {  # by the name of their folder: what they are called, and which digits to learn from
    "all": ("all 1,437 training digits", "train"),
    "tenth": ("the first 144", "train[:10%]"),
}
KINDS = {
    "alone": ("alone", {}),
    "hard": ("hard", {"kind": "hard", "alpha": 0.5}),
    "soft": ("soft, T = 2", {"kind": "soft", "alpha": 0.5, "temperature": 2.0}),
}


def train(config_file: str, workdir: Path, **overrides) -> float:
    """Test accuracy in percent after training a config, or of what has been trained already."""
    pairs = [(name.replace("__", "."), str(value)) for name, value in overrides.items()]
    outcome = fit(load_config(str(ROOT / "configs" / config_file), pairs), workdir)
    if outcome.result is None:
        raise SystemExit(f"{workdir} was stopped; the same command goes on")
    return 100 * outcome.result["accuracy"]


def measure(folder: Path, seeds: int, steps: int, **of_teacher) -> str:
    """Rows of a Markdown table; every run is kept in `folder`."""
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


def write_rows(page: Path, rows: str) -> None:
    """Puts the rows in the place of those that stand in a page."""
    text = page.read_text("utf-8")
    before, _, rest = text.partition(FIRST)
    _, mark, after = rest.partition(LAST)
    if not mark:
        raise SystemExit(f"{page} has no place for the rows, between {FIRST!r} and {LAST!r}")
    page.write_text(before + FIRST + rows + LAST + after, "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=Path, default=Path("runs/distillation"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="to see that it runs; writes no page")
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
