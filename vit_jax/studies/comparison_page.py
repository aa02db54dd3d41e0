"""A comparison as a table of texts, as a figure, and as one page."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from vit_jax.analysis.report.figures import to_png
from vit_jax.analysis.report.html import Section, image, page, paragraph, table, wide
from vit_jax.analysis.weights_view.tables import confidence_interval
from vit_jax.evaluation.metrics import is_share, shown_name, shown_value
from vit_jax.runs import EVALUATE, RESULT, TRAIN
from vit_jax.studies.comparison import Arm, Comparison, short
from vit_jax.studies.finished import FinishedRun
from vit_jax.studies.statistics import Test, limited, shown_spread
from vit_jax.text import counted

DIFFERENT_IMAGES = (
    "the runs were not tested on the same images, so that their differences are not tested"
)


def headings(found: Comparison) -> tuple[str, ...]:
    """Return the headings of `rows`."""
    keys = found.arms[0].settings
    names = tuple(map(short, keys)) or ("run",)
    results = (shown_name(found.metric), "95 % interval", "to the best", "p")
    return (*names, "runs", *results, "parameters", "MMACs", "minutes")


def rows(found: Comparison) -> list[tuple[str, ...]]:
    """Return a row of texts for each arm, in the order of the arms."""
    return [_row(found, arm) for arm in found.arms]


def _row(found: Comparison, arm: Arm) -> tuple[str, ...]:
    names = tuple(map(str, arm.settings.values())) or (arm.name,)
    result = shown_spread(found.metric, arm.spread(found.metric))
    tested = found.test(arm)
    difference = "best" if arm is found.best else "-"
    if tested:
        difference = _difference(found.metric, tested[1])
    minutes = "-" if arm.minutes is None else f"{arm.minutes:.1f}"
    of_model = found.cost(arm)
    cost = (f"{of_model.parameters:,}", f"{of_model.macs / 1e6:,.1f}")
    shown = (result, _interval(found, arm), difference, _p(tested))
    return (*names, str(len(arm.runs)), *shown, *cost, minutes)


def _interval(found: Comparison, arm: Arm) -> str:
    """Return the interval of the mean over runs; of one run, that of its accuracy over images."""
    _, _, low, high = arm.spread(found.metric)
    examples = arm.runs[0].result.get("examples")
    if low is None and found.metric == "accuracy" and examples:
        low, high = confidence_interval(arm.values(found.metric)[0], examples)
    if low is None or high is None:
        return "-"
    low, high = limited(found.metric, low, high)
    return (
        f"{shown_value(found.metric, low).removesuffix(' %')} to {shown_value(found.metric, high)}"
    )


def _difference(metric: str, test: Test) -> str:
    if is_share(metric):
        return f"{100 * test.difference:+.2f}"
    return f"{test.difference:+.4f}"


def _p(tested: tuple[str, Test] | None) -> str:
    if not tested or math.isnan(tested[1].p):
        return "-"
    name, test = tested
    return f"{'< 0.0001' if test.p < 1e-4 else f'{test.p:.4f}'} ({name})"


def explanation(found: Comparison) -> str:
    """Return in words what the table shows."""
    several = any(len(arm.runs) > 1 for arm in found.arms)
    spread = "Mean ± standard deviation over the seeds, and the 95 % interval of the mean. "
    one = "The 95 % interval of a single run is that of its accuracy over the test images. "
    tests = (
        "Differences are to the best arm, in points for shares; p is the probability of such a "
        "difference between equally good arms: McNemar's exact test for two single runs, Student's "
        "over the differences by image or by seed for several. With many arms some p are small by "
        "chance."
    )
    if not found.same_images:
        tests = f"{DIFFERENT_IMAGES[0].upper()}{DIFFERENT_IMAGES[1:]}."
    return f"{spread * several}{one * (not several)}{tests}"


def draw(found: Comparison) -> Figure:
    """Draw the curves of all runs on top of each other, and the results over the cost."""
    figure = Figure(figsize=(14, 4.4), layout="constrained")
    panels = figure.subplots(1, 3)
    for number, arm in enumerate(found.arms):
        colour = f"C{number % 10}"
        for position, run in enumerate(arm.runs):
            label = arm.name if position == 0 else None
            style = {"color": colour, "linewidth": 1, "label": label}
            panels[0].plot(*_series(run, (TRAIN,), "loss"), **style)
            panels[1].plot(*_series(run, (EVALUATE, RESULT), found.metric), marker=".", **style)
        values = arm.values(found.metric)
        panels[2].scatter([found.cost(arm).macs / 1e6] * len(values), values, color=colour, s=18)
    panels[0].set(xlabel="epoch", title="training loss", yscale="log")
    panels[1].set(xlabel="epoch", title=shown_name(found.metric))
    panels[2].set(xlabel="MMACs an image", title=f"{shown_name(found.metric)} at the end")
    for panel in panels:
        panel.grid(alpha=0.3)
    panels[0].legend(fontsize=8)
    return figure


def _series(run: FinishedRun, kinds: Sequence[str], name: str) -> tuple[list[float], list[float]]:
    lines = [line for line in run.lines if line["kind"] in kinds and name in line]
    return [line["epoch"] for line in lines], [line[name] for line in lines]


def write_page(found: Comparison, path: Path, more: Sequence[Section] = ()) -> None:
    """Write the page: table, curves, and the runs of each arm.

    more: sections after the table.
    """
    runs = [
        (run.name, arm.name, str(run.seed), shown_value(found.metric, run.result[found.metric]))
        for arm in found.arms
        for run in arm.runs
    ]
    count = counted(len(runs), "run")
    summary = f"{count} in {counted(len(found.arms), 'arm')}, by {shown_name(found.metric)}."
    of_runs = ("Run", "Arm", "Seed", shown_name(found.metric).capitalize())
    caption = (
        "Training loss and evaluations of every run by epoch, a colour for each arm; on the right "
        "the results over the operations for an image."
    )
    sections = [
        Section(
            "Results", [wide(table(rows(found), headings(found))), paragraph(explanation(found))]
        ),
        *more,
        Section("Curves", [image(to_png(draw(found)), "Curves of the runs", caption, wide=True)]),
        Section("Runs", [wide(table(runs, of_runs))]),
    ]
    path.write_text(page("Comparison", summary, sections), "utf-8", errors="backslashreplace")
