"""Comparison of what was read with the answers of its origin, in every block."""

import jax
import numpy as np

from tests.support.stored import loaded, stored


def assert_same_answers(
    name,
    *,
    other=False,
    keys=("tokens", "pooled", "logits"),
    order=lambda x: x,
    tolerance=2e-5,
    origin=None,
):
    """Fail where blocks or other answers differ from the golden file's.

    Args:
        other: the answers at the file's second size.
        keys: answers to compare besides the blocks.
        order: from their order of tokens to ours.
        tolerance: largest difference, as a part of the largest number where that is above 1.
        origin: hint, where the file does not tell it.
    """
    case, (record, variables) = stored(name), loaded(name, origin)
    answers, model = case.others if other else case.answers, record.create_model()

    @jax.jit
    def forward(images):
        features, kept = model.apply(
            variables, images, method="features", mutable=["intermediates"]
        )
        return features, kept["intermediates"], model.apply(variables, images)

    features, kept, logits = forward(answers["images"])
    found = {key: kept[f"blocks_{key[6:]}"]["out"][0] for key in answers if key[:6] == "block_"}
    assert found, "the golden file has no blocks"
    found["tokens"] = features.tokens
    expected = {key: order(answers[key]) for key in found}
    found |= {"pooled": features.pooled, "logits": logits}
    expected |= {key: answers[key] for key in ("pooled", "logits")}
    for key in found.keys() - {"tokens", "pooled", "logits"} | {*keys}:
        largest = max(1.0, np.abs(expected[key]).max())
        np.testing.assert_allclose(found[key], expected[key], atol=tolerance * largest, err_msg=key)
