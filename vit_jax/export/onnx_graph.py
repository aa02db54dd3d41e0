"""Changes of an ONNX graph after it was traced."""

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx

_BEHIND = ["Unsqueeze", "Unsqueeze", "Squeeze"]


def with_plain_pools(model: "onnx.ModelProto") -> "onnx.ModelProto":
    """Return a graph whose maxima of windows are over the two axes of an image.

    jax2onnx writes them over all four axes (batch, h, w, c) behind two new ones, with windows of
    (1, height, width, 1), which onnxruntime does not compute. It does compute (batch, c, h, w).
    """
    from onnx import helper

    makers = {name: node for node in model.graph.node for name in node.output}
    users = {name: node for node in model.graph.node for name in node.input}
    replaced: dict[str, list[onnx.NodeProto]] = {}  # by the first output of a node
    for node in model.graph.node:
        about = _attributes(node)
        kernel = about.get("kernel_shape", ())
        if node.op_type != "MaxPool" or len(kernel) != 4 or {kernel[0], kernel[3]} != {1}:
            continue
        inner, after = makers[node.input[0]], users[node.output[0]]
        outer = makers[inner.input[0]]
        if [one.op_type for one in (outer, inner, after)] != _BEHIND:
            continue
        stem, pads = node.output[0], about.get("pads", [0] * 8)
        window = {name: about[name][1:3] for name in ("kernel_shape", "strides")}
        window["pads"] = [pads[axis] for axis in (1, 2, 5, 6)]  # begins of the axes, then ends
        replaced |= {one.output[0]: [] for one in (outer, inner, node)}
        replaced[after.output[0]] = [
            helper.make_node("Transpose", outer.input[:1], [f"{stem}_in"], perm=[0, 3, 1, 2]),
            helper.make_node("MaxPool", [f"{stem}_in"], [f"{stem}_out"], **window),
            helper.make_node("Transpose", [f"{stem}_out"], after.output, perm=[0, 2, 3, 1]),
        ]
    nodes = [one for node in model.graph.node for one in replaced.get(node.output[0], [node])]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _attributes(node: "onnx.NodeProto") -> Mapping[str, Any]:
    from onnx import helper

    return {one.name: helper.get_attribute_value(one) for one in node.attribute}


def with_plain_products(model: "onnx.ModelProto") -> "onnx.ModelProto":
    """Return a graph whose products of two matrices are `MatMul`, which quantization knows.

    jax2onnx writes them as `Gemm`, with a third matrix that it multiplies by 0.
    """
    from onnx import helper

    for node in model.graph.node:
        about = _attributes(node)
        turned = about.get("transA", 0) or about.get("transB", 0)
        plain = about.get("alpha", 1.0) == 1.0 and not turned
        if node.op_type == "Gemm" and plain and about.get("beta", 1.0) == 0.0:
            product = helper.make_node("MatMul", node.input[:2], node.output, node.name)
            node.CopyFrom(product)
    return model


def with_short_names(model: "onnx.ModelProto") -> "onnx.ModelProto":
    """Return a graph without names of nodes and shapes of values, which a small file feels."""
    kept = {one.name for one in (*model.graph.input, *model.graph.output)} | {""}
    kept |= _inner_names(model.graph)
    short: dict[str, str] = {name: name for name in kept}
    free = (name for number in itertools.count() if (name := f"{number:x}") not in kept)

    def renamed(name: str) -> str:
        return short.get(name) or short.setdefault(name, next(free))

    for tensor in model.graph.initializer:
        tensor.name = renamed(tensor.name)
    for node in model.graph.node:
        for field in ("name", "doc_string", "metadata_props"):
            node.ClearField(field)
        for names in (node.input, node.output):
            names[:] = [renamed(name) for name in names]
    del model.graph.value_info[:]
    return model


def with_known_shapes(model: "onnx.ModelProto") -> "onnx.ModelProto":
    """Return a graph that computes no shapes where only the number of images is unknown.

    The new shape of a `Reshape` is then a constant with -1 in one place, instead of six nodes. An
    `Expand` to the shape that its operand has is left out.
    """
    import numpy as np
    from onnx import numpy_helper

    graph = model.graph
    shapes = {one.name: _shape(one) for one in (*graph.input, *graph.value_info, *graph.output)}
    outputs, same = {one.name for one in graph.output} | _inner_names(graph), dict[str, str]()
    constants: dict[tuple[int, ...], str] = {}
    for node in graph.node:
        node.input[:] = [same.get(name, name) for name in node.input]
        shape = shapes.get(node.output[0]) if node.output else None
        if shape is None:
            continue
        if node.op_type == "Expand" and shapes.get(node.input[0]) == shape:
            same |= {} if node.output[0] in outputs else {node.output[0]: node.input[0]}
        elif node.op_type == "Reshape" and sum(isinstance(side, str) for side in shape) <= 1:
            sides = tuple(-1 if isinstance(side, str) else side for side in shape)
            node.input[1] = constants.setdefault(sides, f"shape_{len(constants)}")
    for sides, name in constants.items():
        graph.initializer.append(numpy_helper.from_array(np.array(sides, np.int64), name))
    nodes = [node for node in graph.node if node.output[0] not in same]
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _inner_names(graph: "onnx.GraphProto") -> set[str]:
    """Return the names of values in the graphs inside its nodes, such as the body of a loop."""
    inner = [one.g for node in graph.node for one in node.attribute if one.HasField("g")]
    names = {name for body in inner for node in body.node for name in (*node.input, *node.output)}
    return names.union(*({one.name for one in body.output} | _inner_names(body) for body in inner))


def _shape(value: "onnx.ValueInfoProto") -> tuple[int | str, ...] | None:
    """Return the shape of a value; None if a side of it is unknown."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    sides = [side.dim_param or side.dim_value for side in value.type.tensor_type.shape.dim]
    return tuple(sides) if all(sides) else None
