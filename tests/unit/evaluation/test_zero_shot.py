"""Zero-shot classification of images by the nearest class."""

import jax.numpy as jnp
import numpy as np

from vit_jax.evaluation.zero_shot import ZeroShot
from vit_jax.tasks import Loss


class Directions:
    """A task whose images are their own vectors, and whose classes lie on the axes."""

    def loss(self, variables, batch, rng, *, train):
        mask = batch["mask"]
        return Loss(3 * mask.sum(), mask.sum(), {"scale": 2 * mask.sum()}, {})

    def image_vectors(self, variables, images):
        return images, {}

    prompts = ((), ())

    def text_vectors(self, variables, texts):
        return texts

    def class_vectors(self, variables):
        return jnp.eye(2)


def test_the_nearest_class_is_the_answer_and_padding_and_nan_are_not_right():
    images = jnp.array([[0.8, 0.6], [0.6, 0.8], [1.0, 0.0], [jnp.nan, 1.0], [1.0, 0.0]])
    labels, mask = jnp.array([0, 1, 1, 0, 0]), jnp.array([1.0, 1, 1, 1, 0])
    batch = {"image": images, "label": labels, "mask": mask, "text": images}
    sums, rows = ZeroShot(Directions()).step({}, batch)
    assert rows["predicted"].tolist() == [0, 1, 0, -1, 0]
    found = {name: float(total) for name, total in sums.items()}
    assert found == {"loss": 12, "weight": 4, "scale": 8, "zero_shot_accuracy": 2}
    assert np.isfinite(list(found.values())).all()
