"""Search of a tiny supernet: budget, resuming, extraction, and what is refused."""

import json

import jax
import numpy as np
import pytest

import vit_jax
from tests.folders import ROOT
from tests.support.shapes import random_tree
from vit_jax.cli import main
from vit_jax.compress.search import search as module
from vit_jax.compress.search.evolution import Evolution, cross
from vit_jax.compress.search.search import Budget, Judged, read_search, search
from vit_jax.config import load_config
from vit_jax.errors import UserError
from vit_jax.models.supernet.space import SearchSpace, Subnet
from vit_jax.runs import RunDir
from vit_jax.training.setup.build import build

SMALL = Evolution(population=8, parents=3)
BUDGET = Budget(parameters=2000)


@pytest.fixture(scope="module")
def supernet(data_dir, tmp_path_factory):
    """The folder of a supernet with random weights."""
    from tests.conftest import TINY

    changes = {
        **TINY,
        "data.dir": data_dir,
        "model.depth": "2",
        "model.mlp_width": "16",
        "objective.depths": "(1, 2)",
        "objective.widths": "(4, 8)",
        "objective.heads": "(1, 2)",
        "objective.mlp_ratios": "(1.0, 2.0)",
    }
    config = load_config(str(ROOT / "configs/autoformer/digits.py"), list(changes.items()))
    experiment = build(config)
    run = RunDir(tmp_path_factory.mktemp("runs") / "supernet")
    run.write_config(config.to_dict())
    params = random_tree(experiment.abstract_state().params)
    run.write_variables({"params": params}, experiment.record)
    run.write_model(experiment.record)
    return run.path


@pytest.fixture(scope="module")
def searched(supernet, tmp_path_factory):
    """The folder of a finished search, and its results."""
    folder = tmp_path_factory.mktemp("searches") / "whole"
    return folder, search(supernet, folder, BUDGET, evaluations=20, evolution=SMALL, at_once=8)


def test_the_search_keeps_the_budget_and_judges_no_subnet_twice(searched):
    folder, found = searched
    assert len({one.subnet for one in found}) == len(found) == 20
    assert max(one.parameters for one in found) <= 2000
    order = [(-one.correct, one.macs) for one in found]
    assert order == sorted(order) and found[0].correct > found[-1].correct
    settings, again = read_search(folder)
    assert again == found and settings["budget"] == {"parameters": 2000, "macs": None}


def test_a_search_that_is_killed_finds_the_same(supernet, searched, tmp_path, monkeypatch):
    folder, found = searched
    log = (folder / module.FILE).read_bytes()
    lines = log.splitlines(keepends=True)
    assert [len(json.loads(line)["subnets"]) for line in lines[1:]] == [8, 8, 4]
    # Killed in the middle of a line, after one and a half generations.
    (tmp_path / module.FILE).write_bytes(b"".join(lines[:2]) + lines[2][:40])
    assert search(supernet, tmp_path, BUDGET, evaluations=20, evolution=SMALL) == found
    assert (tmp_path / module.FILE).read_bytes() == log
    # More evaluations go on where it ended, first with what its last generation lacked.
    longer = search(supernet, tmp_path, BUDGET, evaluations=24, evolution=SMALL)
    assert set(found) < set(longer) and len(longer) == 24


def test_the_best_subnet_becomes_a_run_of_its_own(supernet, searched, tmp_path, capsys):
    folder, found = searched
    out = str(tmp_path / "best")
    assert main(["autoformer-extract", str(folder), out]) == 0
    record = RunDir(out).read_model()
    sizes = found[0].subnet.fields()
    assert record.task == "classification" and record.create_model().width == sizes["width"]
    assert {name: record.fields[name] for name in sizes} == sizes
    # It counts as many correct predictions as the masks did, and as many parameters.
    capsys.readouterr()
    assert main(["evaluate", out, "--split=validation", "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert round(metrics["accuracy"] * metrics["examples"]) == found[0].correct
    classifier = vit_jax.load(out)
    assert sum(map(np.size, jax.tree.leaves(classifier.params))) == found[0].parameters
    assert main(["autoformer-extract", str(folder), out]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_named_subnet_starts_other_runs(supernet, tmp_path, data_dir):
    out = tmp_path / "named"
    sizes = ["--width=8", "--heads=2,1", "--mlp-ratios=1,2"]
    assert main(["autoformer-extract", str(supernet), str(out), *sizes]) == 0
    changes = {"init_from": str(out), "dataset": "digits", "data.dir": data_dir}
    experiment = build(load_config("finetune", list(changes.items())))
    assert experiment.record.fields["heads"] == (2, 1)
    own = RunDir(out).read_variables()[0]["params"]
    jax.tree.map(np.testing.assert_array_equal, experiment.start.params, own)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"budget": Budget(parameters=10)}, r"--max-parameters=10 is less than the \d+ parameters"),
        ({"budget": Budget(macs=10)}, r"--max-macs=10 is less than the .* macs"),
        ({"budget": Budget()}, "holds a search with another budget"),
        ({"seed": 3}, "holds a search with another seed"),
    ],
)
def test_a_mistake_is_one_sentence(supernet, searched, options, sentence):
    with pytest.raises(UserError, match=sentence):
        search(supernet, searched[0], **{"budget": BUDGET, "evolution": SMALL, **options})


def test_a_run_that_is_no_supernet_is_refused(supernet, searched, tmp_path, capsys):
    run, out = str(tmp_path / "subnet"), str(tmp_path / "out")
    assert main(["autoformer-extract", str(searched[0]), run, "--rank=2"]) == 0
    assert main(["autoformer-search", run, out]) == 2
    assert "is no supernet, so it has no subnets to search" in capsys.readouterr().err
    assert main(["autoformer-extract", run, out, "--width=8", "--heads=1", "--mlp-ratios=1"]) == 2
    assert "is no supernet, so it has no subnets" in capsys.readouterr().err
    assert main(["autoformer-extract", run, out, "--width=8", "--heads=1,2", "--mlp-ratios=1"]) == 2
    assert "is no subnet; name a width" in capsys.readouterr().err


def test_the_evolution_mutates_and_crosses_within_the_space():
    space = SearchSpace((2, 3), (8, 12, 16), (1, 2, 3), (1.0, 2.0), head_dim=4)
    rng, evolution = np.random.default_rng(0), Evolution()
    one, other = Subnet(8, (1, 1), (1.0, 1.0)), Subnet(16, (3, 3), (2.0, 2.0))
    children = [cross(space, one, other, rng) for _ in range(50)]
    assert {child.width for child in children} == {8, 16}
    assert {heads for child in children for heads in child.heads} == {1, 3}
    assert cross(space, one, Subnet(8, (1,) * 3, (1.0,) * 3), rng) is None
    mutants = [evolution.mutate(space, one, rng) for _ in range(400)]
    assert all(mutant in space for mutant in mutants)
    assert {mutant.depth for mutant in mutants} == {2, 3}
    # Two values of the depth, so 0.4 / 2 of the mutants have another; likewise for one block.
    assert 0.1 < np.mean([mutant.depth != 2 for mutant in mutants]) < 0.3
    assert 0.05 < np.mean([mutant.heads[0] != 1 for mutant in mutants]) < 0.25
    never = Evolution(resize=0.0, change=0.0)
    assert never.mutate(space, one, rng) == one
    # When no more fit, there are fewer.
    few = Evolution(population=2).propose(space, lambda subnet: subnet == one, [], [], rng)
    assert few in ([], [one])
    # Of 20 million subnets a budget may leave the smallest alone.
    large = SearchSpace((12,), (8, 12), (1, 2), (1.0, 2.0), head_dim=4)
    least = Evolution(population=2).propose(large, large.smallest.__eq__, [], [], rng)
    assert least == [large.smallest]
    judged = Judged(one, 3, 4, 100, 200)
    assert Judged.from_json(json.loads(json.dumps(judged.to_json()))) == judged
