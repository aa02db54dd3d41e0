"""Operations that a target cannot take: which one it is, and in which layer of the model.

Libraries raise various errors for such an operation. The equation at which they stopped is in their
traceback; what only fails afterwards, such as a call of Python, is searched for in the program.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import JaxprEqn, jaxprs_in_params

from vit_jax.errors import UserError

_OF_PYTHON = "callback"  # in the names of operations that call Python
_LONGEST = 200  # characters of another library's message


def export_error(
    target: str, error: Exception, function: Callable[..., Any], specs: Sequence[Any]
) -> UserError:
    """Return a user error that names the operation at which an export stopped, and its layer.

    Args:
        target: in words. error: what the library raised.
        function, specs: what was exported, and shapes of its arguments.
    """
    found = _equation_of(error) or next(_calls_of_python(function, specs), None)
    reason = (str(error).strip() or type(error).__name__).split("\n")[0][:_LONGEST]
    if found is None:
        return UserError(f"the model cannot be exported as {target}: {reason}")
    operation, layer = found
    where = f" of the layer {layer}" if layer else ""
    return UserError(
        f"{target} cannot take the operation {operation!r}{where} ({reason}); compute it there by "
        "other operations of JAX, or choose another target"
    )


def _equation_of(error: BaseException) -> tuple[str, str] | None:
    """Return operation and layer of the innermost equation in a traceback."""
    layers, operation, trace = [], None, error.__traceback__
    while trace is not None:
        equation = trace.tb_frame.f_locals.get("eqn")
        if isinstance(equation, JaxprEqn):
            operation = equation.primitive.name
            layers.append(str(equation.source_info.name_stack))
        trace = trace.tb_next
    return None if operation is None else (operation, _layer(layers))


def _calls_of_python(
    function: Callable[..., Any], specs: Sequence[Any]
) -> Iterator[tuple[str, str]]:
    try:
        program = jax.make_jaxpr(function)(*specs)
    except Exception:  # the first error says more
        return
    for equation, layers in equations(program.jaxpr):
        if _OF_PYTHON in equation.primitive.name:
            yield equation.primitive.name, _layer(layers)


def equations(jaxpr: Any, layers: tuple[str, ...] = ()) -> Iterator[tuple[JaxprEqn, list[str]]]:
    """Yield all equations of a program, also inner ones, each with the names of its layers."""
    for equation in jaxpr.eqns:
        path = [*layers, str(equation.source_info.name_stack)]
        yield equation, path
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner, path)


def _layer(layers: Sequence[str]) -> str:
    """Return the path of a layer, such as `ViT/blocks_3/mlp`, without the names of transforms."""
    names = "/".join(filter(None, layers)).split("/")
    return "/".join(name for name in names if name and "(" not in name)
