"""The benchmarks run; what they measure is for the reader."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_input_pipeline_is_measured_for_every_source():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.input_pipeline", "--quick"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = done.stdout.splitlines()
    (head,) = (at for at, line in enumerate(lines) if line.endswith("ratio"))
    rows = [line.rsplit(maxsplit=4) for line in lines[head + 1 :]]
    assert [(name, int(workers)) for name, workers, *_ in rows] == [
        (name, workers)
        for name in ("digits, in memory", "folder of JPEGs", "ArrayRecord")
        for workers in (0, 1)
    ]
    assert all(float(rate.replace(",", "")) > 0 for row in rows for rate in row[2:])
