"""Base of models with a head on the features of a backbone: segmentation, depth, detection.

    class Brightness(DenseModel):
        gives: ClassVar[str] = "depth"

        def setup(self):
            super().setup()
            self.head = nn.Dense(1)

        def __call__(self, images, *, train=False):
            features = self.backbone(images, train=train, method="features")
            ...

- The backbone is a registered model without its own head. Its parameters are those of
  `create_model(backbone_name)`, under `backbone/`, so that its published weights fit.
- `backbone_fields` are fields of it, such as `{"drop_path": 0.1}`.
"""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

from flax import linen as nn
from flax.core import FrozenDict

from vit_jax.errors import nearest, shown
from vit_jax.models.description.blocks import BlockInfo, blocks_of_part
from vit_jax.models.description.receptive import Steps
from vit_jax.models.description.roles import Roles, model_roles
from vit_jax.models.features import Features
from vit_jax.models.fields import Checked, Classes, Count, DtypeName, Size, pair
from vit_jax.models.tokens.fields import check_all_tokens

CLASSES, SEGMENTATION, DEPTH, DETECTION = "classes", "segmentation", "depth", "detection"
OWN_FIELDS = (
    "num_classes",
    "image_size",
    "in_channels",
    "dtype",
)  # of the model, not of its backbone's fields


def gives(model: Any) -> str:
    """Return what a model, or a class of models, gives: "classes" unless it says otherwise."""
    return getattr(model, "gives", CLASSES)


class DenseModel(Checked):
    """Model of a backbone and a head.

    Parameters: `backbone`, and those of the head beside it.

    A subclass says what it `gives` and the roles of its head's parameters (`head_roles`).

    Raises:
        ValueError: at construction if there is no such backbone, or it has no such field.
    """

    num_classes: Classes = 1000
    image_size: Size = 224
    in_channels: Count = 3
    backbone_name: str = "ViT-B/16"
    backbone_fields: Mapping[str, Any] = FrozenDict()
    dtype: DtypeName = "float32"  # of the computation; parameters and outputs are always float32

    gives: ClassVar[str] = CLASSES

    def __post_init__(self):
        if not isinstance(self.backbone_fields, Mapping):
            raise ValueError(
                f"{type(self).__name__}: backbone_fields={shown(self.backbone_fields)} must be "
                'names with values, such as {"drop_path": 0.1}.'
            )
        object.__setattr__(self, "backbone_fields", frozen_fields(self.backbone_fields))
        super().__post_init__()
        check_all_tokens(self.make_backbone(), f"{type(self).__name__} reads those of every patch")

    def setup(self):
        self.backbone = self.make_backbone()

    def make_backbone(self) -> nn.Module:
        """Return the module of the backbone, without a head of its own."""
        fields = dict(self.backbone_fields)
        for name in OWN_FIELDS:
            if name in fields:
                raise ValueError(
                    f"{type(self).__name__}: backbone_fields has {name!r}, which is a field of the "
                    f"model itself; set {name} in its place."
                )
        own = (_hashable(self.image_size), self.in_channels, self.dtype)
        return _make(self.backbone_name, *own, **fields)

    def features(self, images: Any, *, train: bool = False, **asked: Any) -> Features:
        """Return the features of the backbone."""
        return self.backbone.features(images, train=train, **asked)

    @property
    def patch_size(self) -> int | tuple[int, int]:
        """Pixels (height, width) of a patch of the backbone; 1 if it has none."""
        return getattr(self.make_backbone(), "patch_size", 1)

    def head_roles(self) -> Roles:
        """Return the roles of the parameters beside the backbone, in the order of the forward."""
        raise NotImplementedError

    @property
    def of_classes(self) -> tuple[str, ...]:
        """Paths of the parameters that belong to the classes, such as "head/classifier".

        A run that starts from weights with other classes begins with new ones.
        """
        return ()

    def roles(self) -> Roles:
        """Return the roles of the parameters, in the order of the forward pass."""
        return {"backbone": model_roles(self.make_backbone()), **self.head_roles()}

    def block_infos(self, image_size: Size | None = None) -> tuple[BlockInfo, ...]:
        """Return the blocks of the backbone; `image_size` in pixels, None: the model's own."""
        size = None if image_size is None else pair(image_size)
        return blocks_of_part("backbone", self.make_backbone(), size)

    def receptive_steps(self, image_size: Size | None = None, axis: int = 0) -> Steps:
        """Return the steps to every block's output."""
        steps = self.make_backbone().receptive_steps(image_size, axis)
        return {f"backbone/{path}": of_block for path, of_block in steps.items()}


@functools.lru_cache(maxsize=64)
def _make(name: str, image_size: Any, in_channels: int, dtype: str, **fields: Any) -> nn.Module:
    from vit_jax.models.registry import create_model, model_fields  # which know all models

    known = model_fields(name)
    for field in fields:
        if field not in known:
            raise ValueError(
                f"backbone_fields: {name} has no field {shown(field)}{nearest(field, known)}; "
                "docs/models.md lists them."
            )
    if "dtype" in known:
        fields["dtype"] = dtype
    elif dtype != "float32":
        raise ValueError(f"{name} has no dtype={dtype!r}; it computes in float32 only.")
    return create_model(
        name, num_classes=0, image_size=image_size, in_channels=in_channels, parent=None, **fields
    )


def frozen_fields(fields: Mapping[str, Any]) -> FrozenDict:
    """Return fields that can be hashed: lists, as JSON has them, become tuples."""
    return FrozenDict({name: _hashable(value) for name, value in fields.items()})


def _hashable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return frozen_fields(value)
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
