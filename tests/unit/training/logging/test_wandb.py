"""The writer for Weights & Biases, against a stand-in that keeps what a server would have."""

import sys
from types import SimpleNamespace

import pytest

from vit_jax.errors import UserError
from vit_jax.training import fit
from vit_jax.training.logging.reporter import TIMINGS


class Server:
    """Stands in for the package `wandb`: runs by id, and of each its rows by step.

    Like the real one it begins after the last step where a run goes on, and drops what is older.
    """

    def __init__(self):
        self.rows, self.inits, self.ends, self.dropped = {}, [], [], []

    def init(self, **settings):
        self.inits.append(settings)
        rows = self.rows.setdefault(settings["id"], {})
        run = SimpleNamespace(step=max(rows) + 1 if rows else 0)

        def log(scalars, step):
            if step < run.step:
                return self.dropped.append(step)
            run.step = step
            rows.setdefault(step, []).append(scalars)

        run.log, run.finish = log, lambda exit_code: self.ends.append(exit_code)
        return run


@pytest.fixture
def server(monkeypatch):
    server = Server()
    monkeypatch.setitem(sys.modules, "wandb", server)
    return server


def metrics_but_timings(run):
    return [{k: v for k, v in line.items() if k not in TIMINGS} for line in run.read_metrics()]


def test_a_run_sends_each_line_once_under_one_id(server, tiny_config, tmp_path):
    config = tiny_config({"log.wandb": "digits"})
    run = fit(config, tmp_path / "run").run
    [settings] = server.inits
    assert (settings["project"], settings["resume"]) == ("digits", "allow")
    assert settings["id"] == run.wandb_file.read_text().strip()
    assert settings["name"] == "run" and settings["config"]["batch_size"] == 32
    [rows] = server.rows.values()
    sent = [(step, name, x) for step, parts in rows.items() for p in parts for name, x in p.items()]
    assert len(sent) == len({(step, name) for step, name, _ in sent})
    train = [line for line in run.read_metrics() if line["kind"] == "train"]
    assert {(line["step"], "train/loss", line["loss"]) for line in train} <= set(sent)
    assert any(name == "result_test/accuracy" for _, name, _ in sent)
    assert server.ends == [0]


def test_a_run_that_goes_on_sends_no_step_twice(server, tiny_config, tmp_path, monkeypatch):
    from vit_jax.training.loop import Loop

    config = tiny_config({"log.wandb": "digits"})
    write = Loop._write

    def crash(self, line):
        write(self, line)
        if line["step"] == 5:  # the last checkpoint is of step 3
            raise RuntimeError("the power failed")

    with monkeypatch.context() as broken:
        broken.setattr(Loop, "_write", crash)
        with pytest.raises(RuntimeError, match="the power failed"):
            fit(config, tmp_path / "run")
    run = fit(config, tmp_path / "run").run
    # Where nobody asks for it, nothing is sent, and the run is the same.
    plain = fit(tiny_config(), tmp_path / "plain").run
    assert metrics_but_timings(plain) == metrics_but_timings(run)
    assert len(server.inits) == 2 and not plain.wandb_file.exists()
    assert server.inits[0]["id"] == server.inits[1]["id"]
    [rows] = server.rows.values()
    train = {step: [p for p in parts if "train/loss" in p] for step, parts in rows.items()}
    assert {step: len(parts) for step, parts in train.items()} == dict.fromkeys(range(1, 7), 1)
    kept = {x["step"]: x["loss"] for x in run.read_metrics() if x["kind"] == "train"}
    assert {step: parts[0]["train/loss"] for step, parts in train.items()} == kept
    assert server.dropped == []  # nothing for it to warn of
    assert server.ends == [1, 0]


def test_a_missing_package_is_one_sentence(tiny_config, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"needs the package wandb; .*pip install '\.\[wandb\]'"):
        fit(tiny_config({"log.wandb": "digits"}), tmp_path / "run")


def test_a_start_that_fails_is_one_sentence(server, tiny_config, tmp_path, monkeypatch):
    def init(**_):
        raise ValueError("api_key not configured")

    monkeypatch.setattr(server, "init", init)
    with pytest.raises(UserError, match="api_key not configured.*WANDB_MODE=offline"):
        fit(tiny_config({"log.wandb": "digits"}), tmp_path / "run")
