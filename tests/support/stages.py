"""Reading the golden file of a pyramid, and comparing the output of every stage."""

import numpy as np

from tests.support.shapes import run
from tests.support.stored import stored, write_files
from vit_jax.weights.convert import read_pretrained

TOLERANCE = 2e-5  # of the largest number, in float32


def read(name, folder):
    """The record and the variables of a golden file."""
    case = stored(name)
    write_files(folder, case.tensors, case.config, case.preprocessor)
    return read_pretrained(folder, case.hints)


def largest_error(model, variables, expected, run=run):
    """Of all stages and the logits, the largest difference as a part of `TOLERANCE`'s measure."""
    logits, kept = run(model, variables, expected["images"], mutable="intermediates")
    stages = [  # what a stage gives is what its last block gives
        kept["intermediates"][f"stages_{i}"][f"blocks_{depth - 1}"]["out"][0]
        for i, depth in enumerate(model.depths)
    ]
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
