"""Matrix products of bfloat16 with float32 results, forward and backward.

- The fast units of GPUs and TPUs multiply bfloat16 numbers and add up in float32. JAX's own
  gradient of such a product multiplies the float32 cotangent with a bfloat16 operand, and such a
  pair is multiplied in float32, on slower units. Here the cotangent is rounded to bfloat16 first.
- bfloat16 has the range of float32, so rounding loses digits but does not overflow. float16 has a
  smaller range, and float32 gains nothing: both use the plain einsum.
- A softmax's rounded weights are not divided before their product with the values, forward or back
  (`mean_of_values`): at 197 tokens gradients of queries and keys are off by 0.24 % of their norm,
  as those of `jax.nn.dot_product_attention`, and by a third of its error where values have a mean.
- A function with a custom gradient has no forward-mode derivative: `jax.jvp` works in float32, and
  in every type on the result of `jax.grad`.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def einsum_float32(
    equation: str, x: Float[Array, "..."], y: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Return `jnp.einsum(equation, x, y)` in float32, whatever the type of `x` and `y`.

    Args:
        equation: explicit, as "ij,jk->ik"; every index of an operand is also in the other operand
            or in the result.

    Source: mixed-precision training, Micikevicius et al. 2018, section 3.3.
    """
    if x.dtype == y.dtype == jnp.bfloat16:
        return _einsum_bfloat16(equation, x, y)
    return _einsum(equation, x, y)


def _einsum(equation: str, x: Array, y: Array) -> Array:
    return jnp.einsum(equation, x, y, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _einsum_bfloat16(equation: str, x: Array, y: Array) -> Array:
    return _einsum(equation, x, y)


def _forward(equation: str, x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return _einsum(equation, x, y), (x, y)


def _backward(equation: str, operands: tuple[Array, Array], cotangent: Array) -> tuple[Array, ...]:
    x, y = operands
    operand_names, of_result = equation.split("->")
    of_x, of_y = operand_names.split(",")
    cotangent = cotangent.astype(x.dtype)
    to_x = _einsum(f"{of_result},{of_y}->{of_x}", cotangent, y)
    to_y = _einsum(f"{of_result},{of_x}->{of_y}", cotangent, x)
    return to_x.astype(x.dtype), to_y.astype(y.dtype)


_einsum_bfloat16.defvjp(_forward, _backward)


def mean_of_values(
    weights: Float[Array, "batch heads queries keys"],
    total: Float[Array, "batch heads queries 1"],
    v: Float[Array, "batch heads keys head_dim"],
) -> Float[Array, "batch heads queries head_dim"]:
    """Return float32 `weights @ v / total`; the weights are rounded to the type of `v` first.

    For bfloat16 the division follows the products in the backward pass too. The cotangent of a
    result that is rounded to bfloat16 next then enters the products unchanged, and the gradient of
    the weights is never rounded: softmax subtracts its mean, which would amplify the rounding.
    """
    if v.dtype == jnp.bfloat16:
        return _mean_bfloat16(weights, 1.0 / total, v)
    return _einsum("bhqk,bhkd->bhqd", weights.astype(v.dtype), v) / total


@jax.custom_vjp
def _mean_bfloat16(weights: Array, factor: Array, v: Array) -> Array:
    return _mean_forward(weights, factor, v)[0]


def _mean_forward(weights, factor, v):
    weights = weights.astype(v.dtype)
    summed = _einsum("bhqk,bhkd->bhqd", weights, v)
    return summed * factor, (weights, factor, v, summed)


def _mean_backward(saved, cotangent):
    weights, factor, v, summed = saved
    to_weights = factor * _einsum("bhqd,bhkd->bhqk", cotangent.astype(v.dtype), v)
    to_factor = (cotangent * summed).sum(axis=-1, keepdims=True)
    to_v = _einsum("bhqk,bhqd->bhkd", weights, (factor * cotangent).astype(v.dtype))
    return to_weights, to_factor, to_v.astype(v.dtype)


_mean_bfloat16.defvjp(_mean_forward, _mean_backward)
