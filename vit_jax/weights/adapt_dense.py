"""Adaptation of trained parameters to a model with a head on a backbone.

    adapted = adapt_dense(variables, trained_model, model)

The backbone must fit, as `adapt` says: the weights may be those of a classifier or an encoder,
which then is the backbone, or of another model with a head. Of the head, what has the same path and
shape is kept; the rest is not in the result, and a run begins with its own initial values.
"""

from collections.abc import Mapping
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict

from vit_jax.models.dense import DenseModel
from vit_jax.models.inputs import abstract_variables
from vit_jax.weights.adapt import Adapted, adapt

BACKBONE = "backbone"


def adapt_dense(
    variables: Mapping[str, Any], trained: Any, model: DenseModel, *, other_classes: bool = False
) -> Adapted:
    """Return the part of a dense model's variables that trained weights have.

    Args:
        variables: of the trained model, {"params": ..., and any other collections}.
        trained: the trained module, with or without a backbone of its own.
        model: the new module.
        other_classes: whether the classes differ, so that what belongs to them is new.

    Raises:
        UserError: the backbones differ in more than image size, patch size and channels.
    """
    is_dense = isinstance(trained, DenseModel)
    whole = variables if is_dense else {name: {BACKBONE: x} for name, x in variables.items()}
    found = adapt(
        whole["params"][BACKBONE],
        trained.make_backbone() if is_dense else trained,
        model.make_backbone(),
    )
    theirs, wanted = _besides_backbone(whole), _besides_backbone(abstract_variables(model))
    new_ones = model.of_classes if other_classes else ()

    def is_kept(path: str, leaf: Any, shapes: Mapping[str, Any]) -> bool:
        fits = path in shapes and shapes[path].shape == leaf.shape
        return fits and not any(path == one or path.startswith(f"{one}/") for one in new_ones)

    kept = {
        name: {p: leaf for p, leaf in flat.items() if is_kept(p, leaf, wanted.get(name, {}))}
        for name, flat in theirs.items()
    }
    head = kept.pop("params")
    return Adapted(
        {**unflatten_dict(head, sep="/"), BACKBONE: found.params},
        tuple(path for path in wanted["params"] if path not in head),
        tuple(f"{BACKBONE}/{path}" for path in found.resized),
        (*found.left_out, *sorted(theirs["params"].keys() - head.keys())),
        {name: unflatten_dict(flat, sep="/") for name, flat in kept.items() if flat},
    )


def _besides_backbone(variables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the collections by paths; of the parameters those besides the backbone."""
    params = {name: tree for name, tree in variables["params"].items() if name != BACKBONE}
    trees = {**variables, "params": params}
    return {name: flatten_dict(tree, sep="/") for name, tree in trees.items()}


def completed(initial: Mapping[str, Any], trained: Mapping[str, Any]) -> dict[str, Any]:
    """Return initial variables with the trained ones, which may be a part of them, in their place.

    Both are trees of dictionaries.
    """
    merged = dict(initial)
    for name, value in trained.items():
        inside = isinstance(value, Mapping) and isinstance(merged.get(name), Mapping)
        merged[name] = completed(merged[name], value) if inside else value
    return merged


def at_same_places(tree: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a tree of dictionaries that another one has."""
    return {
        name: at_same_places(tree[name], value) if isinstance(value, Mapping) else tree[name]
        for name, value in like.items()
    }
