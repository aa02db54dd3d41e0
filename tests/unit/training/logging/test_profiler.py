import gzip
import json

import pytest

from vit_jax.errors import UserError
from vit_jax.training import fit
from vit_jax.training.logging.profiler import steps_to_profile


def traced_steps(run):
    """Numbers of the steps that stand in the traces of a run."""
    events = []
    for path in run.profile.glob("plugins/profile/*/*.trace.json.gz"):
        events += json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = [event["args"]["step_num"] for event in events if event.get("name") == "train"]
    return sorted(map(int, steps))


def test_a_start_and_a_number_of_steps():
    assert list(steps_to_profile("10:3", 100)) == [10, 11, 12]
    assert list(steps_to_profile("99:5", 100)) == [99, 100]
    assert list(steps_to_profile("", 100)) == []


@pytest.mark.parametrize("text", ["10", "10:", ":5", "a:b", "-1:5", "0:5", "5:0", "1.5:2", "1:2:3"])
def test_any_other_form_is_one_sentence(text):
    with pytest.raises(UserError, match="START:STEPS.*profile=100:5"):
        steps_to_profile(text, 100)


def test_a_start_after_the_end_is_refused_before_anything_is_compiled(tiny_config, tmp_path):
    with pytest.raises(UserError, match="starts after the end of the run, which has 6 steps"):
        fit(tiny_config({"profile": "7:1"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_steps_are_traced_and_a_person_is_told_where(tiny_config, tmp_path, capsys):
    run = fit(tiny_config({"profile": "3:2"}), tmp_path / "run").run
    assert traced_steps(run) == [3, 4]
    said = capsys.readouterr().err
    assert f"the trace is in {run.profile}" in said and "ui.perfetto.dev" in said
    # A run that goes on may be asked for another trace, and its steps may be past.
    assert not fit(tiny_config({"profile": "5:1"}), run.path).trained


def test_a_trace_at_the_end_of_a_run_is_cut_there(tiny_config, tmp_path):
    run = fit(tiny_config({"profile": "6:100"}), tmp_path / "run").run
    assert traced_steps(run) == [6]
