"""What a command imports, which is most of the time that it takes to start."""

import subprocess
import sys

from tests.folders import ROOT

# What training needs, and what only other commands need.
HEAVY = {
    *("grain", "tensorflow_datasets", "sklearn", "matplotlib", "optax", "pandas", "torch", "cv2"),
    *("flax.linen", "vit_jax.models.vit.module", "vit_jax.training", "vit_jax.weights.convert"),
}
PROGRAM = """
import sys
from vit_jax.cli import main
import vit_jax.commands.predict
from vit_jax.inference.classifier import Classifier
from vit_jax.inference.loading import load
from vit_jax.inference.programs import keep_programs
from vit_jax.inference.submission import Submission
print(*sys.modules)
"""


def imported(program):
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_predicting_imports_nothing_that_only_training_needs():
    found = imported(PROGRAM)
    assert {"jax", "PIL.Image"} <= found  # so the names are those of modules
    assert not found & HEAVY


def test_help_and_mistakes_do_not_wait_for_jax():
    found = imported("import sys; from vit_jax.cli import main; print(*sys.modules)")
    assert not found & {*HEAVY, "jax", "numpy", "ml_collections"}


def test_the_trainer_imports_what_a_run_uses_when_it_uses_it():
    found = imported("import sys, vit_jax.training; print(*sys.modules)")
    assert {"flax.linen", "optax", "vit_jax.training.loop"} <= found
    assert not found & {"grain", "orbax.checkpoint", "tensorflow_datasets", "sklearn", "matplotlib"}
