"""Focal and asymmetric losses: outputs that are right already weigh less in the cross-entropy."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float
from ml_collections import ConfigDict

from vit_jax.errors import UserError

_LEAST = 1e-12  # below it, a power smaller than 1 has no finite gradient in float32


@dataclass(frozen=True)
class Focus:
    """Factors of the cross-entropy, by the probability p that a model gives.

    A softmax's terms t log p, and a sigmoid's where the target is 1, are multiplied by
    (1 - p)^gamma (Lin et al. 2017, "Focal loss for dense object detection", equation 4, without
    its class weights). A sigmoid's where the target is 0 are multiplied by q^negative_gamma, with
    q = max(p - margin, 0) in place of p (Ridnik et al. 2021, "Asymmetric loss for multi-label
    classification", equations 4 to 7): of many absent classes none is learned that is told apart
    already.

    negative_gamma: None: gamma.
    """

    gamma: float = 0.0
    negative_gamma: float | None = None
    margin: float = 0.0

    @classmethod
    def of(cls, config: ConfigDict) -> "Focus":
        """Return that of a configuration.

        Raises:
            UserError: a softmax is to have what only a sigmoid has.
        """
        objective = config.objective
        for key in ("negative_gamma", "negative_margin"):
            if objective.loss == "softmax" and objective[key]:
                raise UserError(
                    f"objective.{key} = {objective[key]} is for outputs whose target is 0, and "
                    "objective.loss = 'softmax' has none; use --config.objective.loss=sigmoid, or "
                    "--config.objective.focal_gamma alone"
                )
        return cls(objective.focal_gamma, objective.negative_gamma, objective.negative_margin)

    def softmax(
        self, logits: Float[Array, "*batch classes"], targets: Float[Array, "*batch classes"]
    ) -> Float[Array, "*batch"]:
        """Return the loss of logits of one class of several, in nats."""
        log_p = jax.nn.log_softmax(logits)
        return -jnp.sum(targets * _power(1 - jnp.exp(log_p), self.gamma) * log_p, axis=-1)

    def sigmoid(
        self, logits: Float[Array, "*outputs"], targets: Float[Array, "*outputs"]
    ) -> Float[Array, "*outputs"]:
        """Return the loss of each output that decides alone, in nats."""
        present = _power(jax.nn.sigmoid(-logits), self.gamma) * jax.nn.log_sigmoid(logits)
        absent = jax.nn.log_sigmoid(-logits)
        p = jax.nn.sigmoid(logits)
        if self.margin:
            p = jnp.maximum(p - self.margin, 0)
            absent = jnp.log1p(-p)
        gamma = self.gamma if self.negative_gamma is None else self.negative_gamma
        return -targets * present - (1 - targets) * _power(p, gamma) * absent


def _power(base: Array, exponent: float) -> Array | float:
    return jnp.maximum(base, _LEAST) ** exponent if exponent else 1.0
