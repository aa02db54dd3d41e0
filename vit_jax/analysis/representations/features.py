"""Features of every layer of a network: one vector for each layer and image.

    layers = extract_layers(classifier, source)
    layers.features["blocks_3"]  # (images, width)
    layers.pooled("blocks_3")    # the same with the labels, as input of the probes

- One forward pass over the images gives all layers. Tokens and maps are pooled on the device, so
  only one vector for each layer and image is kept, for any size of the maps.
- A layer is a block, named by its path in the parameters: `blocks_0`, `stages_1/blocks_0`,
  `patch_embed/stages_0/units_0`; its feature is the block's output with the residual path. Blocks
  of a model with `scan_layers=True` have the same names as without.
- The first layer is `pixels`, the image itself, for comparison; the last is `pooled`, after the
  last norm, which is the input of the head.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from vit_jax.data import Source, eval_batches
from vit_jax.data.features import LABEL, check_inputs
from vit_jax.data.sources.subset import subset
from vit_jax.errors import UserError, nearest
from vit_jax.evaluation.probe import Pooled
from vit_jax.inference import Classifier
from vit_jax.models.description.blocks import block_infos
from vit_jax.models.features import Features
from vit_jax.models.stacking import read_outputs, unstack_blocks

PIXELS, POOLED = "pixels", "pooled"
POOLS = ("own", "mean", "cls")

_PIXELS_SIDE = 16  # maximum side of the image in the layer `pixels`

Progress = Callable[[int, int], None]  # images done, total images


class Layers(NamedTuple):
    """Features of the same images in every layer.

    features: float32 `(images, width)` by the name of the layer, in the order of the network.
    labels: class indices.
    """

    features: dict[str, Float[np.ndarray, "images width"]]
    labels: Int[np.ndarray, " images"]

    def pooled(self, layer: str) -> Pooled:
        """Return one layer; raise UserError if it is unknown."""
        if layer not in self.features:
            names = ", ".join(self.features)
            raise UserError(f"there is no layer {layer!r}{nearest(layer, self.features)}: {names}")
        return Pooled(self.features[layer], self.labels)


def extract_layers(
    classifier: Classifier,
    source: Source,
    *,
    pool: str = "own",
    batch_size: int = 64,
    progress: Progress = lambda done, total: None,
) -> Layers:
    """Extract features of every readable image of a source, in every layer, in float32.

    `pixels` is the normalised image, reduced to at most 16 pixels a side.

    Args:
        pool: pooling of tokens. "own": the class token if the model uses it and the layer has one,
            else the mean over patches or positions; "mean": always the mean, without prefix tokens;
            "cls": the class token, in the layers that have one.
        progress: called with the number of images done.

    Raises:
        UserError: images with several labels, no readable images, or no class token.
    """
    if pool not in POOLS:
        raise UserError(f"pool={pool!r} is invalid; use {', '.join(POOLS)}")
    variables = classifier.variables
    if _is_stacked(classifier.model):
        variables = unstack_blocks(variables)
    forward, names = _forward(classifier, pool)
    collected, labels = [], []
    for outputs, batch_labels in real_rows(
        classifier, source, forward, variables, batch_size, progress
    ):
        collected.append(outputs)
        labels.append(batch_labels)
    features = [np.concatenate(batches) for batches in zip(*collected, strict=True)]
    return Layers(dict(zip(names, features, strict=True)), np.concatenate(labels))


def real_rows(
    classifier: Classifier,
    source: Source,
    forward: Callable[[Any, UInt8[np.ndarray, "batch h w c"]], list[Array]],
    variables: Mapping[str, Any],
    batch_size: int,
    progress: Progress = lambda done, total: None,
    target: str = "label",
) -> Iterator[tuple[list[np.ndarray], np.ndarray]]:
    """Compute `forward(variables, images)` for the images of a source; return it with the labels.

    Images are preprocessed. Padding and unreadable images are skipped. `target` is the feature that
    is returned as label.

    Raises:
        UserError: images with several labels, or no readable images.
    """
    check_inputs({"label": LABEL}, source, wanted_by="the examination of features")
    if source.multi_label:
        raise UserError(
            "probes need images with exactly one label, but these may have several labels"
        )

    seen = found = 0
    for batch in eval_batches(source, classifier.preprocessing, batch_size=batch_size):
        real = batch["mask"] > 0
        outputs = forward(variables, batch["image"])
        yield [np.asarray(x)[real] for x in outputs], batch[target][real]
        found += int(real.sum())
        seen = min(len(source), seen + batch_size)
        progress(seen, len(source))
    if not found:
        raise UserError(f"{source.name} {source.split} has no image that can be read")


def sample(source: Source, count: int, seed: int = 0) -> Source:
    """Draw images of a source without replacement; all if there are no more than `count`.

    Args:
        count: number of images; 0: all.
        seed: the same seed draws the same images.
    """
    if not count or count >= len(source):
        return source
    rng = np.random.default_rng(seed)
    numbers = np.sort(rng.choice(len(source), count, replace=False))
    return subset(source, numbers, f"{count} of seed {seed}")


# One program for all sources of a classifier.
_forwards = weakref.WeakKeyDictionary[Classifier, dict[str, tuple[Callable, list[str]]]]()


def _forward(classifier: Classifier, pool: str) -> tuple[Callable, list[str]]:
    """Return a function of variables and images that returns all layers, and their names."""
    check_features(classifier.model)
    known = _forwards.setdefault(classifier, {})
    if pool in known:
        return known[pool]
    model, preprocessing = classifier.model, classifier.preprocessing
    if _is_stacked(model):  # a scan over stacked blocks would keep the tokens of all of them
        model = model.clone(scan_layers=False)
    names: list[str] = []

    @jax.jit
    def forward(variables, images):
        images = preprocessing.normalize(images)
        features, kept = model.apply(
            variables, images, method="features", mutable=["intermediates"]
        )
        layers = _pooled_layers(model, features, kept["intermediates"], pool)
        if pool != "cls":
            layers = {PIXELS: _small(images), **layers}
        names[:] = layers  # set during tracing; JAX would sort the keys of a dictionary
        return [x.astype(jnp.float32) for x in layers.values()]

    known[pool] = forward, names
    return known[pool]


def check_features(model: nn.Module) -> None:
    """Raise UserError for a model without the method `features`."""
    if not hasattr(type(model), "features"):
        raise UserError(
            f"{type(model).__name__} has no method 'features', which is needed; docs/extending.md "
            "describes it"
        )


def _is_stacked(model: nn.Module) -> bool:
    return getattr(model, "scan_layers", False)


def _pooled_layers(
    model: nn.Module, features: Features, intermediates: Mapping[str, Any], pool: str
) -> dict[str, Float[Array, "batch width"]]:
    """Return a vector of every layer by its name, in the order of execution."""
    # In a pyramid only the last stage has a class token.
    prefixes = {block.path: block.prefix for block in block_infos(model)}
    reads_token = getattr(model, "pool", "mean") == "cls"
    has_token = reads_token or getattr(model, "has_class_token", False)
    if pool == "cls" and not has_token:
        raise UserError(f"{type(model).__name__} has no class token here; use the mean instead")

    def pooled(x: Array, prefix: int) -> Array | None:
        if len(x) != len(features.pooled):  # frames apart
            x = x.reshape(len(features.pooled), -1, *x.shape[1:]).mean(axis=1)
        if x.ndim == 4:  # (batch, height, width, channels)
            x = x.reshape(len(x), -1, x.shape[-1])
        if prefix and has_token and (pool == "cls" or (pool == "own" and reads_token)):
            return x[:, 0]
        return None if pool == "cls" else x[:, prefix:].astype(jnp.float32).mean(axis=1)

    layers = {}
    for name, x in read_outputs(intermediates).items():
        has_all = x.ndim == 3 and x.shape[1] == features.tokens.shape[1]
        layers[name] = pooled(x, prefixes.get(name, features.prefix if has_all else 0))
    layers[POOLED] = features.pooled
    if features.pooled.ndim == 3:  # pool="none"
        layers[POOLED] = pooled(features.pooled, features.prefix)
    return {name: x for name, x in layers.items() if x is not None}


def _small(
    images: Float[Array, "batch *frames height width channels"],
) -> Float[Array, "batch numbers"]:
    if images.ndim == 5:  # clips, whose frames become channels
        images = jnp.moveaxis(images, 1, 3)
        images = images.reshape(*images.shape[:3], -1)
    batch, height, width, channels = images.shape
    shape = (batch, min(height, _PIXELS_SIDE), min(width, _PIXELS_SIDE), channels)
    return jax.image.resize(images, shape, "linear").reshape(batch, -1)
