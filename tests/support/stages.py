"""Comparing the output of every stage of a pyramid with its golden file."""

from tests.support.shapes import relative_difference, run

TOLERANCE = 2e-5  # of the largest number, in float32


def largest_error(model, variables, expected, run=run):
    """Of all stages and the logits, the largest difference as a part of `TOLERANCE`'s measure."""
    logits, kept = run(model, variables, expected["images"], mutable="intermediates")
    assert f"stage_{len(model.depths)}" not in expected
    assert logits.shape == expected["logits"].shape
    errors = [relative_difference(logits, expected["logits"])]
    for i, depth in enumerate(model.depths):  # what a stage gives is what its last block gives
        ours = kept["intermediates"][f"stages_{i}"][f"blocks_{depth - 1}"]["out"][0]
        theirs = expected[f"stage_{i}"]
        if ours.ndim == 3:  # tokens in a row, perhaps with a class token in front
            ours = ours[:, -theirs.shape[1] * theirs.shape[2] :].reshape(theirs.shape)
        assert ours.shape == theirs.shape
        errors.append(relative_difference(ours, theirs))
    return max(errors)


def assert_agrees(model, variables, expected):
    error = largest_error(model, variables, expected)
    assert error <= TOLERANCE, error
