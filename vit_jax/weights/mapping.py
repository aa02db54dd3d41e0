"""Tables that map our parameters to names and layouts of another library.

A row maps a path of ours to one or more names of theirs; `{i}` is the number of a block, or of a
stage whose blocks are `{j}`.

    Row("blocks_{i}/attn/qkv/kernel", "blocks.{i}.attn.qkv.weight", QKV_KERNEL)
    Row("stages_{i}/blocks_{j}/norm1/scale", "layers.{i}.blocks.{j}.norm1.weight", SAME)

The same rows are used for reading and writing. If a library has used several layouts, a path has
several rows: the first one whose names are in the file is read, and the first of all is written. A
layout only moves numbers, so that reading and writing again is exact bit for bit.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jaxtyping import Shaped

from vit_jax.errors import UserError
from vit_jax.weights.io.safety import show

Tensors = Mapping[str, Shaped[np.ndarray, "..."]]
Shape = tuple[int, ...]

SHOWN = 5  # names in a message; the rest is counted


@dataclass(frozen=True)
class Layout:
    """Correspondence between their arrays and ours.

    read: from their arrays and the shape of ours to our array.
    write: from our array to theirs, with methods that NumPy and JAX arrays share: JAX traces it to
        compute the expected shapes in a file.
    """

    read: Callable[[list[np.ndarray], Shape], np.ndarray]
    write: Callable[[Any], list[Any]]


@dataclass(frozen=True)
class Row:
    """Row of a table: an array of ours and their tensors with the same numbers.

    ours: path such as `blocks_{i}/norm1/scale`; paths of other collections begin with it, as in
    `batch_stats/norm/mean`. theirs: their names, in the layout's order.
    """

    ours: str
    theirs: str | tuple[str, ...]
    layout: Layout

    @functools.cached_property
    def pattern(self) -> re.Pattern:
        """Regular expression of the paths of this row."""
        pattern = re.escape(self.ours)
        for letter in "ij":
            pattern = pattern.replace(rf"\{{{letter}\}}", rf"(?P<{letter}>\d+)")
        return re.compile(pattern)

    def has(self, name: str) -> bool:
        """Return whether a name of theirs is one of this row, in any block."""
        theirs = (self.theirs,) if isinstance(self.theirs, str) else self.theirs
        patterns = (re.sub(r"\\\{[ij]\\\}", r"\\d+", re.escape(one)) for one in theirs)
        return any(re.fullmatch(pattern, name) for pattern in patterns)

    def names(self, path: str) -> list[str] | None:
        """Return their names for a path of ours; None if the row does not match it."""
        match = self.pattern.fullmatch(path)
        if match is None:
            return None
        theirs = (self.theirs,) if isinstance(self.theirs, str) else self.theirs
        names = list(theirs)
        for letter, number in match.groupdict().items():
            names = [name.replace(f"{{{letter}}}", number) for name in names]
        return names


@dataclass(frozen=True)
class Reading:
    """Result of `read_params`.

    params: the arrays found, as nested dictionaries of float32.
    missing: paths of ours without a tensor.
    left_over: their names without a row.
    """

    params: dict[str, Any]
    missing: tuple[str, ...]
    left_over: tuple[str, ...]


def read_params(rows: Sequence[Row], tensors: Tensors, shapes: Any) -> Reading:
    """Convert the tensors of a file to parameters of a model.

    Args:
        rows: the table of the library that wrote the file.
        tensors: name to array.
        shapes: the model's variables as returned by `joined`, unstacked; arrays or their shapes.

    Raises:
        UserError: shapes differ, with the names and both shapes; or numbers are not floats.
    """
    params, missing, used, wrong = {}, [], set(), []
    for path, leaf in flatten_dict(shapes, sep="/").items():
        found = _find(rows, path, tensors)
        if found is None:
            missing.append(path)
            continue
        row, names = found
        used.update(names)
        expected = expected_shapes(row, leaf.shape)
        arrays = [tensors[name] for name in names]
        bad = [
            f"{name} has shape {array.shape} and should have {shape}"
            for name, array, shape in zip(names, arrays, expected, strict=True)
            if array.shape != shape
        ]
        wrong += bad
        if not bad:
            params[path] = row.layout.read([_floats(tensors, name) for name in names], leaf.shape)
    if wrong:
        raise UserError(f"the tensors do not fit the model: {summarize(wrong)}")
    left_over = tuple(name for name in tensors if name not in used)
    return Reading(unflatten_dict(params, sep="/"), tuple(missing), left_over)


def write_tensors(rows: Sequence[Row], params: Any) -> dict[str, np.ndarray]:
    """Convert parameters to the contiguous tensors of another library.

    Args:
        rows: the table of that library.
        params: of one of our models as returned by `joined`, unstacked.

    Raises:
        UserError: the library has no name for some of the parameters.
    """
    tensors, homeless = {}, []
    for path, leaf in flatten_dict(params, sep="/").items():
        row = next((row for row in rows if row.names(path)), None)
        if row is None:
            homeless.append(path)
            continue
        arrays = row.layout.write(np.asarray(leaf))
        for name, array in zip(row.names(path), arrays, strict=True):
            tensors[name] = np.asarray(array, order="C")
    if homeless:
        raise UserError(
            f"{summarize(homeless)} cannot be written: that library has no names for it"
        )
    return tensors


def joined(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Join the collections of a model to one tree: its parameters, and others under their names."""
    others = {name: tree for name, tree in variables.items() if name != "params"}
    return {**variables["params"], **others}


def apart(tree: Mapping[str, Any], collections: Iterable[str]) -> dict[str, Any]:
    """Split a tree of `joined` into its collections."""
    others = {name: tree[name] for name in collections if name != "params"}
    params = {name: value for name, value in tree.items() if name not in others}
    return {"params": params, **others}


def expected_shapes(row: Row, shape: Shape) -> list[Shape]:
    """Return the shapes of their tensors for a parameter of ours of this shape."""
    leaf = jax.ShapeDtypeStruct(shape, np.float32)
    return [array.shape for array in jax.eval_shape(row.layout.write, leaf)]


def summarize(names: Sequence[str]) -> str:
    """Return the first few names and the number of others; unusual letters are escaped."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = [
        name if name.isprintable() and len(name) < 200 else show(name) for name in names[:SHOWN]
    ]
    return ", ".join(shown) + more


def _find(rows: Sequence[Row], path: str, tensors: Tensors) -> tuple[Row, list[str]] | None:
    for row in rows:
        names = row.names(path)
        if names and all(name in tensors for name in names):
            return row, names
    return None


def _floats(tensors: Tensors, name: str) -> np.ndarray:
    array = tensors[name]
    if not jnp.issubdtype(array.dtype, jnp.floating):  # bfloat16 and float8 too
        raise UserError(f"{name} has {array.dtype}, but parameters must be floating-point numbers")
    return array.astype(np.float32)


# ------------------------------------------------------------------------------------- the layouts


def _one(read: Callable[[np.ndarray, Shape], np.ndarray], write: Callable[[Any], Any]) -> Layout:
    """Return the layout of one tensor of theirs and one of ours."""
    return Layout(lambda arrays, shape: read(arrays[0], shape), lambda x: [write(x)])


# Norm scales, biases, tokens and tables of equal shape.
SAME = _one(lambda x, shape: x, lambda x: x)

# A table of theirs without the axis of the batch that ours has in front.
TABLE = _one(lambda x, shape: x.reshape(shape), lambda x: x[0])

# A linear layer's weight (out, in) of torch, and our kernel (in, out).
LINEAR = _one(lambda x, shape: x.T, lambda x: x.T)

# A convolution's weight (out, in, height, width) of torch, and our kernel (height, width, in, out).
CONV = _one(lambda x, shape: x.transpose(2, 3, 1, 0), lambda x: x.transpose(3, 2, 0, 1))

# A transposed convolution's weight (in, out, height, width) of torch, and the kernel of `Enlarge`.
TRANSPOSED_CONV = _one(lambda x, shape: x.transpose(2, 3, 0, 1), lambda x: x.transpose(2, 3, 0, 1))

# Concatenated q, k and v, (3 * heads * head_dim, in), and our kernel (in, 3, heads, head_dim).
QKV_KERNEL = _one(
    lambda x, shape: x.T.reshape(shape), lambda x: x.reshape(x.shape[0], -1).transpose(1, 0)
)
QKV_BIAS = _one(lambda x, shape: x.reshape(shape), lambda x: x.reshape(-1))

# The projection after attention, (out, heads * head_dim), and our kernel (heads, head_dim, out).
OUT_KERNEL = _one(
    lambda x, shape: x.T.reshape(shape), lambda x: x.reshape(-1, x.shape[-1]).transpose(1, 0)
)

# Separate q, k and v, each a linear layer of torch.
SPLIT_QKV_KERNEL = Layout(
    lambda arrays, shape: np.stack([x.T for x in arrays], axis=1).reshape(shape),
    lambda x: [x[:, i].reshape(x.shape[0], -1).transpose(1, 0) for i in range(3)],
)
SPLIT_QKV_BIAS = Layout(
    lambda arrays, shape: np.stack(arrays).reshape(shape),
    lambda x: [x[i].reshape(-1) for i in range(3)],
)

# Separate biases of q and v, of attention whose keys have none, (2, heads, head_dim) here.
QV_BIAS = Layout(
    lambda arrays, shape: np.stack(arrays).reshape(shape),
    lambda x: [x[i].reshape(-1) for i in range(2)],
)

# Separate q, k and v of linen: (in, heads, head_dim) and (heads, head_dim).
LINEN_QKV_KERNEL = Layout(
    lambda arrays, shape: np.stack(arrays, axis=1), lambda x: [x[:, i] for i in range(3)]
)
LINEN_QKV_BIAS = Layout(lambda arrays, shape: np.stack(arrays), lambda x: [x[i] for i in range(3)])

# Separate q and concatenated k and v, as in timm's attention pooling and PVT.
Q_AND_KV_KERNEL = Layout(
    lambda arrays, shape: np.concatenate(arrays).T.reshape(shape),
    lambda x: [
        x[:, :1].reshape(x.shape[0], -1).transpose(1, 0),
        x[:, 1:].reshape(x.shape[0], -1).transpose(1, 0),
    ],
)
Q_AND_KV_BIAS = Layout(
    lambda arrays, shape: np.concatenate(arrays).reshape(shape),
    lambda x: [x[:1].reshape(-1), x[1:].reshape(-1)],
)

# Separate gate and value of a gated MLP, here side by side.
GATE_AND_VALUE_KERNEL = Layout(
    lambda arrays, shape: np.concatenate(arrays).T,
    lambda x: [half.transpose(1, 0) for half in x.reshape(x.shape[0], 2, -1).transpose(1, 0, 2)],
)
GATE_AND_VALUE_BIAS = Layout(
    lambda arrays, shape: np.concatenate(arrays), lambda x: list(x.reshape(2, -1))
)


def rows_without(rows: Iterable[Row], parts: Sequence[str]) -> tuple[Row, ...]:
    """Return the rows none of whose names of theirs has one of these parts."""
    return tuple(row for row in rows if not any(part in str(row.theirs) for part in parts))


def linear(ours: str, theirs: str, kernel: Layout = LINEAR) -> tuple[Row, Row]:
    """Return the rows of a layer with torch's names of weight and bias."""
    return (
        Row(f"{ours}/kernel", f"{theirs}.weight", kernel),
        Row(f"{ours}/bias", f"{theirs}.bias", SAME),
    )


def joint_attention(ours: str, theirs: str) -> tuple[Row, ...]:
    """Return the rows of an attention that is torch's `MultiheadAttention`."""
    return (
        Row(f"{ours}/qkv/kernel", f"{theirs}.in_proj_weight", QKV_KERNEL),
        Row(f"{ours}/qkv/bias", f"{theirs}.in_proj_bias", QKV_BIAS),
        *linear(f"{ours}/out", f"{theirs}.out_proj", OUT_KERNEL),
    )


def split_attention(ours: str, theirs: str) -> tuple[Row, ...]:
    """Return the rows of an attention whose projections are four layers: `q_proj`, `out_proj`."""
    weights, biases = (
        tuple(f"{theirs}.{one}_proj.{part}" for one in "qkv") for part in ("weight", "bias")
    )
    return (
        Row(f"{ours}/qkv/kernel", weights, SPLIT_QKV_KERNEL),
        Row(f"{ours}/qkv/bias", biases, SPLIT_QKV_BIAS),
        *linear(f"{ours}/out", f"{theirs}.out_proj", OUT_KERNEL),
    )


def gated(ours: str, gate: str, value: str) -> tuple[Row, Row]:
    """Return the rows of the first layer of a gated MLP that is two layers of torch."""
    return (
        Row(f"{ours}/kernel", (f"{gate}.weight", f"{value}.weight"), GATE_AND_VALUE_KERNEL),
        Row(f"{ours}/bias", (f"{gate}.bias", f"{value}.bias"), GATE_AND_VALUE_BIAS),
    )


def layer_norm(ours: str, theirs: str) -> tuple[Row, Row]:
    """Return the rows of a LayerNorm with torch's names of scale and bias."""
    return (
        Row(f"{ours}/scale", f"{theirs}.weight", SAME),
        Row(f"{ours}/bias", f"{theirs}.bias", SAME),
    )
