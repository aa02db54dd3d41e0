"""Depth from one image: DPT (Ranftl et al. 2021), and Depth Anything V2 (Yang et al. 2024).

- DPT-Hybrid reads two maps of a ResNet and two blocks of the ViT on it, as `stages` and `blocks`.
- Both others read the outputs of four blocks of a ViT by the neck of DPT (`neck`), and end in three
  convolutions. DPT joins the class token to the patches; Depth Anything V2 drops it, and reads the
  blocks through the encoder's final norm.
- What comes out has the size of the images. `max_depth` or `scale_shift` makes it a depth in
  metres; without either it is an inverse depth that is known up to a factor and a shift, as of all
  models trained on many datasets: larger is nearer.
- Fusion always takes a map to the size of the next finer one. transformers' DPT doubles it instead,
  which is the same where the sides of the grid are even, as in all published sizes.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.errors import shown
from vit_jax.models.dense import DEPTH, DenseModel
from vit_jax.models.depth.neck import CONV, Neck, Readout
from vit_jax.models.description.roles import Roles
from vit_jax.models.features import Features
from vit_jax.models.fields import Classes, Count, Counts, Positive, Size
from vit_jax.models.layers.convolutions import conv, torch_linear
from vit_jax.models.layers.resize import resize_map

_LEAST_INVERSE = 1e-8  # of what `scale_shift` makes, before it is inverted; isl-org/DPT
LEVELS = 4


class DPT(DenseModel):
    """Dense prediction transformer for depth; the defaults are DPT-L/16 at 384 pixels.

    `model.apply({"params": params}, images)` takes float32 images `(batch, height, width,
    channels)`, already normalised, and gives float32 `(batch, height, width)`: an inverse depth of
    at least 0, up to a factor and a shift, or a depth in metres.

    Parameters: `backbone`, `neck/{reassemble_{i}, conv_{i}, fuse_{i}}`, and the convolutions
    `head_conv1`, `head_conv2`, `head_conv3`.

    Raises:
        ValueError: at construction if fields do not fit each other or the backbone, at the call if
            the images do not fit the backbone.
    """

    num_classes: Classes = 0  # not used: there are no classes
    image_size: Size = 384
    backbone_name: str = "ViT-L/16"  # a ViT
    blocks: tuple[int, ...] = (5, 11, 17, 23)  # that are read, from 0; one may be there twice
    stages: tuple[int, ...] = ()  # of a hybrid's ResNet, whose maps come before those of blocks
    normed: bool = False  # whether their outputs pass the backbone's final norm
    readout: Readout = "project"  # of the class token; "ignore" needs none
    widths: Counts = (256, 512, 1024, 1024)  # channels of the maps of the blocks
    fusion_width: Count = 256  # channels of the fused maps
    head_width: Count = 32  # channels before the last convolution
    max_depth: Positive | None = None  # in metres: the output is a sigmoid times it
    # Factor and shift of the inverse depth, whose inverse is the output.
    scale_shift: tuple[float, ...] | None = None

    gives: ClassVar[str] = DEPTH

    def __post_init__(self):
        super().__post_init__()
        _check_fields(self)

    def setup(self):
        super().setup()
        self.neck = Neck(self.widths, self.fusion_width, self.readout, self.dtype)
        layer = {"bias": True, "init": torch_linear, "dtype": self.dtype}
        self.head_conv1 = conv(max(self.fusion_width // 2, 1), 3, **layer)
        self.head_conv2 = conv(self.head_width, 3, **layer)
        # The last layer computes in float32 whatever the others do.
        self.head_conv3 = conv(1, 1, bias=True, init=torch_linear)

    def __call__(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Float[Array, "batch height width"]:
        """Return the depth of every pixel, or its inverse."""
        asked = {"stages": self.stages} if self.stages else {}
        features = self.features(images, train=train, blocks=self.blocks, **asked)
        if self.normed:
            normed = tuple(self.backbone.norm(x) for x in features.blocks)
            features = features.replace(blocks=normed)
        return self.decode(features, images.shape[1:3], train=train)

    def decode(
        self, features: Features, size: tuple[int, int], *, train: bool = False
    ) -> Float[Array, "batch height width"]:
        """Return the depth of every pixel from the features of the backbone, with their `blocks`.

        size: (height, width) of the images.
        """
        del train  # nothing here is random
        if self.stages and features.stages is None:
            raise ValueError(
                f"{type(self).__name__}: stages={shown(self.stages)} need the maps of the ResNet "
                "among the features, which UniversalViT does not ask for; use stages=() there."
            )
        maps = features.stages if self.stages else ()
        levels = (*maps, *features.blocks)
        x = self.head_conv1(self.neck(levels, features.grid, features.prefix))
        x = jax.nn.relu(self.head_conv2(resize_map(x, tuple(size))))
        x = self.head_conv3(x.astype(jnp.float32))[..., 0]
        if self.max_depth is not None:
            return self.max_depth * jax.nn.sigmoid(x)
        x = jax.nn.relu(x)
        if self.scale_shift is None:
            return x
        scale, shift = self.scale_shift
        return 1 / jnp.maximum(scale * x + shift, _LEAST_INVERSE)

    @property
    def is_relative(self) -> bool:
        """True for an output that is an inverse depth up to a factor and a shift, not a depth."""
        return self.max_depth is None and self.scale_shift is None

    @property
    def task_options(self) -> dict[str, str]:
        """Fields of the task `depth` that the outputs ask for."""
        return {"kind": "affine"} if self.is_relative else {}

    def head_roles(self) -> Roles:
        """Return the roles of the parameters beside the backbone, in the order of the forward."""
        return {"neck": Neck.ROLES, **{f"head_conv{i}": CONV for i in (1, 2, 3)}}


def _check_fields(model: DPT) -> None:
    """Raise ValueError for fields that do not fit each other or the backbone."""
    name, backbone = type(model).__name__, model.make_backbone()
    if not hasattr(backbone, "built_grid") or not hasattr(backbone, "num_prefix_positions"):
        raise ValueError(
            f"{name}: the backbone {model.backbone_name} gives no outputs of blocks; use a ViT, "
            "such as 'ViT-B/16'."
        )
    for field, count in (("widths", LEVELS), ("blocks", LEVELS - len(model.stages))):
        if len(getattr(model, field)) != count:
            raise ValueError(
                f"{name}: {field}={shown(getattr(model, field))} must be {count} numbers, one for "
                f"each map{' that is no stage' if model.stages and field == 'blocks' else ''}."
            )
    _check_stages(model, backbone)
    for i, block in enumerate(model.blocks):
        if not 0 <= block < backbone.depth:
            raise ValueError(
                f"{name}: blocks[{i}]={block} is no block of {model.backbone_name}, whose numbers "
                f"are 0 to {backbone.depth - 1}."
            )
    if backbone.scan_layers:
        raise ValueError(
            f"{name}: backbone_fields has scan_layers=True, a loop that gives no outputs of single "
            "blocks; use scan_layers=False."
        )
    if model.readout != "ignore" and not backbone.has_class_token:
        raise ValueError(
            f"{name}: readout={model.readout!r} needs a class token, which the backbone "
            f"{model.backbone_name} has not; use readout='ignore', or the backbone field "
            "class_token=True."
        )
    if model.max_depth is not None and model.scale_shift is not None:
        raise ValueError(
            f"{name}: max_depth={model.max_depth} and scale_shift={shown(model.scale_shift)} are "
            "two ways to a depth in metres; set one of them to None."
        )
    if model.scale_shift is not None and len(model.scale_shift) != 2:
        raise ValueError(
            f"{name}: scale_shift={shown(model.scale_shift)} must be two numbers: a factor and a "
            "shift of the inverse depth."
        )


def _check_stages(model: DPT, backbone: Any) -> None:
    """Raise ValueError for stages that the backbone has not, or whose maps have other widths."""
    if not model.stages:
        return
    name, units = type(model).__name__, getattr(backbone, "stem_units", ())
    if any(not 0 <= stage < len(units) for stage in model.stages):
        raise ValueError(
            f"{name}: stages={shown(model.stages)} are not those of the backbone "
            f"{model.backbone_name}, which has {len(units)}; use a hybrid such as 'R50+ViT-B/16', "
            "or stages=()."
        )
    channels = tuple(backbone.stage_channels(stage) for stage in model.stages)
    if model.widths[: len(channels)] != channels:
        raise ValueError(
            f"{name}: widths={shown(model.widths)} must begin with {shown(channels)}, the channels "
            f"of the maps of stages={shown(model.stages)}."
        )
