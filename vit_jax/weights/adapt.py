"""Adaptation of trained parameters to another image or patch size, other channels or classes.

    adapted = adapt(params, trained_model, model)

Parameters of equal shape are kept bit for bit. Four changes are possible, and each is listed:
position tables, as in a model's `position_tables`, are resized from grid to grid with the method
that belongs to the weights; the patch kernel is resized to another patch size by a pseudo-inverse
(`layers/patch_resize.py`), and summed or repeated over channels; and heads with another number of
classes are zero (the 2020 paper, section 3.2), so that fine-tuning begins with equal probabilities.
Any other difference is an error.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Array, Float

from vit_jax.errors import UserError
from vit_jax.models.description import Role, describe, model_roles
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.layers.patch_resize import PAPER_METHOD, resize_patch_kernel
from vit_jax.models.positions.tables import PositionTable, resize_positions
from vit_jax.models.stacking import match_layout, unstack_blocks
from vit_jax.models.validation import pair

_MOST_LISTED, _FEW = 60, 6
_LOW_RANK = (Role.LOW_RANK_DOWN, Role.LOW_RANK_UP)


@dataclass(frozen=True)
class Adapted:
    """Adapted parameters of a model, with the changes.

    fresh: newly initialised paths: heads with zeros, low-rank updates with a product of zero.
    resized: paths whose numbers were resampled, cut, summed or repeated. left_out: paths of the
    trained model that the new model does not have. model_state: other collections, unchanged.
    modules: parameters of other modules of the task. untrained: names of those that are new.
    """

    params: dict[str, Any]
    fresh: tuple[str, ...]
    resized: tuple[str, ...]
    left_out: tuple[str, ...]
    model_state: dict[str, Any] = field(default_factory=dict)
    modules: dict[str, Any] = field(default_factory=dict)
    untrained: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the changes to the parameters as a sentence."""
        parts = {
            "new": self.fresh,
            "resampled, cut, summed or repeated": self.resized,
            "skipped": self.left_out,
        }
        said = [f"{what}: {_listed(paths)}" for what, paths in parts.items() if paths]
        if self.untrained:
            alone = "" if self.modules else "they are those of the model alone, and "
            said.append(
                f"{alone}the task's other modules are untrained: {', '.join(self.untrained)}"
            )
        return "; ".join(said) or "no changes"


def adapt(params: Any, trained: Any, model: Any, *, fresh_head: bool = False) -> Adapted:
    """Adapt the parameters of one model to another, with blocks stacked or not as in that model.

    Args:
        params: parameters of the trained model.
        trained: the trained module.
        model: the new module.
        fresh_head: whether to initialise heads anew even if their shape is equal, because the
            classes differ.

    Raises:
        UserError: the models differ in more than image size, patch size, channels and classes; the
            message has the paths and both shapes.
    """
    old = flatten_dict(unstack_blocks(params), sep="/")
    wanted = abstract_variables(model)["params"]
    shapes = flatten_dict(unstack_blocks(wanted), sep="/")
    described = describe(unstack_blocks(wanted), model_roles(model))
    heads = {_module_of(path) for path, one in described.items() if one.role is Role.HEAD}
    new, fresh, resized, wrong = {}, [], [], []
    begin = getattr(model, "starts_from", dict)()  # what weights of another class lack
    for path, leaf in shapes.items():
        shape, role = leaf.shape, described[path].role
        is_head = _module_of(path) in heads
        if is_head and (fresh_head or path not in old or old[path].shape != shape):
            new[path] = np.zeros(shape, np.float32)
            fresh.append(path)
        elif role in _LOW_RANK and path not in old:
            new[path] = _fresh_low_rank(path, shape, role)
            fresh.append(path)
        elif path not in old and path in begin:
            source = begin[path]
            fresh.append(path)
            if source != path:  # its own path: a run begins with its own initial value
                new[path] = np.zeros(shape, np.float32) if source is None else old[source]
        elif path not in old and path == "pos_embed" and _has_fixed_table(trained, shape):
            new[path] = _learned_from_fixed(trained, _table_of(path, model))
            fresh.append(path)
        elif path not in old:
            wrong.append((path, f"{path} {shape} is not in the weights"))
        elif tables := _tables_to_resize(path, trained, model):
            new[path] = _resized_table(old[path], *tables)
            resized += [path] if tables[0].grid != tables[1].grid else []
        elif (kernel := _changed_kernel(old[path], shape, role, trained, model)) is not None:
            new[path] = kernel
            resized.append(path)
        elif old[path].shape != shape:
            both = f"{old[path].shape} in the weights and {shape} in the model"
            wrong.append((path, f"{path} is {both}"))
        else:
            new[path] = old[path]
    if wrong:
        # The patch embedding is the most informative.
        wrong.sort(key=lambda one: described[one[0]].block is not None)
        more = f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""
        sentences = "; ".join(sentence for _, sentence in wrong[:4])
        raise UserError(f"the weights do not fit the model: {sentences}{more}")
    nested = unflatten_dict(new, sep="/")
    left_out = tuple(path for path in old if path not in shapes)
    nested = match_layout(nested, like=wanted)
    return Adapted(nested, tuple(fresh), tuple(resized), left_out)


def change_channels(
    kernel: Float[Array, "height width channels out"], channels: int
) -> Float[np.ndarray, "height width other out"]:
    """Return a patch kernel for images with another number of channels.

    For one channel the kernels are summed: the result for a grey image equals that for equal red,
    green and blue. For other numbers they are repeated in order and scaled by the ratio of the
    numbers, so that the result for equal channels is unchanged if whole sets are repeated, and
    nearly unchanged otherwise ("inflation", as in timm).
    """
    kernel = np.asarray(kernel)
    old = kernel.shape[2]
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    repeated = kernel[:, :, np.arange(channels) % old]
    return repeated * np.float32(old / channels)


def padding_note(model: Any) -> str | None:
    """Return a note on converted weights whose windows do not fill the maps; None if they do.

    Other libraries let tokens attend to the padding, which is masked here.
    """
    windows = getattr(model, "block_windows", dict)()
    padded = [path for path, cut in windows.items() if cut.padded != cut.grid]
    if not padded:
        return None
    height, width = pair(model.image_size)
    return (
        f"at {height} x {width} pixels windows do not fill the map in {len(padded)} of "
        f"{len(windows)} blocks; the padding is masked here, but other libraries let tokens attend "
        "to it, so that outputs differ from theirs by some percent"
    )


def merge_lora(params: Any) -> Any:
    """Merge low-rank updates (LoRA) into their kernels.

    A model without `lora_rank` then computes the same.
    """
    flat = flatten_dict(params, sep="/")
    for path in [path for path in flat if path.endswith("_lora/down")]:
        name = path.removesuffix("_lora/down")
        down, up = flat.pop(path), flat.pop(f"{name}_lora/up")
        kernel = flat[f"{name}/kernel"]
        # Stacked blocks have a leading axis in all three.
        stacked = down.ndim == 3
        added = (jax.vmap(_product) if stacked else _product)(down, up)
        flat[f"{name}/kernel"] = np.asarray(kernel + added.reshape(kernel.shape))
    return unflatten_dict(flat, sep="/")


def _listed(paths: tuple[str, ...]) -> str:
    """Return the paths in a sentence; of very many the first few."""
    if len(paths) <= _MOST_LISTED:
        return ", ".join(paths)
    return f"{', '.join(paths[:_FEW])} and {len(paths) - _FEW:,} more"


def _product(down: Array, up: Array) -> Array:
    flat = jnp.asarray(up).reshape(up.shape[0], -1)
    return jnp.matmul(down, flat, precision=jax.lax.Precision.HIGHEST)


def _module_of(path: str) -> str:
    return path.rpartition("/")[0]


def _fresh_low_rank(path: str, shape: tuple[int, ...], role: Role) -> np.ndarray:
    """Return zeros for `up`, and deterministic numbers of variance 1 / width for `down`."""
    if role is Role.LOW_RANK_UP:
        return np.zeros(shape, np.float32)
    rng = np.random.default_rng(list(path.encode()))
    return (shape[0] ** -0.5 * rng.normal(size=shape)).astype(np.float32)


def _tables_to_resize(
    path: str, trained: Any, model: Any
) -> tuple[PositionTable, PositionTable] | None:
    """Return both models' position tables at a path; None if it cannot be resized."""
    tables = _table_of(path, trained), _table_of(path, model)
    if None in tables or tables[0].prefix != tables[1].prefix:
        return None
    return tables


def _table_of(path: str, model: Any) -> PositionTable | None:
    return getattr(model, "position_tables", {}).get(path)


def _resized_table(table: Array, source: PositionTable, target: PositionTable) -> np.ndarray:
    """Resize a table `(1, rows, width)`, or `(rows, heads)` of relative positions."""
    resized = resize_positions(
        jnp.asarray(table).reshape(1, -1, table.shape[-1]),
        source.grid,
        target.grid,
        prefix=source.prefix,
        kernel=source.kernel,
    )
    return np.asarray(resized).reshape(*table.shape[:-2], -1, table.shape[-1])


def _has_fixed_table(trained: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a model has a computed table of positions, of the width of a shape."""
    return getattr(trained, "positions", None) == "sincos2d" and trained.pos_channels == shape[-1]


def _learned_from_fixed(trained: Any, target: PositionTable) -> np.ndarray:
    """Return the computed table of a model as a learned one; zeros for tokens without a place."""
    table = trained.position_table()
    table = resize_positions(table, trained.built_grid, target.grid, kernel=target.kernel)
    return np.pad(np.asarray(table), ((0, 0), (target.prefix, 0), (0, 0)))


def _changed_kernel(
    kernel: Array, shape: tuple[int, ...], role: Role, trained: Any, model: Any
) -> np.ndarray | None:
    """Return the kernel of the first convolution for other channels or patches.

    None if it differs from the shape in neither, or in anything else.
    """
    old = kernel.shape
    if len(old) != 4 or len(shape) != 4 or old[3] != shape[3] or old == shape:
        return None
    other_channels, other_patch = old[2] != shape[2], old[:2] != shape[:2]
    if other_channels and (old[2], shape[2]) != (trained.in_channels, model.in_channels):
        return None
    if other_patch and role is not Role.PATCH_EMBEDDING:
        return None
    if other_patch:
        method = _patch_resize(trained, model)
        kernel = np.asarray(resize_patch_kernel(kernel, shape[:2], method))
    return change_channels(kernel, shape[2]) if other_channels else kernel


def _patch_resize(trained: Any, model: Any) -> str:
    """Return the method of a patch kernel's resize: that of the models, or of the origin.

    timm resizes kernels like positions, by antialiased bicubic interpolation; all others follow the
    paper.
    """
    own = (getattr(one, "patch_resize", None) for one in (trained, model))
    timms = "torch-bicubic-antialias"
    by_origin = timms if getattr(trained, "pos_resize", None) == timms else PAPER_METHOD
    return next(filter(None, own), by_origin)
