"""Implementations of softmax attention, and the choice among them for a call.

| name | what it is | dropout | bias | weights |
|---|---|---|---|---|
| `xla` | two matrix products with a softmax between them | yes | yes | yes |
| `chunked` | `xla` by blocks of queries; memory linear in tokens | yes | yes | no |
| `cudnn` | NVIDIA's fused kernel | no | no | no |
| `pallas` | JAX's own fused kernels for GPUs and TPUs, on one device | no | no | no |

- Statistics are float32 whatever the compute type: bfloat16 keeps 8 bits, so logits of +-300 would
  be off by a whole unit, and float16 could overflow. Matrix products of bfloat16 give float32 and
  never take it, backward included (`products`).
- `xla` divides by the softmax's sum after the product with V. It is the same function to rounding,
  and it divides `tokens * head_dim` numbers instead of `tokens * tokens`. Measured on one CPU
  thread: about a fifth off the inference time of ViT-Ti/16; no difference that shows in training.
- `chunked` computes whole rows of the softmax, so it has no running maximum to correct and no key
  to mask, and equals `xla`. It saves q, k and v for the backward pass.
- The choice is made in Python, before tracing: a fused kernel that the device lacks fails during
  tracing, so the compiler cannot choose.
"""

import contextlib
import contextvars
import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Annotated

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.attention.products import einsum_float32, mean_of_values
from vit_jax.models.fields import Choice

IMPLEMENTATIONS = ("xla", "chunked", "cudnn", "pallas")
Implementation = Annotated[str, Choice("auto", *IMPLEMENTATIONS)]

# From this number of logits for one head of one image on, `auto` cuts queries into blocks: at 1,024
# tokens they take 4 MB in float32, and those of twelve heads exceed any cache.
MANY_LOGITS = 1024 * 1024
# Logits in one block of `chunked`, for one head of one image: a megabyte in float32.
BLOCK_LOGITS = 256 * 1024
# Tokens in a tile of JAX's fused kernels.
PALLAS_TILE = 128

# Implementations of a program for any device, see `portable`; empty: all of them.
_PORTABLE: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("portable", default=())


@dataclasses.dataclass(frozen=True)
class AttentionCall:
    """Properties of one call of `attention` that decide which implementations can serve it.

    queries, keys, head_dim, dtype: of q and k.
    backend: "cpu", "gpu" or "tpu".
    compute_capability: of an NVIDIA GPU, such as `(9, 0)`; None for any other device.
    bias, dropout, weights: whether the call has a bias, drops weights, returns weights.
    """

    queries: int
    keys: int
    head_dim: int
    dtype: str = "float32"
    backend: str = "cpu"
    compute_capability: tuple[int, int] | None = None
    bias: bool = False
    dropout: bool = False
    weights: bool = False


def choose_implementation(call: AttentionCall) -> tuple[str, str]:
    """Return the implementation that `auto` chooses for a call, and the reason in a few words."""
    obstacle = find_obstacle("cudnn", call)
    if obstacle is None:
        return "cudnn", "the fused kernel supports this device, type and head size"
    if call.weights:
        return "xla", "attention weights are requested"
    if call.queries * call.keys >= MANY_LOGITS:
        return "chunked", f"{call.queries} x {call.keys} logits for each head; {obstacle}"
    return "xla", obstacle


@contextlib.contextmanager
def portable(*, blocks: bool = True) -> Iterator[None]:
    """Context in which attention is what every device computes, whatever a model asks for.

    blocks: whether many tokens are computed by `chunked`, as on a CPU; its loop is nothing for
        every format of files.
    """
    token = _PORTABLE.set(("xla", "chunked") if blocks else ("xla",))
    try:
        yield
    finally:
        _PORTABLE.reset(token)


def portable_choice(implementation: str, call: AttentionCall) -> str:
    """Return the implementation of a call: the one asked for, unless the context needs another."""
    legal = _PORTABLE.get()
    if not legal or implementation in legal:
        return implementation
    anywhere = dataclasses.replace(call, backend="cpu", compute_capability=None)
    chosen, _ = choose_implementation(anywhere)
    return chosen if chosen in legal else "xla"


def find_obstacle(implementation: str, call: AttentionCall) -> str | None:
    """Return the reason why an implementation cannot serve a call; None if it can."""
    if implementation == "xla":
        return None
    if call.weights:
        return "only 'xla' returns attention weights"
    if implementation == "chunked":
        return None
    if implementation == "cudnn" and (call.compute_capability or (0, 0)) < (8, 0):
        return (
            f"it needs an NVIDIA GPU of compute capability 8.0 or more, the device is {_name(call)}"
        )
    if implementation == "pallas" and call.backend not in ("gpu", "tpu"):
        return f"it needs a GPU or TPU, the device is {_name(call)}"
    if call.dropout:
        return "it has no attention dropout"
    if call.bias:
        return "it takes no bias"
    if call.backend == "gpu" and call.dtype not in ("bfloat16", "float16"):
        return f"it computes in bfloat16 or float16, the model in {call.dtype}"
    if implementation == "cudnn" and (call.head_dim % 8 or call.head_dim > 128):
        return f"it needs a head_dim that is a multiple of 8 up to 128, got {call.head_dim}"
    if implementation == "pallas" and call.backend == "gpu" and call.queries > call.keys:
        return f"it takes no more queries than keys, got {call.queries} and {call.keys}"
    return None


def _name(call: AttentionCall) -> str:
    if call.compute_capability is None:
        return f"a {call.backend.upper()}"
    return "a GPU of compute capability {}.{}".format(*call.compute_capability)


def describe_device() -> dict[str, object]:
    """Return `backend` and `compute_capability` of JAX's device, as for `AttentionCall`.

    The device is `jax.config.jax_default_device` if set, else the default backend.
    """
    device = jax.config.jax_default_device
    if device is None or isinstance(device, str):
        device = jax.devices(device)[0]
    # "9.0" for NVIDIA; AMD's GPUs have a name instead, TPUs and CPUs nothing.
    version = re.fullmatch(r"(\d+)\.(\d+)", str(getattr(device, "compute_capability", "")))
    return {
        "backend": device.platform,
        "compute_capability": tuple(map(int, version.groups())) if version else None,
    }


def xla_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys heads head_dim"],
    v: Float[Array, "batch keys heads head_dim"],
    bias: Float[Array, "#batch #heads #queries #keys"] | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    return_weights: bool = False,
) -> tuple[
    Float[Array, "batch queries heads head_dim"], Float[Array, "batch heads queries keys"] | None
]:
    """Attention by two matrix products; returns the result, and the float32 weights on request.

    Dropout acts on the normalised weights: the sum is computed before dropping. Rows that a bias of
    -inf masks completely give zeros.
    """
    # Heads before tokens makes both products plain batched matrix products.
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    out, unnormalised, total = _attend(q, k, v, bias, dropout_rate, dropout_rng)
    return out.swapaxes(1, 2), unnormalised / total if return_weights else None


def chunked_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys heads head_dim"],
    v: Float[Array, "batch keys heads head_dim"],
    bias: Float[Array, "#batch #heads #queries #keys"] | None = None,
    dropout_rate: float = 0.0,
    dropout_rng: Array | None = None,
    block: int | None = None,
) -> Float[Array, "batch queries heads head_dim"]:
    """Attention by consecutive blocks of queries; only one block's logits are in memory.

    The backward pass recomputes them, block by block, so temporary memory grows with tokens and not
    with their square. The cost is a second product and the loop.

    Args:
        block: queries in a block; None: enough for `BLOCK_LOGITS` logits.

    Source: Rabe and Staats 2021, "Self-attention Does Not Need O(n^2) Memory", with whole rows of
    keys instead of chunks, which limits memory too because the block shrinks as keys grow.
    """
    batch, queries, heads, head_dim = q.shape
    blocks = math.ceil(queries / (block or max(BLOCK_LOGITS // k.shape[1], 16)))
    size = math.ceil(queries / blocks)  # blocks of one size, with little padding

    def into_blocks(x, axis):
        """Reshape `(..., queries, ...)` to `(blocks, ..., size, ...)`; padding rows are zero."""
        padding = [(0, 0)] * x.ndim
        padding[axis] = (0, blocks * size - queries)
        cut = jnp.pad(x, padding).reshape(*x.shape[:axis], blocks, size, *x.shape[axis + 1 :])
        return jnp.moveaxis(cut, axis, 0)

    by_block = {"q": into_blocks(q.swapaxes(1, 2), 2), "index": jnp.arange(blocks)}
    if bias is not None and bias.shape[2] > 1:
        by_block["bias"] = into_blocks(bias, 2)
    # Gradients of k and v are sums over blocks in the type of the values that the loop closes over,
    # so that type is float32; each block then computes in the type of the inputs.
    wide_k, wide_v = (x.swapaxes(1, 2).astype(jnp.float32) for x in (k, v))

    @jax.checkpoint
    def one_block(here):
        rng = None if dropout_rng is None else jax.random.fold_in(dropout_rng, here["index"])
        narrow_k, narrow_v = wide_k.astype(k.dtype), wide_v.astype(v.dtype)
        out, *_ = _attend(here["q"], narrow_k, narrow_v, here.get("bias", bias), dropout_rate, rng)
        return out

    out = jax.lax.map(one_block, by_block)  # (blocks, batch, heads, size, head_dim)
    out = jnp.moveaxis(out, 0, 2).reshape(batch, heads, blocks * size, head_dim)
    return out[:, :, :queries].swapaxes(1, 2)


def _attend(q, k, v, bias, dropout_rate, dropout_rng):
    """Return the result, the unnormalised weights and their sums, all with heads before tokens."""
    scale = q.shape[-1] ** -0.5
    logits = scale * einsum_float32("bhqd,bhkd->bhqk", q, k)
    if bias is not None:
        logits = logits + bias.astype(jnp.float32)
    # Subtracting the maximum only changes the range of exp; it needs no gradient.
    largest = jax.lax.stop_gradient(logits.max(axis=-1, keepdims=True))
    if bias is not None:  # in a row of only -inf, -inf minus -inf would be NaN
        largest = jnp.maximum(largest, jnp.finfo(jnp.float32).min)
    unnormalised = jnp.exp(logits - largest)
    total = unnormalised.sum(axis=-1, keepdims=True)
    if bias is not None:
        total = jnp.where(total > 0.0, total, 1.0)

    kept = unnormalised
    if dropout_rate > 0.0 and dropout_rng is not None:
        kept = drop_weights(unnormalised, dropout_rate, dropout_rng)
    return mean_of_values(kept, total, v).astype(v.dtype), unnormalised, total


def drop_weights(x: Array, rate: float, rng: Array) -> Array:
    """Set weights to zero with the probability `rate`, and divide the others by `1 - rate`."""
    if rate >= 1.0:
        return jnp.zeros_like(x)
    return jnp.where(jax.random.bernoulli(rng, 1.0 - rate, x.shape), x / (1.0 - rate), 0.0)


def cudnn_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys heads head_dim"],
    v: Float[Array, "batch keys heads head_dim"],
) -> Float[Array, "batch queries heads head_dim"]:
    """Attention by NVIDIA's cuDNN, through `jax.nn.dot_product_attention`."""
    return jax.nn.dot_product_attention(q, k, v, implementation="cudnn")


def pallas_attention(
    q: Float[Array, "batch queries heads head_dim"],
    k: Float[Array, "batch keys heads head_dim"],
    v: Float[Array, "batch keys heads head_dim"],
    backend: str,
    interpret: bool = False,
) -> Float[Array, "batch queries heads head_dim"]:
    """Attention by JAX's fused kernels for a backend, "gpu" or "tpu".

    Tokens are padded to whole tiles; segment ids mask the padding. The compiler cannot split these
    kernels over devices: several devices need a `jax.shard_map`.

    Tested by interpretation on a CPU only, never on a GPU or TPU.

    Args:
        interpret: run the GPU's kernel as plain operations, on any device, slowly. For the TPU's,
            use `jax.experimental.pallas.tpu.force_tpu_interpret_mode`.

    Source: Dao et al. 2022, "FlashAttention".
    """
    if backend == "gpu":
        return _pallas_gpu(q, k, v, interpret)
    return _pallas_tpu(q, k, v)


def _pallas_gpu(q, k, v, interpret):
    from jax.experimental.pallas.ops.gpu.attention import mha

    # Queries and keys share one array of segment ids, so both are padded to one length.
    tokens = k.shape[1]
    segments = jnp.broadcast_to(_segments(tokens), (len(q), _whole_tiles(tokens)))
    padded = (_pad_to_tiles(x, tokens) for x in (q, k, v))
    out = mha(*padded, segments, sm_scale=q.shape[-1] ** -0.5, interpret=interpret)
    return out[:, : q.shape[1]]


def _pallas_tpu(q, k, v):
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds, flash_attention

    queries, keys = q.shape[1], k.shape[1]
    segments = SegmentIds(
        q=jnp.broadcast_to(_segments(queries), (len(q), _whole_tiles(queries))),
        kv=jnp.broadcast_to(_segments(keys), (len(q), _whole_tiles(keys))),
    )
    padded = (_pad_to_tiles(x, x.shape[1]).swapaxes(1, 2) for x in (q, k, v))
    out = flash_attention(*padded, segment_ids=segments, sm_scale=q.shape[-1] ** -0.5)
    return out.swapaxes(1, 2)[:, :queries]


def _whole_tiles(tokens: int) -> int:
    return math.ceil(tokens / PALLAS_TILE) * PALLAS_TILE


def _segments(tokens: int) -> Array:
    """Return 1 for each token, 0 for padding."""
    return (jnp.arange(_whole_tiles(tokens)) < tokens).astype(jnp.int32)


def _pad_to_tiles(x: Array, tokens: int) -> Array:
    return jnp.pad(x, ((0, 0), (0, _whole_tiles(tokens) - x.shape[1]), (0, 0), (0, 0)))
