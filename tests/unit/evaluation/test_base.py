"""Results of several evaluators in one line of the log."""

from vit_jax.evaluation.base import Result, combined


def test_no_metric_and_no_figure_hides_another():
    first = Result({"loss": 0.5, "accuracy": 0.9, "examples": 360}, "table", {"errors": 1})
    knn = Result({"accuracy": 0.8, "training_examples": 100, "examples": 50}, None, {"errors": 2})
    probe = Result({"accuracy": 0.7, "training_examples": 100}, None, {"curve": 3})
    few = Result({"accuracy": 0.6, "training_examples": 20})
    together = combined([("", first), ("knn", knn), ("probe", probe), ("few_shot", few)])
    assert together.metrics == {
        **{"loss": 0.5, "accuracy": 0.9, "examples": 360, "training_examples": 100},
        **{"knn_accuracy": 0.8, "probe_accuracy": 0.7, "few_shot_accuracy": 0.6},
    }
    assert together.table == "table"
    assert together.figures == {"errors": 1, "knn_errors": 2, "curve": 3}


def test_evaluators_of_one_name_or_of_none_are_told_apart():
    found = combined([("", Result({"a": 1})), ("", Result({"a": 2})), ("", Result({"a": 3}))])
    assert sorted(found.metrics.values()) == [1, 2, 3]


def test_one_evaluator_is_unchanged():
    result = Result({"loss": 0.5, "examples": 3}, "table", {"errors": 1})
    assert combined([("knn", result)]) == result
