"""Receptive fields of features: effective (by gradients) and theoretical.

    fields = effective_receptive_fields(model, variables, images)  # of every block, by its name
    extent(fields["blocks_0"])                                     # width in pixels
    theoretical_receptive_field(convolutions_of(model)["stages_3"])
    region(model, "stages_3", images.shape[1:3])                   # its position

- The effective field is a gradient: the change of the unit in the middle of a map with each pixel
  (Luo et al. 2016). The theoretical field is everything that the unit can depend on; outside it the
  gradient is exactly 0. In a ViT it is the whole image from the first block on.
- The gradient is that of a random direction in the unit's channels, a different one for each image.
  The sum of the channels, which is often used, is exactly what the norm of the next layer removes.
- Layers are named by the path of their outputs: `blocks_3`, `stages_1/blocks_0`; `stages_1` is the
  last block of a stage, and -1 the last of all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from vit_jax.analysis.attention.compute import check_grid
from vit_jax.analysis.inputs import check_normalised
from vit_jax.analysis.representations.features import check_features
from vit_jax.errors import UserError, nearest
from vit_jax.models import validation
from vit_jax.models.description.blocks import block_infos
from vit_jax.models.description.receptive import Convolution, Steps
from vit_jax.models.stacking import read_outputs

# ---------------------------------------------------------------------------- measured by gradients


def feature_maps(
    model: nn.Module,
    variables: Mapping[str, Any],
    images: Float[Array, "batch height width channels"],
) -> dict[str, Float[Array, "batch map_height map_width map_channels"]]:
    """Return the output of every block as a map, first block first, without prefix tokens."""
    check_features(model)
    check_grid(model, "receptive fields")
    features, kept = model.apply(variables, images, method="features", mutable=["intermediates"])
    outputs = read_outputs(kept.get("intermediates", {}))
    grids = {block.path: block.grid for block in block_infos(model, tuple(images.shape[1:3]))}
    return {
        name: _as_map(outputs[name].astype(jnp.float32), grids.get(name, features.grid))
        for name in grids or sorted(outputs, key=_numbers)
    }


def layer_names(model: nn.Module, variables: Mapping[str, Any], images: Array) -> list[str]:
    """Return the names of all blocks, first block first, without computing anything."""
    return list(_map_shapes(model, variables, images))


def effective_receptive_fields(
    model: nn.Module,
    variables: Mapping[str, Any],
    images: Float[Array, "batch height width channels"],
    layers: Sequence[str | int] | None = None,
    *,
    unit: tuple[int, int] | None = None,
    seed: int = 0,
    batch_size: int = 16,
) -> dict[str, Float[np.ndarray, "height width"]]:
    """Measure the dependence of a unit of each layer on each pixel, as a mean over images.

    It is the absolute gradient with respect to the image, summed over its channels. Maps are not
    normalised: those of two layers differ in scale like the layers' outputs.

    Args:
        images: float32, normalised.
        layers: names or numbers; None: all blocks.
        unit: `(row, column)` in the maps; None: the one in the middle, `(height // 2, width // 2)`.
        seed: of the random directions.

    Raises:
        UserError: unknown layer or unit, or images that are not normalised.

    Source: Luo et al. 2016, "Understanding the Effective Receptive Field in Deep Convolutional
    Neural Networks", section 2; a random direction replaces their single channel.
    """
    check_normalised(images)
    shapes = _map_shapes(model, variables, images)
    blocks = list(shapes)
    names = [find_layer(blocks, layer) for layer in (blocks if layers is None else layers)]
    units = {name: _find_unit(name, shapes[name].shape[1:3], unit) for name in names}

    @jax.jit
    def of_batch(variables, images, key):
        def responses(images):
            """Return each layer's unit along its direction, summed over images."""
            maps, values = feature_maps(model, variables, images), []
            for number, name in enumerate(names):
                vectors = maps[name][:, *units[name]]
                direction = jax.random.normal(jax.random.fold_in(key, number), vectors.shape)
                values.append((vectors * direction).sum())
            return jnp.stack(values)

        _, pull_back = jax.vjp(responses, images)
        # One layer after the other: together they would take as many times the memory.
        [gradients] = jax.lax.map(pull_back, jnp.eye(len(names)))
        return jnp.abs(gradients).sum(axis=(1, -1))  # over images and channels

    images = jnp.asarray(images)
    total = np.zeros((len(names), *images.shape[1:3]))
    for number, start in enumerate(range(0, len(images), batch_size)):
        key = jax.random.fold_in(jax.random.key(seed), number)
        total += np.asarray(of_batch(variables, images[start : start + batch_size], key))
    return dict(zip(names, total / len(images), strict=True))


def effective_receptive_field(
    model: nn.Module,
    variables: Mapping[str, Any],
    images: Float[Array, "batch height width channels"],
    layer: str | int = -1,
    **options: Any,
) -> Float[np.ndarray, "height width"]:
    """Measure the effective receptive field of one layer, by its name or number."""
    [field] = effective_receptive_fields(model, variables, images, [layer], **options).values()
    return field


class Extent(NamedTuple):
    """Size of a receptive field, in pixels.

    radius: root mean square distance from the centre of mass; of a Gaussian its deviation in each
        direction times the root of 2.
    half_side, most_side: of the square around the centre of mass that holds half, or 95 %.
    area: the fraction of the image's pixels whose gradient is above 4.55 % of the largest, the
        threshold of Luo et al.
    """

    radius: float
    half_side: float
    most_side: float
    area: float


def extent(field: Float[np.ndarray, "height width"]) -> Extent:
    """Compute the size of a measured field."""
    weights, distance = _mass(field)
    radius = np.sqrt((weights * (distance**2).sum(axis=0)).sum())
    above = field > (1 - 0.9545) * field.max()
    return Extent(float(radius), side_of(field, 0.5), side_of(field, 0.95), float(above.mean()))


def share_within(field: Float[np.ndarray, "height width"], side: float) -> float:
    """Return the fraction of a field in a square (side in pixels) around the centre of mass."""
    weights, distance = _mass(field)
    return float(weights[distance.max(axis=0) <= side / 2].sum())


def side_of(field: Float[np.ndarray, "height width"], share: float) -> float:
    """Return the side, in pixels, of the smallest centred square that holds a fraction."""
    weights, distance = _mass(field)
    reach = distance.max(axis=0).ravel()
    order = np.argsort(reach, kind="stable")
    held = np.cumsum(weights.ravel()[order])
    enough = min(int(np.searchsorted(held, share - 1e-9)), len(order) - 1)
    return float(2 * reach[order][enough] + 1)


def find_layer(names: Sequence[str], layer: str | int) -> str:
    """Return the name of a layer of a model. Raises UserError if there is none."""
    if isinstance(layer, int) and -len(names) <= layer < len(names):
        return names[layer]
    within = [name for name in names if name == layer or name.startswith(f"{layer}/")]
    if not within:
        hint = nearest(str(layer), names) or f"; its layers are {', '.join(names) or 'none'}"
        raise UserError(f"layer {layer}: the model has no such layer{hint}")
    return within[-1]


# ------------------------------------------------------------------------------------ by arithmetic


class Field(NamedTuple):
    """Theoretical receptive field of a unit, along one side, in pixels.

    size: of the field. stride: offset of the next unit's field. padding: part of unit 0's field
    before the image.
    """

    size: int
    stride: int
    padding: int


def receptive_fields(layers: Sequence[Convolution | tuple[int, ...]]) -> list[Field]:
    """Return the receptive field after each of a sequence of layers.

    Args:
        layers: convolutions and poolings, or tuples (kernel, stride) or (kernel, stride, padding).

    Source: Araujo et al. 2019, "Computing Receptive Fields of Convolutional Neural Networks",
    equations for single-path networks; what they call effective stride and padding.
    """
    size, stride, padding, fields = 1, 1, 0, []
    for layer in layers:
        if not isinstance(layer, Convolution):
            layer = Convolution(*layer)
        size += (layer.kernel - 1) * stride
        padding += layer.padding * stride
        stride *= layer.stride
        fields.append(Field(size, stride, padding))
    return fields


def theoretical_receptive_field(layers: Sequence[Convolution | tuple[int, ...]]) -> int:
    """Return the side of a unit's receptive field: the last of `receptive_fields`.

    >>> theoretical_receptive_field([(7, 2), (3, 2), (3, 1)])  # kernel and stride
    19
    """
    return receptive_fields(layers)[-1].size if layers else 1


def layer_steps(
    model: nn.Module, image_size: int | tuple[int, int] | None = None, axis: int = 0
) -> Steps:
    """Return the steps from the image to each block's output along one side, by block name.

    Args:
        image_size: `(height, width)` in pixels; None: the model's own.
        axis: 0 is the height, 1 the width.

    Raises:
        UserError: the model does not list them with its method `receptive_steps`.
    """
    own = getattr(type(model), "receptive_steps", None)
    if own is None:
        raise UserError(
            f"the receptive field of {type(model).__name__} is unknown; "
            "effective_receptive_fields() measures any model"
        )
    return own(model, image_size, axis)


def convolutions_of(model: nn.Module) -> dict[str, list[Convolution]]:
    """Return the convolutions below every block and stage of a convolutional network, by name.

    Of parallel branches the widest is used. With the stride in the 3 x 3 convolution of a block, as
    here and in torchvision, a ResNet-50 sees 427 pixels at its end; with the stride in the 1 x 1
    before it, as in the paper, 483, since the 3 x 3 then acts on the smaller map.

    Raises:
        UserError: the model has no closed form: it uses attention, or weights channels by a mean
            over the image (EfficientNet).
    """
    steps = layer_steps(model)
    if not all(isinstance(step, Convolution) for path in steps.values() for step in path):
        raise UserError(
            f"{type(model).__name__} is not a stack of convolutions, so its receptive field has no "
            "closed form; use region() or effective_receptive_fields()"
        )
    return steps


def region(
    model: nn.Module,
    layer: str | int,
    image_size: int | tuple[int, int],
    unit: tuple[int, int] | None = None,
) -> tuple[slice, slice]:
    """Return the rows and columns of the image that a unit of a layer can depend on.

    Args:
        image_size: `(height, width)` in pixels.
        unit: `(row, column)` in the map; None: the one in the middle.

    Raises:
        UserError: unknown layer.
    """
    size, sides = validation.pair(image_size), []
    for axis, side in enumerate(size):
        steps = layer_steps(model, size, axis)
        path = steps[find_layer(list(steps), layer)]
        places = side
        for step in path:
            places = -(-places // step.stride)
        place = places // 2 if unit is None else unit[axis]
        if not 0 <= place < places:
            raise UserError(f"unit {unit}: layer {layer} has {places} positions along axis {axis}")
        first = last = place
        for step in reversed(path):
            first, last = step.seen(first, last)
        sides.append(slice(max(0, first), min(side, last + 1)))
    return tuple(sides)


# ------------------------------------------------------------------------------------------ helpers


def _map_shapes(model: nn.Module, variables: Mapping[str, Any], images: Array) -> dict[str, Any]:
    """Return the shapes of `feature_maps` in the order of the blocks; JAX sorts alphabetically."""
    names: list[str] = []

    def maps(variables, images):
        found = feature_maps(model, variables, images)
        names[:] = found
        return found

    shapes = jax.eval_shape(maps, variables, images)
    return {name: shapes[name] for name in names}


def _as_map(out: Array, grid: tuple[int, int]) -> Float[Array, "batch h w channels"]:
    """Return an output as a map of a grid, without prefix tokens."""
    if out.ndim == 4:
        return out
    patches = out[:, out.shape[1] - grid[0] * grid[1] :]
    return patches.reshape(len(out), *grid, out.shape[-1])


def _numbers(name: str) -> tuple[tuple[str, int], ...]:
    """Return a key that sorts `blocks_10` after `blocks_9`."""
    parts = (part.rpartition("_") for part in name.split("/"))
    return tuple((first, int(last) if last.isdigit() else -1) for first, _, last in parts)


def _find_unit(name: str, sides: tuple[int, int], unit: tuple[int, int] | None) -> tuple[int, int]:
    """Return the given unit, or the one in the middle."""
    if unit is None:
        return sides[0] // 2, sides[1] // 2
    if not all(0 <= place < side for place, side in zip(unit, sides, strict=True)):
        raise UserError(f"unit {unit}: layer {name} has a map of {sides[0]} x {sides[1]} units")
    return tuple(unit)


def _mass(field: Float[np.ndarray, "height width"]) -> tuple[np.ndarray, np.ndarray]:
    """Return a normalised field and each pixel's distances `(2, height, width)` from its centre."""
    weights = np.asarray(field, np.float64)
    if not weights.sum() > 0:
        raise UserError("a field without any gradient has no extent: the unit depends on no pixel")
    weights = weights / weights.sum()
    places = np.indices(weights.shape).astype(np.float64)
    centre = (weights * places).sum(axis=(1, 2))
    # A rounding error must not move one side of a symmetric field out of a square.
    return weights, np.abs(places - centre[:, None, None]).round(9)
