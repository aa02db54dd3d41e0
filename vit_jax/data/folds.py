"""Folds for cross-validation: parts of the training split, each of which is once the test data.

    train, test = fold_of(source, "0/5", seed=0)

Classes keep their shares in each fold. With groups, such as patients, all images of a group are in
one fold.
"""

import dataclasses
import warnings

import numpy as np
from jaxtyping import Int

from vit_jax.data.paths import some_of
from vit_jax.data.sources.source import Source
from vit_jax.data.sources.subset import subset
from vit_jax.errors import UserError


def fold_of(source: Source, fold: str, seed: int) -> tuple[Source, Source]:
    """Return the training and the test data of a fold.

    Args:
        source: the examples; those with `groups` are divided by them.
        fold: "I/K", fold I of K, from 0.
        seed: of the division, which is the same for all folds.

    Raises:
        UserError: there are too few examples or groups, or a class is in one of them only, so that
            it could not be trained on.
    """
    number, count = map(int, fold.split("/"))
    held_out = folds(source, count, seed) == number
    parts = []
    for chosen, words in ((~held_out, "outside"), (held_out, "in")):
        named = f"{source.split}, {words} fold {fold}"
        part = subset(source, np.flatnonzero(chosen), f"{words} fold {fold} of seed {seed}")
        # The name of the dataset is what stands before the split.
        print_ = part.fingerprint.replace(f":{source.split}:", f":{named}:", 1)
        parts.append(dataclasses.replace(part, split=named, fingerprint=print_))
    return parts[0], parts[1]


def folds(source: Source, count: int, seed: int) -> Int[np.ndarray, " examples"]:
    """Return the fold of each example; arguments and errors as for `fold_of`.

    Source: scikit-learn's `StratifiedKFold` and `StratifiedGroupKFold`; `KFold` and `GroupKFold`
    without labels or with several for an example.
    """
    from sklearn import model_selection  # takes a second

    one_each = source.has_labels and not source.multi_label
    groups = np.unique(np.array(source.groups), return_inverse=True)[1] if source.groups else None
    _check(source, count, groups if source.groups else np.arange(len(source)), one_each)
    kinds = {
        (True, True): model_selection.StratifiedGroupKFold,
        (True, False): model_selection.StratifiedKFold,
        (False, True): model_selection.GroupKFold,
        (False, False): model_selection.KFold,
    }
    kind = kinds[one_each, groups is not None](count, shuffle=True, random_state=seed)
    labels = source.labels if one_each else np.zeros(len(source), np.int64)
    found = np.empty(len(source), np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer examples than folds
        for number, (_, held_out) in enumerate(kind.split(labels, labels, groups)):
            found[held_out] = number
    return found


def _check(
    source: Source, count: int, groups: Int[np.ndarray, " examples"], one_each: bool
) -> None:
    """Raise UserError if a fold would be empty, or would leave a class without training data.

    groups: of the examples, by number; each example is one without groups.
    """
    what = "groups" if source.groups else "images"
    if (there := len(np.unique(groups))) < count:
        raise UserError(
            f"{count} folds need at least {count} {what}, and {source.name} {source.split} has "
            f"{there}; use fewer folds"
        )
    if not one_each:
        return
    pairs = np.unique(np.stack([source.labels, groups]), axis=1)
    labels, counts = np.unique(pairs[0], return_counts=True)
    alone = labels[(counts == 1) & (labels >= 0)]  # without a label it is no class
    if len(alone):
        names = some_of([source.class_names[label] for label in alone])
        where = "images of one group only" if source.groups else "a single image"
        raise UserError(
            f"{source.name} {source.split} has classes with {where}, {names}: a model that leaves "
            "it out could not learn them; add images, or remove or merge these classes"
        )
