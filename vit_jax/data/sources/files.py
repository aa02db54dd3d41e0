"""Sources of image files: a split of a listing, with labels and captions."""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float32

from vit_jax.data.features import IMAGES, LABELLED, SOFT_LABEL, Feature
from vit_jax.data.labels import (
    labels_of_soft,
    number_classes,
    soft_label_rows,
    unknown_to_model,
)
from vit_jax.data.paths import as_text, some_of
from vit_jax.data.sources.examples import Labels
from vit_jax.data.sources.source import Source
from vit_jax.data.sources.splits import Files, Listing, divide
from vit_jax.data.texts import TextOptions, Texts, make_texts
from vit_jax.errors import UserError


def open_files(
    listing: Listing,
    split: str,
    holdout: float,
    split_seed: int,
    class_names: Sequence[str] | None,
    saved_paths: Sequence[str] | None,
    options: TextOptions,
) -> Source:
    """Return a split of a listing.

    Args:
      listing: the files.
      split, holdout, split_seed, class_names: as for `open_source`.
      saved_paths: the files of the split, if they are known.
      options: what turns captions into ids.
    """
    paths, files = divide(listing, split, holdout, split_seed, saved_paths)
    names, labels, soft_labels = (), None, None
    if listing.labelled:
        names = tuple(class_names or listing.class_names)
        if listing.shares:
            soft_labels = _soft_labels_of_files(paths, class_names, listing, split)
            labels = labels_of_soft(soft_labels, listing.multi_label)
        else:
            labels = _labels_of_files(paths, files, class_names, listing, split)
        labels.flags.writeable = False
    elif class_names:
        raise UserError(
            f"{listing.dataset} has no labels, but the classes of a model are to be found in it:"
            f" {listing.why_unlabelled}"
        )

    names_of_files = tuple(map(as_text, paths))
    facts = [listing.facts[path] for path in paths]
    content = hashlib.sha256("\n".join(names).encode())
    if labels is not None:
        content.update(labels.tobytes())
    content.update(
        "\n".join(
            f"{name} {fact.size}" for name, fact in zip(names_of_files, facts, strict=True)
        ).encode()
    )
    kind = listing.dataset.partition(":")[0]
    features = {**(LABELLED if listing.labelled else IMAGES), "image": listing.image}
    if soft_labels is not None:
        content.update(soft_labels.tobytes())
        features[SOFT_LABEL] = Feature("target", (len(names),))
    texts, notes = None, list(listing.notes)
    if listing.captions:
        texts = _texts_of_files(paths, listing, split, holdout, split_seed, options)
        content.update(texts.digest())
        features["text"] = texts.feature
        notes += filter(None, [texts.note])
    return Source(
        name=listing.dataset,
        split=split,
        class_names=names,
        fingerprint=f"{kind}:{split}:{len(paths)}:{content.hexdigest()[:12]}",
        in_memory=False,
        examples=listing.open_examples(listing.root, tuple(paths), labels),
        multi_label=listing.multi_label and listing.labelled,
        notes=tuple(notes),
        files=names_of_files,
        identities=np.array([fact[1:] for fact in facts], np.uint64),
        features=features,
        why_unlabelled=listing.why_unlabelled,
        texts=texts,
        tokenizer=texts and texts.tokenizer,
        groups=tuple(listing.groups[path] for path in paths) if listing.groups else (),
        soft_labels=soft_labels,
    )


def _texts_of_files(
    paths: Sequence[str],
    listing: Listing,
    split: str,
    holdout: float,
    split_seed: int,
    options: TextOptions,
) -> Texts:
    """Return the captions of files; other splits than training ones need its tokenizer."""
    training = None
    if options.needs_training_captions(split):
        theirs, _ = divide(listing, "train", holdout, split_seed)
        training = [listing.captions[path] for path in theirs]
    captions = [listing.captions[path] for path in paths]
    return make_texts(captions, options, f"{listing.dataset} {split}", training)


def _labels_of_files(
    paths: Sequence[str],
    files: Files,
    class_names: Sequence[str] | None,
    listing: Listing,
    split: str,
) -> Labels:
    used = {name for path in paths for name in files[path]}
    numbers = _numbers_of_files(sorted(used), class_names, listing, split)
    if listing.multi_label:
        labels = np.zeros((len(paths), len(class_names or listing.class_names)), np.uint8)
        for row, path in enumerate(paths):
            labels[row, [numbers[name] for name in files[path]]] = 1
    else:
        labels = np.array([numbers[files[path][0]] for path in paths], np.int64)
    return labels


def _soft_labels_of_files(
    paths: Sequence[str], class_names: Sequence[str] | None, listing: Listing, split: str
) -> Float32[np.ndarray, "n classes"]:
    shares = [listing.shares[path] for path in paths]
    used = {name for of in shares for name, share in of.items() if share}
    numbers = _numbers_of_files(sorted(used), class_names, listing, split)
    return soft_label_rows(shares, numbers, len(class_names or listing.class_names))


def _numbers_of_files(
    names: Sequence[str], class_names: Sequence[str] | None, listing: Listing, split: str
) -> dict[str, int]:
    numbers, unknown = number_classes(names, class_names or listing.class_names)
    if unknown and class_names:
        raise UserError(unknown_to_model(listing.dataset, unknown, class_names))
    if unknown:
        raise UserError(
            f"{listing.dataset}: {split} has classes that the training split lacks,"
            f" {some_of(unknown)}; the training split has {some_of(listing.class_names, 10)}"
        )
    return numbers
