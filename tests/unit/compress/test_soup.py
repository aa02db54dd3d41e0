"""Averages of checkpoints: their numbers, the greedy choice, and what is refused."""

import json
import shutil

import numpy as np
import pytest

from vit_jax.compress import soup as soups
from vit_jax.compress.soup import average, ingredients, soup
from vit_jax.errors import UserError
from vit_jax.runs import RunDir
from vit_jax.runs.checkpoint_files import leaves


def test_the_mean_of_trees():
    trees = [
        {"params": {"kernel": np.float32([1, -2, 3])}, "state": {"count": np.int32(n)}}
        for n in (5, 9)
    ]
    trees[1]["params"]["kernel"] *= 3
    found = average(iter(trees))
    assert found["params"]["kernel"].tolist() == [2, -4, 6]
    assert found["params"]["kernel"].dtype == np.float32
    assert found["state"]["count"] == 5  # a whole number has no mean


def test_trees_of_other_shapes_are_refused():
    with pytest.raises(UserError, match=r"params/kernel is \(3,\) in one and \(2,\) in another"):
        average({"params": {"kernel": np.zeros(size, np.float32)}} for size in (3, 2))


def test_all_checkpoints_of_one_run(finished_run, tmp_path):
    found = soup(tmp_path / "soup", [finished_run.path])
    steps = finished_run.steps()
    assert [one.step for one in found] == steps and len(steps) > 1
    run = RunDir(tmp_path / "soup")
    variables, step = run.read_variables()
    assert step == 0
    of_steps = [leaves(finished_run.read_variables(step)[0]) for step in steps]
    for path, leaf in leaves(variables).items():
        expected = np.mean([np.float64(each[path]) for each in of_steps], axis=0)
        np.testing.assert_allclose(leaf, expected, rtol=1e-6, atol=1e-9)
    assert run.read_model().origin.startswith(f"average of {len(steps)} checkpoints")
    assert run.read_config() == finished_run.read_config()
    # It may be averaged again: it is an ordinary run folder.
    assert len(ingredients([run.path, finished_run.path])) == 2


# Parameters of one number each, and the validation metric of their mean: the nearer to 3.
@pytest.mark.parametrize(
    ("numbers", "direction", "taken"),
    [
        ([1, 6, 2.5], "max", [2.5]),  # 2.5; with 1: 1.75; with 6: 4.25
        ([1, 4, 2.5], "max", [2.5, 4]),  # 2.5, then 3.25
        ([1, 4, 2.5], "min", [1]),
        ([np.nan, 3, 3], "max", [3, 3]),
    ],
)
def test_the_greedy_choice(monkeypatch, numbers, direction, taken):
    def judge(variables):
        return -abs(float(variables["params"]["x"]) - 3)

    run = RunDir("run")
    found = [soups.Ingredient(run, step) for step in range(len(numbers))]
    monkeypatch.setattr(
        soups, "_read", lambda one, raw: {"params": {"x": np.float32(numbers[one.step])}}
    )
    monkeypatch.setattr(soups, "_judge", lambda _: ("nearness", direction, judge))
    lines = []
    tasted = list(soups._taste(found, False, lines.append))
    assert [numbers[one.ingredient.step] for one in tasted if one.taken] == taken
    assert len(lines) == 2 * len(numbers)


def test_the_greedy_choice_reads_validation_data_alone(finished_run, tmp_path, monkeypatch):
    from vit_jax.training.setup.experiment import Experiment

    read = []

    def evaluate(self, variables, source):
        read.append(source.split)
        return type("Result", (), {"metrics": {"accuracy": 0.5}})

    monkeypatch.setattr(Experiment, "evaluate", evaluate)
    found = soup(tmp_path / "soup", [finished_run.path], greedy=True, steps=[12, 24])
    assert [one.step for one in found] == [12, 24]
    assert set(read) == {"train[80%:]"}


@pytest.fixture(scope="module")
def folders(finished_run, tmp_path_factory):
    """Copies of a run with another model, other classes, no result, or quantized kernels."""
    root = tmp_path_factory.mktemp("different")

    def copy(name, **changes):
        shutil.copytree(finished_run.path, root / name, ignore=shutil.ignore_patterns("figures"))
        record = RunDir(root / name).read_model().to_json()
        fields = {**record["fields"], **changes.pop("fields", {})}
        (root / name / "model.json").write_text(json.dumps({**record, "fields": fields, **changes}))

    copy("narrow", fields={"heads": 1})
    copy("same", fields={"dtype": "bfloat16", "drop_path": 0.1})
    copy("letters", class_names=list("abcdefghij"))
    copy("int8", quantization={"bits": 8, "activations": "float"})
    copy("unfinished")
    (root / "unfinished" / "metrics.jsonl").write_text("")
    return root


@pytest.mark.parametrize(
    ("others", "options", "sentence"),
    [
        (["narrow"], {}, "different models: fields.heads 2 in the first and 1 in the second"),
        (["letters"], {}, "different models: class_names is .'0', .* in the first and .'a'"),
        (["int8"], {}, "is quantized; average the runs it was made from"),
        (["unfinished"], {}, "is not finished; train it to the end"),
        (["nowhere"], {}, "there is no run folder"),
        ([], {"steps": "last"}, "two checkpoints or more, but this is one .*step 24"),
        ([], {"steps": [24]}, "two checkpoints or more"),
        ([], {"steps": [12, 7]}, "has no checkpoint 7; use 'last'"),
    ],
)
def test_wrong_input(finished_run, folders, tmp_path, others, options, sentence):
    runs = [finished_run.path, *(folders / name for name in others)]
    with pytest.raises(UserError, match=sentence):
        soup(tmp_path / "soup", runs, **options)
    assert not (tmp_path / "soup").exists()


def test_what_differs_in_training_alone_is_one_model(finished_run, folders):
    found = ingredients([finished_run.path, folders / "same"])
    assert soups._common_record(found) == finished_run.read_model()


def test_a_folder_that_is_not_empty_is_refused_first(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is not empty"):
        soup(tmp_path, ["nowhere"])
