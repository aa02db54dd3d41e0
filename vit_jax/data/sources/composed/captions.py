"""Captions made on the spot, from the names of the classes of any labelled dataset.

    source = open_source("captions:digits", "train")
    source[0]               # {"image": ..., "label": 3, "text": int32 (length,)}
    source.tokenizer    # see vit_jax.data.text

- A caption is a template with a name of the image's class in it: "the digit three". Which one is
  drawn once for each image, the same for ever.
- The first templates are for training splits, the rest for all other splits and for zero-shot
  classification. All their words occur in training, in other sentences.
- The tokenizer is trained on all training captions, by whole words, which are few.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int32

from vit_jax.data.features import SOFT_LABEL, Example, Feature
from vit_jax.data.images.decoding import AS_IT_IS, Decoding
from vit_jax.data.sources.examples import EncodedExamples, Labels
from vit_jax.data.sources.names import argument_of
from vit_jax.data.sources.source import Source
from vit_jax.data.texts import TextOptions
from vit_jax.errors import UserError

if TYPE_CHECKING:
    from vit_jax.data.text import Tokenizer

PREFIX = "captions:"
SHORT = {"fashion": "tfds:fashion_mnist"}  # names of datasets that are known by another one too

_NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_OF_NUMBERS = (
    "the digit {}", "a handwritten {}", "a small picture of the number {}", "{}",
    "somebody wrote a {} by hand", "a scan of a {}", "this image shows the digit {}",
    "the number {} in ink", "a grey scan of the handwritten number {}",
    "a picture with a {} in it", "this is the number {}", "a digit that is a {}",
)  # fmt: skip
_NEW_OF_NUMBERS = (
    "a picture of the digit {}", "a scan of the number {}", "this is a handwritten digit {}",
    "the image shows a {} in ink",
)  # fmt: skip
_OF_THINGS = (
    "a photo of a {}", "the {}", "a small picture of the {}", "{}", "somebody sells a {}",
    "a scan of a {}", "this image shows one {}", "the {} from a shop", "a grey picture of one {}",
    "a picture with a {} in it", "this is the {}", "an article that is a {}",
)  # fmt: skip
_NEW_OF_THINGS = (
    "a picture of a {}", "a photo of the {}", "this is a grey {}", "the image shows a {} in a shop",
)  # fmt: skip

Prompts = tuple[tuple[tuple[int, ...], ...], ...]
"""Ids of the tokens of texts for each class."""


def captioned(dataset: str) -> str | None:
    """Return the dataset that `captions:DATASET` is made of; None for another one."""
    name = argument_of(dataset, PREFIX)
    return SHORT.get(name, name)


def names_of(class_name: str) -> tuple[str, ...]:
    """Return how captions call a class: `7` also "seven", `T-shirt/top` either of the two."""
    names = [name.strip().lower() for name in class_name.split("/")]
    if class_name.isdecimal() and int(class_name) < len(_NUMBERS):
        names.append(_NUMBERS[int(class_name)])
    return tuple(filter(None, names)) or (class_name,)  # such as "/"


def templates_of(class_names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the templates of training captions, and the held-out ones."""
    if all(name.isdecimal() for name in class_names):
        return _OF_NUMBERS, _NEW_OF_NUMBERS
    return _OF_THINGS, _NEW_OF_THINGS


def prompts(tokenizer: "Tokenizer", class_names: Sequence[str]) -> Prompts:
    """Return the ids of held-out templates with the names of each class, equally many for each."""
    new = templates_of(class_names)[1]
    names = [names_of(name) for name in class_names]
    rounds = range(max(map(len, names), default=0))
    return tuple(
        tuple(
            tuple(tokenizer.encode(template.format(of_class[number % len(of_class)]))[0].tolist())
            for template in new
            for number in rounds
        )
        for of_class in names
    )


def with_captions(
    source: Source, dataset: str, labels: bool = True, options: TextOptions | None = None
) -> Source:
    """Return a labelled source whose examples have a caption, `text`.

    Args:
      dataset: the name under which it was opened.
      labels: whether it keeps its labels.
      options: the tokenizer, and the length of texts; by default it is trained on the captions.

    Raises:
      UserError: it has no labels, or several for an image.
    """
    if not source.has_labels or source.multi_label:
        has = "may have several labels" if source.has_labels else "have no labels"
        raise UserError(
            f"{dataset} makes captions from the class of each image, but those of {source.name} "
            f"{has}; use a dataset with one label for each image"
        )
    names = source.class_names
    old, new = templates_of(names)
    captions = _captions(old, names)
    options = options or TextOptions()
    tokenizer = options.tokenizer or _trained(captions)
    if options.length:
        tokenizer = tokenizer.with_length(options.length)
    templates = old if source.split.startswith("train") else new
    table = [tokenizer.encode(_captions(templates, [name])) for name in names]
    digest = hashlib.sha256(tokenizer.encode(captions).tobytes()).hexdigest()[:12]
    features = {**source.features, "text": Feature("text", (tokenizer.length,))}
    if not labels:
        features = {name: of for name, of in features.items() if name not in ("label", SOFT_LABEL)}
    return dataclasses.replace(
        source,
        name=dataset,
        class_names=names if labels else (),
        soft_labels=source.soft_labels if labels else None,
        fingerprint=f"{PREFIX}{digest}:{source.fingerprint}",
        examples=_Captioned(source, table, labels),
        features=features,
        why_unlabelled="data.labels is False; omit it",
        tokenizer=tokenizer,
    )


@dataclasses.dataclass(frozen=True, eq=False)
class _Captioned(EncodedExamples):
    """Examples of a source with a caption each.

    table: the ids of the captions of each class.
    """

    source: Source
    table: list[Int32[np.ndarray, "captions length"]]
    labelled: bool

    @functools.cached_property
    def chosen(self) -> np.ndarray:
        """A random number for each example, which chooses its caption."""
        # RandomState, because numpy guarantees its stream for ever.
        return np.random.RandomState(0).randint(2**31 - 1, size=len(self.source))

    @property
    def labels(self) -> Labels | None:
        """Label of every example; None if they are not to be used."""
        return self.source.labels if self.labelled else None

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int, how: Decoding = AS_IT_IS) -> Example:
        example = self.source.read(index, how)
        captions = self.table[example["label"]]
        made = {**example, "text": captions[self.chosen[index] % len(captions)].copy()}
        if not self.labelled:
            del made["label"]
        return made

    def where(self, index: int) -> str:
        return self.source.where(index)


def _captions(templates: Sequence[str], class_names: Sequence[str]) -> list[str]:
    return [
        template.format(name)
        for template in templates
        for class_name in class_names
        for name in names_of(class_name)
    ]


def _trained(captions: Sequence[str]) -> "Tokenizer":
    """Return a tokenizer of all words of some captions, of twice the length of the longest."""
    from vit_jax.data.text import train_tokenizer

    longest = max(len(caption.split()) for caption in captions)
    words = len(set(" ".join(captions).split()))
    # Signs are words of their own, so there may be more: twice as many is room enough.
    return train_tokenizer(captions, vocabulary=2 * words + 5, length=2 * longest, units="words")
