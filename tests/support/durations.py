"""Record what tests cost, and mark the expensive ones `slow`: a pytest plugin.

    make test-durations

writes `tests/durations.json`: the CPU seconds of every test that takes more than `FLOOR`, with the
processes that it starts and without its fixtures, which tests share. A test above `LIMIT` is marked
`slow`, unless its author has marked it `smoke`, so that `make test` keeps one way through every
command. What libraries cost to import is paid before the first test, or it would count as its own.
"""

import importlib
import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "durations.json"
FLOOR, LIMIT = 1.0, 1.5  # CPU seconds
IMPORTED = ("vit_jax.training", "vit_jax.analysis.report.run_report", "orbax.checkpoint", "grain")
COMPILED = "/jax/core/compile/backend_compile_duration"
PROPERTY = "cost"

_counts = Counter()


def pytest_addoption(parser):
    group = parser.getgroup("durations")
    group.addoption("--record-durations", action="store_true", help="Write tests/durations.json.")
    group.addoption("--any-duration", action="store_true", help="No test is slow by its duration.")


def pytest_configure(config):
    if not config.getoption("record_durations"):
        return
    config.pluginmanager.register(Recorder(config))
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        _prepare()


def _prepare():
    """Import the libraries, and count the programs and processes from here on."""
    for name in IMPORTED:
        importlib.import_module(name)
    import jax.monitoring

    jax.monitoring.register_event_duration_secs_listener(
        lambda name, *_, **__: _counts.update([name])
    )
    jax.monitoring.register_event_listener(lambda name, **__: _counts.update([name]))
    sys.addaudithook(lambda name, _: _counts.update([name]) if name == "subprocess.Popen" else None)


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(config, items):
    """Mark what takes longer than the limit, unless that is being measured."""
    if config.getoption("record_durations") or config.getoption("any_duration"):
        return
    seconds = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
    for item in items:
        if seconds.get(item.nodeid, 0) > LIMIT and not item.get_closest_marker("smoke"):
            item.add_marker(pytest.mark.slow)


class Recorder:
    """Measures tests in the process that runs them, and writes the file in the one that reports."""

    def __init__(self, config):
        self.config = config
        self.seconds: dict[str, float] = {}
        self.totals = Counter()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item):
        self.start = _cost()
        yield

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_call(self, item):
        before = _cost()
        yield
        item.user_properties.append((PROPERTY, _cost()[0] - before[0]))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_teardown(self, item):
        yield
        whole = [now - then for now, then in zip(_cost(), self.start, strict=True)]
        item.user_properties.append((f"{PROPERTY}-whole", whole))

    def pytest_runtest_logreport(self, report):
        if report.when != "teardown" or hasattr(self.config, "workerinput"):
            return
        properties = dict(report.user_properties)
        if PROPERTY in properties:
            self.seconds[report.nodeid] = round(properties[PROPERTY], 1)
        names = ("seconds", "programs", "read from the cache", "processes")
        whole = properties.get(f"{PROPERTY}-whole", [0] * len(names))
        file = report.nodeid.partition("::")[0]
        self.totals.update({(file, name): value for name, value in zip(names, whole, strict=True)})

    def pytest_terminal_summary(self, terminalreporter):
        """Print what all tests and the most expensive files took, and write the file."""
        sums = Counter()
        for (_, name), value in self.totals.items():
            sums[name] += value
        counted = ", ".join(f"{value:.0f} {name}" for name, value in sums.items())
        terminalreporter.write_line(f"In all {counted}; of these:")
        of_files = Counter({f: v for (f, name), v in self.totals.items() if name == "seconds"})
        for file, value in of_files.most_common(40):
            others = ", ".join(f"{self.totals[file, n]:.0f} {n}" for n in sums if n != "seconds")
            terminalreporter.write_line(f"{value:7.1f} CPU seconds, {others}: {file}")
        before = json.loads(FILE.read_text("utf-8")) if FILE.exists() else {}
        now = {**before, **self.seconds}
        above = {name: now[name] for name in sorted(now) if now[name] > FLOOR}
        FILE.write_text(json.dumps(above, indent=0) + "\n", "utf-8")


def _cost() -> tuple[float, int, int, int]:
    """CPU seconds with those of ended children, programs compiled, programs read, processes."""
    hits = _counts["/jax/compilation_cache/cache_hits"]
    return (
        sum(os.times()[:4]),
        _counts[COMPILED] - hits,
        hits,
        _counts["subprocess.Popen"],
    )
