"""Diagnostics during training: attention, rank of the features, gradients and updates.

    fit(config, "runs/digits", watch=Monitor)  # config.log.diagnostics = "5%" is the interval

Every measurement is a line of the log with numbers for each layer:

    entropy/blocks_0        of the attention's rows, in nats: the mean over the heads; `entropy_min`
                            and `entropy_max` are those of the heads with the lowest and the
                            highest, and `entropy_uniform` is that of uniform rows
    distance/blocks_0       mean attention distance in pixels, and `distance_min`, `distance_max`
    rank/blocks_0           effective rank of the output tokens of the block
    gradient_norm/blocks_0  of the next batch, before clipping
    update_norm/blocks_0    of the optimizer's update, learning rate included
    update_ratio/blocks_0   the update norm divided by the norm of the parameters

- A measurement is between two steps; gradient and update are bit for bit those of the following
  step: computed by the same function, on the same batch, with the same random numbers.
- Two programs are compiled for it. The training step does not depend on them, and nothing is
  donated, so a run with diagnostics is bit-identical to one without.
- Attention and ranks are those of a few images of that batch in evaluation mode, without dropout
  and mixing.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict
from jaxtyping import Array, Bool, Float

from vit_jax.analysis.attention.compute import layer_geometry
from vit_jax.analysis.attention.layers import Layer
from vit_jax.errors import UserError
from vit_jax.models.description import Described, describe
from vit_jax.models.description.blocks import block_infos
from vit_jax.models.stacking import read_outputs, unstack_blocks
from vit_jax.tasks.base import Batch
from vit_jax.training.callbacks import Observation
from vit_jax.training.distributed.sharding import replicated
from vit_jax.training.setup.experiment import Experiment
from vit_jax.training.state import TrainState

IMAGES = 16  # whose attention and features are measured
_ROWS = 2048  # maximum number of tokens for a rank

# Fractions of the uniform entropy below and above which a head has collapsed.
LEAST, MOST = 0.05, 0.99
_SETTLED = 0.1  # fraction of a run during which uniform attention is normal


class Heads(NamedTuple):
    """Attention statistics of a layer: one number for each head, and the uniform entropy."""

    entropy: Float[np.ndarray, " heads"]
    distance: Float[np.ndarray, " heads"] | None
    uniform: float


class Monitor:
    """Observer of one experiment; the `watch` argument of `fit`.

    A call takes the step, the train state before it and the next batch, and returns numbers and
    warnings.
    """

    def __init__(self, experiment: Experiment):
        self._experiment = experiment
        everywhere = replicated(experiment.mesh)
        self._learning = jax.jit(functools.partial(_learning, experiment), out_shardings=everywhere)
        self._inside = jax.jit(functools.partial(_inside, experiment), out_shardings=everywhere)
        warmup = experiment.interval("schedule.warmup")
        self._settled_at = max(warmup, _SETTLED * experiment.total_steps)

    def __call__(self, step: int, state: TrainState, batch: Batch) -> Observation:
        seen = jax.device_get(self._inside(state.variables(raw=True), batch["image"]))
        norms = jax.device_get(self._learning(state, batch, self._experiment.frozen))
        heads = {
            layer: Heads(found["entropy"], found.get("distance"), float(found["uniform"]))
            for layer, found in seen["attention"].items()
            if found["are_shares"]
        }
        ranks = {layer: effective_rank(tokens) for layer, tokens in seen["features"].items()}
        numbers = {**_attention_numbers(heads), **_by_layer("rank", ranks), **_ratios(norms)}
        finite = {name: float(value) for name, value in numbers.items() if np.isfinite(value)}
        return Observation(finite, self._warnings(step, heads))

    def _warnings(self, step: int, heads: Mapping[str, Heads]) -> dict[str, str]:
        """Return warnings about layers whose attention has collapsed."""
        model, found = self._experiment.model, {}
        for layer, of_layer in heads.items():
            kind = collapse(of_layer.entropy, of_layer.uniform)
            if kind == "uniform" and step < self._settled_at:
                continue  # attention is uniform at the start
            if kind:
                found[layer] = _explain(kind, layer, of_layer, step, model)
        return found


def collapse(entropy: Float[np.ndarray, " heads"], uniform: float) -> str | None:
    """Return how the attention of a layer has collapsed, judged by the mean entropy of each head.

    "single": every head attends almost only to one key (below 5 % of the uniform entropy), as
    before divergence (Zhai et al. 2023, "Stabilizing transformer training by preventing attention
    entropy collapse"). "uniform": every head attends almost uniformly (above 99 %), so that the
    layer only averages. None: at least one head does neither.

    Args:
        entropy: in nats.
        uniform: the entropy of uniform rows: the logarithm of the number of keys.
    """
    if uniform <= 0 or not np.isfinite(entropy).all():
        return None  # a single key leaves no choice
    shares = np.asarray(entropy) / uniform
    if (shares < LEAST).all():
        return "single"
    return "uniform" if (shares > MOST).all() else None


def effective_rank(matrix: Float[np.ndarray, "rows columns"]) -> float:
    """Return the effective rank of a matrix: the exponential of the entropy of its singular values,
    normalised to sum to 1 (Roy & Vetterli 2007, "The effective rank"; not centred).

    It ranges from 1, if all rows are multiples of one, to the smaller side, if all directions are
    equal; NaN for zeros and for values that are not finite.
    """
    matrix = np.asarray(matrix, np.float64)
    if not np.isfinite(matrix).all() or not matrix.any():
        return float("nan")
    matrix = matrix / np.abs(matrix).max()  # squares must not overflow
    gram = matrix @ matrix.T if len(matrix) < matrix.shape[1] else matrix.T @ matrix
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0))
    shares = values[values > 0] / values.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def block_norms(
    tree: Mapping[str, Any], described: Described | None = None
) -> dict[str, Float[Array, ""]]:
    """Return the norm of each block in a tree of parameters, gradients or updates, and of the rest.

    Blocks are named by their path, `blocks_0` or `stages_1/blocks_0`, stacked or not; other
    parameters by their first name, in a stage by their first two. The root of the sum of all
    squares is the global norm.

    Args:
        described: the parameters; None: roles and blocks follow from the names.
    """
    described = describe(tree, None) if described is None else described
    squares: dict[str, Array] = {}
    for path, leaf in flatten_dict(tree, sep="/").items():
        parameter = described[path]
        tensors = [leaf[i] for i in range(len(leaf))] if parameter.is_stack else [leaf]
        for part, tensor in zip(parameter.parts, tensors, strict=True):
            square = jnp.sum(jnp.square(tensor.astype(jnp.float32)))
            squares[part] = squares.get(part, 0.0) + square
    return {layer: jnp.sqrt(square) for layer, square in squares.items()}


# ---------------------------------------------------------------------------- compiled functions


def _learning(
    experiment: Experiment, state: TrainState, batch: Batch, constants: Any
) -> dict[str, dict[str, Float[Array, ""]]]:
    """Return norms by layer of the gradient, the update and the parameters before it."""
    gradient, _, _ = experiment.gradient()(state, batch, constants)
    updates, _ = experiment.optimizer.update(gradient, state.opt_state, state.params)
    trees = {"gradient": gradient, "update": updates, "parameter": state.params}
    described = experiment.described
    return {name: block_norms(tree, described) for name, tree in trees.items()}


def _inside(
    experiment: Experiment, variables: dict[str, Any], images: Array
) -> dict[str, dict[str, Any]]:
    """Return entropy and distance of each head, and tokens, by layer for some images."""
    model = experiment.model
    images = experiment.preprocessing.normalize(images[:IMAGES])
    try:
        geometry = layer_geometry(model, tuple(images.shape[1:3]))
    except UserError:  # the model has no attention
        geometry = {}
    asked = {"attention_weights": True} if geometry else {}
    _, kept = model.apply(variables, images, train=False, mutable=["intermediates"], **asked)
    sown = flatten_dict(unstack_blocks(kept["intermediates"]), sep="/")
    attention = {
        block: _of_heads(sown[f"{block}/attn/weights"][0], fields)
        for block, fields in geometry.items()
    }
    layers = {block.path for block in block_infos(model) if block.is_layer}
    features = {}
    for block, values in read_outputs(kept["intermediates"]).items():
        if block in layers or not layers:
            rows = values.reshape(-1, values.shape[-1])
            features[block] = rows[:: -(-len(rows) // _ROWS)].astype(jnp.float32)
    return {"attention": attention, "features": features}


def _of_heads(
    weights: Float[Array, "batch heads queries keys"], fields: Mapping[str, Any]
) -> dict[str, Array]:
    """Compute the statistics of `attention_layers.Layer` on the device.

    The weights of a large model are gigabytes, and their means a few numbers.

    Args:
        fields: of that class; an instance without images is created here for its geometry.
    """
    layer = Layer(np.zeros((0, *weights.shape[1:]), np.float32), **fields)
    real, distances = layer.real_queries(), layer.distances()
    weights = weights.astype(jnp.float32).reshape(-1, len(real), *weights.shape[1:])
    terms = -weights * jnp.log(jnp.where(weights > 0, weights, 1.0))
    shares = jnp.where(real[:, None], abs(weights.sum(-1) - 1) < 0.02, True)
    numbers = {
        "entropy": _mean_of_heads(terms.sum(-1), real),
        "uniform": jnp.float32(layer.uniform().entropy()[0]),
        "are_shares": (weights.min() > -1e-6) & shares.all(),
    }
    between = ~np.isnan(distances)[:, None]
    if between.any():
        among = jnp.where(between, weights, 0.0)
        total = jnp.maximum(among.sum(-1), jnp.finfo(jnp.float32).tiny)
        far = (among * np.nan_to_num(distances)[:, None]).sum(-1) / total
        numbers["distance"] = _mean_of_heads(far, between.any(axis=(1, 3)))
    return numbers


def _mean_of_heads(
    values: Float[Array, "batch windows heads queries"],
    counted: Bool[np.ndarray, "windows queries"],
) -> Float[Array, " heads"]:
    """Return the mean of each head over images and the counted queries."""
    kept = jnp.where(counted[:, None], values, 0.0)
    return kept.sum((0, 1, 3)) / (len(values) * counted.sum())


# ---------------------------------------------------------------------------- numbers and messages


def _by_layer(name: str, values: Mapping[str, Any]) -> dict[str, float]:
    return {f"{name}/{layer}": value for layer, value in values.items()}


def _attention_numbers(heads: Mapping[str, Heads]) -> dict[str, float]:
    """Return mean, minimum and maximum over the heads of every layer."""
    numbers = {}
    for name in ("entropy", "distance"):
        values = {k: getattr(v, name) for k, v in heads.items() if getattr(v, name) is not None}
        for suffix, reduce in (("", np.mean), ("_min", np.min), ("_max", np.max)):
            numbers |= _by_layer(f"{name}{suffix}", {k: reduce(v) for k, v in values.items()})
    uniform = {layer: of_layer.uniform for layer, of_layer in heads.items()}
    return {**numbers, **_by_layer("entropy_uniform", uniform)}


def _ratios(norms: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Return norms by layer, and the ratio of update and parameters unless those are zero."""
    before = norms["parameter"]
    ratio = {k: update / before[k] for k, update in norms["update"].items() if before[k] > 0}
    return {
        **_by_layer("gradient_norm", norms["gradient"]),
        **_by_layer("update_norm", norms["update"]),
        **_by_layer("update_ratio", ratio),
    }


def _explain(kind: str, layer: str, heads: Heads, step: int, model: nn.Module) -> str:
    """Return a sentence with the numbers and the remedies."""
    least, most = heads.entropy.min(), heads.entropy.max()
    count = len(heads.entropy)
    all_heads = "its only head attends" if count == 1 else f"all its {count} heads attend"
    doing = {
        "single": f"{all_heads} almost only to a single key",
        "uniform": f"{all_heads} almost uniformly, so that the layer only averages",
    }[kind]
    normed = getattr(model, "qk_norm", True)
    steps = ["lower optimizer.learning_rate", "lengthen schedule.warmup"]
    steps += {
        "single": ["set a smaller optimizer.clip", *([] if normed else ["set model.qk_norm"])],
        "uniform": ["lower optimizer.weight_decay, which shrinks queries and keys"],
    }[kind]
    return (
        f"the attention of {layer} has collapsed by step {step}: {doing} (entropy {least:.3f} to "
        f"{most:.3f} nats; uniform attention: {heads.uniform:.3f}); "
        f"{', '.join(steps[:-1])} or {steps[-1]}, in another run folder"
    )
