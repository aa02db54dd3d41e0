"""One Vision Transformer in this library, in timm and in plain linen, from the same weights.

- Weights are drawn once, in this library's layout, and converted by the two tables below; equal
  outputs show that the tables, and therefore the comparison, are right.
- The plain linen ViT is what a user writes with linen's own layers, without optimisation.
- All compute exact GELU, LayerNorm with epsilon 1e-6, and no dropout.

torch and timm are imported only when needed: they are optional (`pip install -e .[parity]`).
"""

import importlib.util
import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from vit_jax.errors import UserError
from vit_jax.models import ViT
from vit_jax.models.summary.cost import cost

OURS, PLAIN, TIMM, COMPILED = "vit_jax", "plain", "timm", "compiled"
PEERS = {
    OURS: "this library",
    PLAIN: "plain linen",
    TIMM: "timm, eager",
    COMPILED: "timm, torch.compile",
}

Params = dict[str, np.ndarray]  # by path, such as `blocks_0/attn/qkv/kernel`


class Case(NamedTuple):
    """Model and batch size of a comparison.

    fields: of this library's `ViT`, also used by the timm and plain models below.
    """

    name: str
    batch: int
    image_size: int
    patch_size: int
    width: int
    depth: int
    heads: int
    in_channels: int = 3
    num_classes: int = 10
    dtype: str = "float32"

    @property
    def fields(self) -> dict[str, Any]:
        """Return the keyword arguments of this library's `ViT`."""
        return {key: value for key, value in self._asdict().items() if key not in ("name", "batch")}

    def model(self) -> ViT:
        """Return the model of this library."""
        return ViT(**self.fields)

    def flops(self) -> int:
        """Return the FLOPs of one forward pass of the batch (two per multiply-add)."""
        return self.batch * cost(self.model()).flops

    def pixels(self) -> np.ndarray:
        """Return the batch as uint8 pixels `(batch, height, width, channels)`; always the same."""
        shape = (self.batch, self.image_size, self.image_size, self.in_channels)
        return np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)

    def images(self) -> np.ndarray:
        """Return the batch as float32 from -1 to 1."""
        return self.pixels().astype(np.float32) / 127.5 - 1

    def labels(self) -> np.ndarray:
        """Return the class of each image; always the same."""
        return np.random.default_rng(1).integers(self.num_classes, size=self.batch)

    def params(self) -> Params:
        """Return random weights, also in place of initial zeros and ones; always the same."""
        rng = np.random.default_rng(2)
        image = jax.ShapeDtypeStruct(
            (1, self.image_size, self.image_size, self.in_channels), jnp.float32
        )
        shapes = jax.eval_shape(lambda x: self.model().init(jax.random.key(0), x), image)
        return {
            path: _draw(rng, path, leaf.shape)
            for path, leaf in flatten_dict(shapes["params"], sep="/").items()
        }


def _draw(rng: np.random.Generator, path: str, shape: tuple[int, ...]) -> np.ndarray:
    normal = rng.standard_normal(shape, dtype=np.float32)
    if path.endswith("scale"):
        return 1 + np.float32(0.1) * normal
    if not path.endswith("kernel"):
        return np.float32(0.1) * normal
    features = shape[1:] if path.endswith("qkv/kernel") else shape[-1:]
    return normal / np.float32(math.sqrt(normal.size / math.prod(features)))


# ------------------------------------------------------------------------------- the same in timm


def _reversed_axes(kernel: np.ndarray) -> np.ndarray:
    return kernel.T


def _rows_of_features(kernel: np.ndarray) -> np.ndarray:
    return kernel.reshape(len(kernel), -1).T


def _rows_of_width(kernel: np.ndarray) -> np.ndarray:
    return kernel.reshape(-1, kernel.shape[-1]).T


def _flat(bias: np.ndarray) -> np.ndarray:
    return bias.reshape(-1)


def _same(array: np.ndarray) -> np.ndarray:
    return array


# Name here, name in timm, and layout in timm: torch stores a linear layer's weight as
# (out, in), a convolution's as (out, in, height, width), and q, k, v stacked along `out`.
_TIMM_WHOLE = {
    "cls_token": ("cls_token", _same),
    "pos_embed": ("pos_embed", _same),
    "patch_embed/kernel": ("patch_embed.proj.weight", lambda k: k.transpose(3, 2, 0, 1)),
    "patch_embed/bias": ("patch_embed.proj.bias", _same),
    "norm/scale": ("norm.weight", _same),
    "norm/bias": ("norm.bias", _same),
    "head/kernel": ("head.weight", _reversed_axes),
    "head/bias": ("head.bias", _same),
}
_TIMM_BLOCK = {
    "norm1/scale": ("norm1.weight", _same),
    "norm1/bias": ("norm1.bias", _same),
    "attn/qkv/kernel": ("attn.qkv.weight", _rows_of_features),
    "attn/qkv/bias": ("attn.qkv.bias", _flat),
    "attn/out/kernel": ("attn.proj.weight", _rows_of_width),
    "attn/out/bias": ("attn.proj.bias", _same),
    "norm2/scale": ("norm2.weight", _same),
    "norm2/bias": ("norm2.bias", _same),
    "mlp/fc1/kernel": ("mlp.fc1.weight", _reversed_axes),
    "mlp/fc1/bias": ("mlp.fc1.bias", _same),
    "mlp/fc2/kernel": ("mlp.fc2.weight", _reversed_axes),
    "mlp/fc2/bias": ("mlp.fc2.bias", _same),
}


def timm_params(params: Params) -> Params:
    """Convert this library's parameters to the state dict of timm's `VisionTransformer`."""
    state = {}
    for path, array in params.items():
        block, _, rest = path.partition("/")
        if block.startswith("blocks_"):
            name, turned = _TIMM_BLOCK[rest]
            name = f"blocks.{block.removeprefix('blocks_')}.{name}"
        else:
            name, turned = _TIMM_WHOLE[path]
        state[name] = np.ascontiguousarray(turned(array))
    return state


def timm_vit(case: Case) -> Any:
    """Create timm's model, a torch module, with the weights of the case."""
    import torch

    timm = import_timm()
    model = timm.models.VisionTransformer(
        img_size=case.image_size,
        patch_size=case.patch_size,
        in_chans=case.in_channels,
        num_classes=case.num_classes,
        embed_dim=case.width,
        depth=case.depth,
        num_heads=case.heads,
        norm_layer=partial(torch.nn.LayerNorm, eps=1e-6),
    )
    state = timm_params(case.params())
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    return model


def import_torchvision() -> Any:
    """Import torchvision even if its compiled operators do not load, as beside a CPU torch.

    It fails while it registers shapes for missing operators; ignoring those registrations is
    enough, since no model here uses them.
    """
    import torch

    register = torch.library.register_fake

    def register_unless_torchvision(name, *args, **kwargs):
        if isinstance(name, str) and name.startswith("torchvision::"):
            return lambda function: function
        return register(name, *args, **kwargs)

    torch.library.register_fake = register_unless_torchvision
    try:
        import torchvision
    finally:
        torch.library.register_fake = register
    return torchvision


def import_timm() -> Any:
    """Import timm, which imports torchvision: see `import_torchvision`."""
    import_torchvision()
    import timm

    return timm


def check_installed(peers: list[str]) -> None:
    """Raise UserError if a peer needs torch or timm and they are not installed."""
    wanted = [peer for peer in peers if peer in (TIMM, COMPILED)]
    missing = [name for name in ("torch", "timm") if importlib.util.find_spec(name) is None]
    if wanted and missing:
        raise UserError(
            f"{' and '.join(missing)} cannot be imported, but the peer {wanted[0]!r} needs it; "
            "install the peers with `pip install -e .[parity]`, or compare only with plain "
            "linen: --peers plain"
        )


# ------------------------------------------------------------------------ the same in plain linen


class PlainViT(nn.Module):
    """ViT from linen's own layers, written as in linen's documentation."""

    patch_size: int
    width: int
    depth: int
    heads: int
    num_classes: int

    @nn.compact
    def __call__(self, x):
        patch = (self.patch_size, self.patch_size)
        x = nn.Conv(self.width, patch, strides=patch, padding="VALID", name="embedding")(x)
        x = x.reshape(len(x), -1, self.width)
        cls = self.param("cls", nn.initializers.zeros, (1, 1, self.width))
        x = jnp.concatenate([jnp.tile(cls, (len(x), 1, 1)), x], axis=1)
        positions = nn.initializers.normal(0.02)
        x = x + self.param("pos_embedding", positions, (1, x.shape[1], self.width))
        for i in range(self.depth):
            y = nn.LayerNorm(name=f"norm1_{i}")(x)
            x = x + nn.MultiHeadDotProductAttention(self.heads, name=f"attention_{i}")(y)
            y = nn.LayerNorm(name=f"norm2_{i}")(x)
            y = nn.Dense(4 * self.width, name=f"fc1_{i}")(y)
            y = nn.gelu(y, approximate=False)
            x = x + nn.Dense(self.width, name=f"fc2_{i}")(y)
        x = nn.LayerNorm(name="norm")(x)[:, 0]
        return nn.Dense(self.num_classes, name="head")(x)


_PLAIN_WHOLE = {"cls_token": "cls", "pos_embed": "pos_embedding", "patch_embed": "embedding"}
_PLAIN_BLOCK = {
    "norm1": "norm1_{}",
    "attn/out": "attention_{}/out",
    "norm2": "norm2_{}",
    "mlp/fc1": "fc1_{}",
    "mlp/fc2": "fc2_{}",
}


def plain_params(params: Params) -> dict[str, Any]:
    """Convert this library's parameters to those of `PlainViT`: other names, separate q, k, v."""
    flat = {}
    for path, array in params.items():
        module, _, leaf = path.rpartition("/")
        block, _, rest = module.partition("/")
        if not block.startswith("blocks_"):
            name = _PLAIN_WHOLE.get(module or leaf, module)
            flat[f"{name}/{leaf}" if module else name] = array
            continue
        number = block.removeprefix("blocks_")
        if rest == "attn/qkv":
            thirds = np.moveaxis(array, -3, 0)  # kernel (width, 3, heads, head_dim), or its bias
            for name, third in zip(("query", "key", "value"), thirds, strict=True):
                flat[f"attention_{number}/{name}/{leaf}"] = third
        else:
            flat[f"{_PLAIN_BLOCK[rest].format(number)}/{leaf}"] = array
    return unflatten_dict(flat, sep="/")


def plain_vit(case: Case) -> tuple[PlainViT, dict[str, Any]]:
    """Return the model and its parameters."""
    model = PlainViT(case.patch_size, case.width, case.depth, case.heads, case.num_classes)
    return model, plain_params(case.params())


# -------------------------------------------------------------------------- the matrix-product peak


def product_rate(peer: str, case: Case) -> Callable[[], float]:
    """Return a function that measures FLOP/s of one product of large matrices in the peer.

    Utilisation is relative to it: no model can exceed it on the same machine.
    """
    side = 8192 if case.dtype == "bfloat16" else 2048  # an accelerator needs larger matrices
    if peer in (TIMM, COMPILED):
        import torch

        left = torch.ones(side, side)

        def product():
            torch.mm(left, left)
    else:
        left = jnp.ones((side, side), case.dtype)
        multiply = jax.jit(jnp.dot)

        def product():
            multiply(left, left).block_until_ready()

    product()

    def rate() -> float:
        start = time.perf_counter()
        product()
        return 2 * side**3 / (time.perf_counter() - start)

    return rate
