"""The digests of runs are the same for equal runs, and for no others."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.goldens import runs

BEFORE = {
    "vit/config/ema": "0.9",
    "vit/config/data.on_decode_error": "false",
    "vit/log/train 2/loss": "0.5",
}


@pytest.fixture(scope="module")
def written(data_dir):
    """A run straight through and the same run stopped and resumed, by path; one small block."""
    changes = {**runs.EACH, "ema_decay": 0.9, "model.width": 8, "model.depth": 1, "model.heads": 2}
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(runs.RUNS, "vit", ("digits.py", changes))
        return runs.write(Path(data_dir), ["vit"])


def test_a_resumed_run_is_the_one_straight_through(written):
    label = "vit, resumed/"
    straight = {path: value for path, value in written.items() if not path.startswith(label)}
    resumed = {
        path.replace(label, "vit/"): value
        for path, value in written.items()
        if path.startswith(label)
    }
    assert runs.differences(straight, resumed, {}) == []


def test_what_is_written_has_every_part_of_a_run(written):
    assert written["vit/config/ema_decay"] == "0.9"
    assert written["vit/model/name"] == "Digits-ViT-64/4"
    for path in ("params", "ema_params"):
        assert written[f"vit/state/{path}/head/kernel"].startswith("float32 8x10 ")
    assert any(path.startswith("vit/state/opt_state/") for path in written)
    for line in ("train 2/loss", "evaluate 4/accuracy", "evaluate 8/accuracy", "result 8/accuracy"):
        assert f"vit/log/{line}" in written


def test_a_line_of_the_log_has_the_learning_rate_of_its_own_step(written):
    """Step n is update n - 1, counted from 0: two of warm-up, then a cosine over six."""
    rates = [float(written[f"vit/log/train {step}/learning_rate"]) for step in (2, 4, 6, 8)]
    cosine = [0.5 * (1 + np.cos(np.pi * done / 6)) for done in (1, 3, 5)]
    assert rates == pytest.approx([2e-3 * share for share in (0.5, *cosine)])


def test_a_digest_sees_any_bit_the_shape_and_the_type():
    array = np.ones((2, 3), np.float32)
    flipped = array.copy()
    flipped.view(np.uint32)[1, 2] ^= 1
    others = (flipped, array.T, array.astype(np.float64), -array)
    assert runs.digest(array.copy()) == runs.digest(array)
    assert runs.digest(array) not in map(runs.digest, others)


def test_a_number_of_the_log_is_written_to_the_last_bit():
    assert json.dumps(float(np.nextafter(0.1, 1))) != json.dumps(0.1)


@pytest.mark.parametrize(
    ("after", "line"),
    [
        ({**BEFORE, "vit/log/train 2/loss": "0.6"}, "vit/log/train 2/loss: 0.5 -> 0.6"),
        ({**BEFORE, "vit/config/new": "1"}, "vit/config/new: missing -> 1"),
        (
            {path: value for path, value in BEFORE.items() if "on_decode" not in path},
            "vit/config/data.on_decode_error: false -> missing",
        ),
    ],
)
def test_a_difference_is_one_line(after, line):
    assert runs.differences(BEFORE, after, {}) == [line]


def test_a_renamed_key_is_no_difference_and_its_value_still_counts(tmp_path, capsys):
    after = {
        "vit/config/ema_decay": "0.9",
        "vit/config/data.on_error": "false",
        "vit/log/train 2/loss": "0.5",
    }
    names = {"ema": "ema_decay", "data.on_decode_error": "data.on_error"}
    assert len(runs.differences(BEFORE, after, {})) == 4
    assert runs.differences(BEFORE, after, names) == []
    for file, content in (("before", BEFORE), ("after", {**after, "vit/config/ema_decay": "0.8"})):
        (tmp_path / file).write_text(json.dumps(content))
    options = [f"--rename={old}={new}" for old, new in names.items()]
    assert runs.main(["compare", str(tmp_path / "before"), str(tmp_path / "after"), *options]) == 1
    assert "vit/config/ema_decay: 0.9 -> 0.8" in capsys.readouterr().out
