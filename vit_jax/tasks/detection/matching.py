"""The losses of a set of predictions: boxes compared, and predictions matched to objects.

Boxes are left, top, right, bottom here, in any unit; all functions work on the last axis.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from vit_jax.models.detection.heads import Detections, centred, cornered

_NEVER = 1e6  # cost of a pair that is not to be compared: far above those of usual weights


class Objects(NamedTuple):
    """The objects of a batch of images, padded to the same number.

    boxes: as shares of the image. classes: their numbers. there: False for padding.
    """

    boxes: Float[Array, "batch objects 4"]
    classes: Int[Array, "batch objects"]
    there: Bool[Array, "batch objects"]

    @classmethod
    def of_batch(cls, batch, size: tuple[int, int]) -> "Objects":
        """Return those of a batch whose boxes are in pixels of images of a (height, width).

        A row without area, or with a number that is not finite, is padding.
        """
        height, width = size
        boxes = batch["boxes"].astype(jnp.float32) / jnp.array([width, height, width, height])
        there = jnp.isfinite(boxes).all(-1) & (area(boxes) > 0)
        classes = batch["classes"].astype(jnp.int32)
        return cls(jnp.where(there[..., None], boxes, 0.0), classes, there)


class Matched(NamedTuple):
    """Sums of the losses of some predictions over a batch, and what they are divided by.

    class_loss: of all queries, weighted; divided by `queries`, the sum of the weights. box_loss,
    giou_loss: of matched queries; divided by `objects`, their number. right: matched queries whose
    class is the most probable one.
    """

    class_loss: Float[Array, ""]
    queries: Float[Array, ""]
    box_loss: Float[Array, ""]
    giou_loss: Float[Array, ""]
    objects: Float[Array, ""]
    right: Float[Array, ""]


class Costs(NamedTuple):
    """Weights of the costs of a match: of the class, of the distance of boxes, of their GIoU."""

    classes: float = 1.0
    boxes: float = 5.0
    giou: float = 2.0


def area(boxes: Float[Array, "*batch 4"]) -> Float[Array, "*batch"]:
    """Return the areas of boxes, 0 where a side is negative."""
    sides = jnp.maximum(boxes[..., 2:] - boxes[..., :2], 0)
    return sides[..., 0] * sides[..., 1]


def giou(one: Float[Array, "*batch 4"], other: Float[Array, "*batch 4"]) -> Float[Array, "*batch"]:
    """Return the generalised intersection over union, from -1 to 1; 1 for equal boxes.

    It is the intersection over the union, minus the share of the smallest box around both that
    belongs to neither: so boxes that do not touch have a gradient. Shapes broadcast.

    Source: Rezatofighi et al. 2019, "Generalized Intersection over Union", algorithm 1.
    """
    inside = jnp.concatenate(
        [
            jnp.maximum(one[..., :2], other[..., :2]),
            jnp.minimum(one[..., 2:], other[..., 2:]),
        ],
        axis=-1,
    )
    around = jnp.concatenate(
        [
            jnp.minimum(one[..., :2], other[..., :2]),
            jnp.maximum(one[..., 2:], other[..., 2:]),
        ],
        axis=-1,
    )
    common = area(inside)
    union, hull = area(one) + area(other) - common, area(around)
    # Two boxes without area have no union, and two at one point no box around them.
    share = common / jnp.where(union > 0, union, 1.0)
    return share - (hull - union) / jnp.where(hull > 0, hull, 1.0)


def match(
    costs: Float[Array, "queries objects"], there: Bool[Array, " objects"]
) -> Int[Array, " objects"]:
    """Return the query of every object, so that the sum of the costs of real objects is least.

    Each query has one object at most. Of more objects than queries those without a query get -1,
    and padding gets any query that is left.

    Source: Kuhn 1955, the Hungarian method, by `optax.assignment`.
    """
    queries, objects = costs.shape
    costs = jnp.nan_to_num(costs, nan=_NEVER, posinf=_NEVER, neginf=-_NEVER)
    # Equal costs of padding take no part in the choice, if each object has a query. Otherwise
    # costs above all others leave padding without a query first.
    of_padding = 0.0 if objects <= queries else costs.max() + 1
    costs = jnp.where(there, costs, of_padding)
    rows, columns = optax.assignment.hungarian_algorithm(jax.lax.stop_gradient(costs))
    return jnp.full(objects, -1).at[columns].set(rows)


def match_costs(found: Detections, objects: Objects, weights: Costs) -> Float[Array, "..."]:
    """Return the costs `(batch, queries, objects)` of all pairs (DETR, appendix A.2).

    The cost of a class is minus its probability.
    """
    probabilities = jax.nn.softmax(found.logits)
    of_class = jnp.take_along_axis(probabilities, objects.classes[:, None], axis=-1)
    boxes, truth = found.boxes[:, :, None], centred(objects.boxes)[:, None]
    distance = jnp.abs(boxes - truth).sum(-1)
    overlap = giou(cornered(boxes), objects.boxes[:, None])
    return -weights.classes * of_class + weights.boxes * distance - weights.giou * overlap


def matched_losses(
    found: Detections,
    objects: Objects,
    weights: Costs,
    no_object: float,
    mask: Float[Array, " batch"],
) -> Matched:
    """Return the sums of the losses of the predictions of one layer.

    Args:
        weights: of the costs by which predictions are matched.
        no_object: weight of the cross-entropy of a query without an object; others have 1.
        mask: 0 for images that are padding.
    """
    there = objects.there & (mask[:, None] > 0)
    costs = match_costs(found, objects, weights)
    query = jax.vmap(match)(costs, there)
    there = there & (query >= 0)
    own = jax.vmap(functools.partial(jnp.take, axis=0))(found.boxes, jnp.maximum(query, 0))
    distance = jnp.abs(own - centred(objects.boxes)).sum(-1)
    overlap = giou(cornered(own), objects.boxes)

    queries, nothing = found.logits.shape[1], found.logits.shape[2] - 1
    place = jnp.where(there, query, queries)  # beyond the end: dropped
    truth = jax.vmap(
        lambda place, classes: jnp.full(queries, nothing).at[place].set(classes, mode="drop")
    )(place, objects.classes)
    weight = jnp.where(truth == nothing, no_object, 1.0) * mask[:, None]
    losses = optax.softmax_cross_entropy_with_integer_labels(found.logits, truth)
    right = (found.logits.argmax(-1) == truth) & (truth != nothing)
    return Matched(
        class_loss=jnp.sum(losses * weight),
        queries=jnp.sum(weight),
        box_loss=jnp.sum(jnp.where(there, distance, 0)),
        giou_loss=jnp.sum(jnp.where(there, 1 - overlap, 0)),
        objects=jnp.sum(there).astype(jnp.float32),
        right=jnp.sum(right * (mask[:, None] > 0)).astype(jnp.float32),
    )
