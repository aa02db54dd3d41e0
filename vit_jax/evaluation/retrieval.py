"""Retrieval: the texts that are nearest to an image, and the images that are nearest to a text.

Source: Karpathy and Fei-Fei 2015, "Deep Visual-Semantic Alignments", section 4.1, as used for CLIP
(Radford et al. 2021, section 3.1.3) on Flickr30k and COCO.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from vit_jax.evaluation.base import Result
from vit_jax.evaluation.registry import register_evaluator
from vit_jax.evaluation.zero_shot import ImagesAndTexts

AT = (1, 5, 10)
_ROWS = 1024  # of the matrix of cosines that are computed at once


@register_evaluator("retrieval")
@dataclass(frozen=True)
class Retrieval(ImagesAndTexts):
    """Recall at 1, 5 and 10 from images to texts and back, among all of the split.

    - `image_to_text_recall_1` is the share of images for which a right text is the nearest one.
    - Equal captions are one text, right for all its images. Captions of one file belong to one
      image, for which all of them are right.
    - What is as near as the right one counts as nearer, and a vector that is not finite finds
      nothing.
    """

    def finish(self, parts):
        """Return the recalls, and the numbers of images and of texts."""
        part = parts[self.splits[-1]]
        rows = part.rows
        _, first, texts = np.unique(rows["ids"], axis=0, return_index=True, return_inverse=True)
        names = [part.source.where(int(index)) for index in rows["index"]]
        _, kept, images = np.unique(names, return_index=True, return_inverse=True)
        ranks = ranks_of(rows["image"][kept], rows["text"][first], images, texts.reshape(-1))
        metrics = {}
        for way, found in zip(("image_to_text", "text_to_image"), ranks, strict=True):
            for most in AT:
                metrics[f"{way}_recall_{most}"] = float(np.mean(found < most))
        return Result({**metrics, "examples": part.examples})


def ranks_of(
    images: Float[np.ndarray, "images width"],
    texts: Float[np.ndarray, "texts width"],
    of_image: Int[np.ndarray, " pairs"],
    of_text: Int[np.ndarray, " pairs"],
) -> tuple[Int[np.ndarray, " images"], Int[np.ndarray, " texts"]]:
    """Return how many wrong texts are nearer to each image than its nearest right one, and back.

    Args:
        images, texts: vectors of length 1.
        of_image, of_text: numbers of the image and the text of each pair.
    """
    return _ranks(images, texts, of_image, of_text), _ranks(texts, images, of_text, of_image)


def _ranks(
    asked: Float[np.ndarray, "asked width"],
    others: Float[np.ndarray, "others width"],
    of_asked: Int[np.ndarray, " pairs"],
    of_other: Int[np.ndarray, " pairs"],
) -> Int[np.ndarray, " asked"]:
    ranks = np.zeros(len(asked), np.int64)
    for start in range(0, len(asked), _ROWS):
        rows = slice(start, min(start + _ROWS, len(asked)))
        cosines = asked[rows] @ others.T
        right = np.zeros(cosines.shape, bool)
        here = (of_asked >= rows.start) & (of_asked < rows.stop)
        right[of_asked[here] - rows.start, of_other[here]] = True
        best = np.where(right & np.isfinite(cosines), cosines, -np.inf).max(axis=1, keepdims=True)
        # Not finite is not far: it could be anything.
        nearer = ~right & ~(cosines < best)
        ranks[rows] = np.where(np.isfinite(best[:, 0]), nearer.sum(axis=1), len(others))
    return ranks
