"""Names of the head of self-distillation in the files of DINO's authors.

torch's weight normalisation stores a weight as its lengths `weight_g` and as `weight_v`, of which
only the directions count.
"""

from vit_jax.weights.mapping import LINEAR, Layout, Row, linear

PREFIX = "head."

# Lengths (out, 1) of torch, and our scale (out,).
_LENGTHS = Layout(lambda arrays, shape: arrays[0].reshape(shape), lambda x: [x.reshape(-1, 1)])

ROWS = (
    *linear("fc1", f"{PREFIX}mlp.0"),
    *linear("fc2", f"{PREFIX}mlp.2"),
    *linear("fc3", f"{PREFIX}mlp.4"),
    Row("last_layer/kernel", f"{PREFIX}last_layer.weight_v", LINEAR),
    Row("last_layer/scale", f"{PREFIX}last_layer.weight_g", _LENGTHS),
)
