"""Reading the golden file of a pyramid, and comparing the output of every stage."""

import jax
import numpy as np

from tests.weights.stored import stored, write_files
from vit_jax.weights.pretrained import read_pretrained

TOLERANCE = 2e-5  # of the largest number, in float32


def read(name, folder):
    """The record and the variables of a golden file."""
    case = stored(name)
    write_files(folder, case.tensors, case.config, case.preprocessor)
    return read_pretrained(folder, case.asked)


def largest_error(model, variables, expected):
    """Of all stages and the logits, the largest difference as a part of `TOLERANCE`'s measure."""

    @jax.jit
    def forward(variables, images):
        stages = model.apply(variables, images, method="features").stages
        return stages, model.apply(variables, images)

    stages, logits = forward(variables, expected["images"])
    theirs = [expected[f"stage_{i}"] for i in range(len(stages))] + [expected["logits"]]
    assert f"stage_{len(stages)}" not in expected
    errors = []
    for one, other in zip([*stages, logits], theirs, strict=True):
        assert one.shape == other.shape
        errors.append(np.abs(one - other).max() / max(1.0, np.abs(other).max()))
    return max(errors)


def assert_agrees(model, variables, expected):
    error = largest_error(model, variables, expected)
    assert error <= TOLERANCE, error
