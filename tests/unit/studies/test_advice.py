"""The command `advise`: what is proposed for which data, and what it takes."""

import dataclasses
import json
import re

import pytest

from tests.folders import ROOT
from vit_jax.cli import main
from vit_jax.data.inspect.report import Report, SplitReport, Spread
from vit_jax.studies.advice import effort, proposals
from vit_jax.studies.machine import Machine

CPU = Machine("cpu", "cpu", 1, 1e10)
GPU = Machine("gpu", "a fast one", 4, 1e15, 80 * 2**30)


def report(images, side, channels=3, labelled=True):
    """A report on square images of two classes."""
    fields = {field.name: () for field in dataclasses.fields(SplitReport)}
    sides = Spread(side, side, side)
    fields |= {"examples": images, "examined": images, "height": sides, "width": sides}
    fields |= {"mean": (0.5,) * channels, "targets": None, "captions": 0, "tokens": None}
    return Report(("cat", "dog"), False, {"train": SplitReport(**fields)}, (), None, labelled)


@pytest.mark.parametrize(
    ("data", "machine", "titles"),
    [
        (
            report(500, 300),
            CPU,
            ["fine-tune DeiT3-S/16", "train a ResNet-18 from", "train a ViT with a stem"],
        ),
        (
            report(2_000_000, 300),
            GPU,
            ["fine-tune DeiT3-B/16", "train DeiT III-S from", "train a ResNet-18 from"],
        ),
        (report(1_437, 8, 1), CPU, ["train a ResNet from", "train a small ViT on patches of 2"]),
        (report(500, 300, labelled=False), GPU, ["pre-train a masked", "pre-train by self-dist"]),
    ],
)
def test_the_data_and_the_machine_decide(data, machine, titles):
    found = proposals(data, machine)
    assert len(found) == len(titles) and all(one.reasons for one in found)
    for one, title in zip(found, titles, strict=True):
        assert one.title.startswith(title)


@pytest.mark.parametrize(
    ("images", "measured_on"), [(3, 100), (240, 100), (250, 600), (1_437, 600), (10**5, 60_000)]
)
def test_the_nearest_size_that_was_measured_is_quoted(images, measured_on):
    found = proposals(report(images, 8, 1), CPU)
    assert all(any(f"on {measured_on:,} images" in why for why in one.reasons) for one in found)


def test_what_is_quoted_stands_in_the_table_of_the_study():
    page = (ROOT / "docs/results/data_scaling.md").read_text()
    for column, images in enumerate((100, 600, 6_000, 60_000), start=1):
        [_, why] = proposals(report(images, 8, 1), CPU)[0].reasons
        quoted = dict(re.findall(r"(ResNet|ConvNeXt|hybrid|ViT) ([\d.]+)", why))
        assert len(quoted) == 4
        for family, accuracy in quoted.items():
            [row] = re.findall(rf"^\| {family}(?: of ResNet and ViT)? \|.*$", page, re.MULTILINE)
            mean = float(row.split("|")[column + 1].split("±")[0])
            assert float(accuracy) == pytest.approx(mean, abs=0.051)


def test_the_effort_is_that_of_the_operations():
    data = report(1_437, 8, 1)
    [network, _] = proposals(data, CPU)
    takes = effort(network, data, CPU)
    assert takes.steps == 4_491  # 100 epochs of 1,437 images in batches of 32
    seconds = takes.steps * 32 * 3 * 2 * takes.macs / 1e10
    assert takes.hours == pytest.approx((seconds / 0.45 / 3600, seconds / 0.15 / 3600))
    assert takes.bytes > 4 * 3 * takes.parameters  # parameters and two moments of AdamW


def test_the_command_prints_commands_that_train(capsys):
    assert main(["advise", "digits", "--json"]) == 0
    advice = json.loads(capsys.readouterr().out)["advice"]
    assert len(advice) == 2
    for number, one in enumerate(advice, start=1):
        assert f"--workdir=runs/digits_{number} --config.dataset=digits" in one["command"]
        assert "--config.model.in_channels=1" in one["command"]


def test_a_dataset_that_is_not_there_is_one_sentence(capsys):
    assert main(["advise", "folder:nowhere"]) == 2
    assert "there is no folder nowhere" in capsys.readouterr().err
