"""What several test files need: the digits prepared once, and a model that trains in a second."""

import os
import sys
from pathlib import Path

# Compiling is most of what these tests do; processes that compile the same program share it. Set
# before anything imports JAX, and inherited by the processes that tests start.
ROOT = Path(__file__).parents[1]
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".pytest_cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")
# Nor is the cache of the person who runs them used.
os.environ["VIT_JAX_CACHE"] = str(ROOT / ".pytest_cache" / "vit_jax")
# And no program runs long enough to repay the time it takes to make it fast. XLA's older emitters
# compile a small model in less than half the time of those that fuse.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
)
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402

# A ViT of four tokens that learns next to nothing, fast.
TINY = {
    "model.patch_size": "8",
    "model.width": "8",
    "model.depth": "1",
    "model.heads": "2",
    "batch_size": "32",
    "duration": "6 steps",
    "schedule.warmup": "1 steps",
    "log.every": "1",
    "evaluate.every": "3",
    "checkpoint.every": "3",
}


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> str:
    """A folder where the digits are prepared, once for all tests."""
    from vit_jax.data.sources import digits

    folder = tmp_path_factory.mktemp("tfds")
    digits.prepare(folder)
    return str(folder)


@pytest.fixture
def overrides(data_dir):
    """Makes the overrides of a tiny run: `overrides(**{"seed": 1})`."""

    def make(changes: dict | None = None) -> list[tuple[str, str]]:
        values = {**TINY, "data.dir": data_dir, **(changes or {})}
        return [(key, str(value)) for key, value in values.items()]

    return make


@pytest.fixture
def tiny_config(overrides):
    """Makes the configuration of a tiny run on digits."""
    from vit_jax.config import load_config

    return lambda changes=None: load_config(str(ROOT / "configs" / "digits.py"), overrides(changes))


@pytest.fixture(scope="session")
def finished_run(data_dir, tmp_path_factory):
    """The run folder of one finished tiny run with validation data; tests only read it."""
    from vit_jax.analysis.report.run_report import draw_all
    from vit_jax.config import load_config
    from vit_jax.training import fit

    changes = {
        **TINY,
        "data.dir": data_dir,
        "data.train": "train[:80%]",
        "data.validation": "train[80%:]",
        "optimizer.learning_rate": "0.01",
        "duration": "24 steps",
        "evaluate.every": "4",
        "checkpoint.every": "6",
    }
    config = load_config(str(ROOT / "configs" / "digits.py"), list(changes.items()))
    return fit(config, tmp_path_factory.mktemp("runs") / "tiny", draw=draw_all).run
