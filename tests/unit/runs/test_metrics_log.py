"""Log of a run: which lines of the file are read."""

import json
import math

from vit_jax.runs.metrics_log import RESULT, TRAIN, read_lines, result


def test_lines_without_step_or_kind_and_a_half_written_one_are_skipped(tmp_path):
    file = tmp_path / "metrics.jsonl"
    lines = [
        json.dumps({"step": 1, "kind": TRAIN, "loss": None}),
        json.dumps({"step": "2", "kind": TRAIN}),
        json.dumps({"step": 3}),
        json.dumps([4]),
        json.dumps({"step": 5, "kind": RESULT, "accuracy": 0.5}),
    ]
    file.write_text("\n".join(lines) + '\n{"step": 6, "ki', encoding="utf-8")
    first, last = read_lines(file)
    assert math.isnan(first["loss"])
    assert last == {"step": 5, "kind": RESULT, "accuracy": 0.5}
    assert read_lines(tmp_path / "none.jsonl") == []


def test_the_result_is_the_last_line_or_none():
    trained, finished = {"step": 1, "kind": TRAIN}, {"step": 2, "kind": RESULT}
    assert result([trained, finished]) is finished
    assert result([finished, trained]) is None  # trained further
    assert result([]) is None
