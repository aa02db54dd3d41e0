"""What several test files need: the digits prepared once, and a model that trains in a second."""

import functools
import gc
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).parents[1]
# Compiling is most of what these tests do. Programs are kept outside the clone, so that the next
# clone and all processes of a test read them. Set before anything imports JAX, and inherited by the
# processes that tests start.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vit_jax-tests"
NAME = f"jax-{version('jaxlib')}-python-{platform.python_version()}-{platform.machine()}-O0"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / NAME))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# No test runs long enough to repay the time that it takes to make a program fast. With the older
# code generator of fusions, which JAX 0.10 still has, the training step compiles in a seventh of
# the time, to the same bits.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
FLAGS += ["--xla_cpu_parallel_codegen_split_count=1"]
FLAGS += ["--xla_cpu_use_fusion_emitters=false"] * version("jaxlib").startswith("0.10.")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
# Where in the code an operation comes from is of no use here, and compiling takes longer with it.
os.environ.setdefault("JAX_INCLUDE_FULL_TRACEBACKS_IN_LOCATIONS", "0")
# The same holds for bytecode, of which a process that trains needs 1,600 modules: 5 CPU seconds, in
# each process where Python is told not to write it, as in many containers. None is beside the code.
os.environ.setdefault("PYTHONPYCACHEPREFIX", str(CACHE / f"bytecode-{platform.python_version()}"))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.pycache_prefix, sys.dont_write_bytecode = os.environ["PYTHONPYCACHEPREFIX"], False
# The cache of the person who runs the tests is not used.
os.environ["VIT_JAX_CACHE"] = str(ROOT / ".pytest_cache" / "vit_jax")
sys.path.insert(0, str(ROOT))

import pytest  # noqa: E402

gc.set_threshold(50_000, 20, 50)  # tracing makes many objects, few of them garbage

pytest_plugins = ["tests.support.durations"]

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


@pytest.fixture(scope="module", autouse=True)
def frozen_heap():
    """Keeps what earlier files left from the garbage collector."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def no_collection_after_mistakes():
    """A command that ends with an error collects no garbage, as it does before its process ends.

    It takes up to 1.5 seconds among all that JAX has traced for a thousand tests.
    """
    with pytest.MonkeyPatch.context() as patched:
        if cli := sys.modules.get("vit_jax.cli"):
            patched.setattr(cli, "gc", SimpleNamespace(collect=lambda: None))
        yield


@pytest.fixture(scope="session", autouse=True)
def initializers_asked_once():
    """Tracing a model takes half as long."""
    from tests.support.asked_once import ask_once

    with pytest.MonkeyPatch.context() as patched:
        ask_once(patched)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_context_of_programs():
    """Lowers all programs in one context of MLIR, where JAX makes one for each.

    To make one takes 5 milliseconds, and a megabyte for as long as the program is kept.
    """
    from jax._src.interpreters import mlir

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mlir, "make_ir_context", functools.cache(mlir.make_ir_context))
        yield


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory) -> str:
    """A folder where the digits are prepared, once for all tests."""
    from vit_jax.data.sources import digits, tfds

    folder = str(tmp_path_factory.mktemp("tfds"))
    digits.prepare(folder)
    with pytest.MonkeyPatch.context() as patched:
        read_all = remembered(tfds.TfdsExamples.read_all, folder)
        patched.setattr(tfds.TfdsExamples, "read_all", read_all)
        yield folder


def remembered(read_all, folder):
    """Makes a `read_all` that decodes what lies in a folder once: half a second for each run."""
    kept = {}

    def read(self):
        if not self.directory.startswith(folder):
            return read_all(self)
        features = self.features
        labels = None if features.label is None else (features.label_key, features.multi_label)
        key = (self.directory, self.split, self.numbers.tobytes(), labels)
        if key not in kept:
            kept[key] = list(read_all(self))
        return iter(kept[key])

    return read


@pytest.fixture(scope="session")
def kept_programs():
    """Keeps the compiled functions of more runs than a process of a user needs."""
    from vit_jax.training import reuse

    reuse.MOST = 64


@pytest.fixture
def overrides(data_dir, kept_programs):
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
def finished_run(data_dir, kept_programs, tmp_path_factory):
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
