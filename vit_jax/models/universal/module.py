"""One backbone with a head for each task: classes, segmentation, depth, detection.

    model = create_model(
        "UniversalViT",
        num_classes=10,
        backbone_name="ViT-S/16",
        task_heads={
            "segmentation": {"model": "Segmentation", "decoder": "mask", "num_classes": 11},
            "depth": {"model": "DPT", "blocks": (2, 5, 8, 11), "widths": (48, 96, 192, 384),
                      "max_depth": 10},
            "detection": {"model": "DETR", "num_classes": 10, "queries": 20},
        },
    )
    model.apply(variables, images, task="depth")       # (batch, height, width)
    model.apply(variables, images)                     # all of them by name, the backbone run once

A head is that of a registered dense model, so it is one with the same backbone: `part("depth")` is
that model, and `part_variables(variables, "depth")` are its variables.
"""

import functools
from collections.abc import Mapping
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import linen as nn
from flax.core import FrozenDict
from jaxtyping import Array, Float

from vit_jax.errors import nearest, shown
from vit_jax.models.dense import CLASSES, DenseModel, frozen_fields, gives
from vit_jax.models.description.roles import Role, Roles, kernel_and_bias
from vit_jax.models.features import Features
from vit_jax.models.fields import Classes

CLASSIFICATION = "classification"
SEVERAL = "several"
_SHARED = ("image_size", "in_channels", "backbone_name", "backbone_fields", "dtype")
_DEFAULT = {
    "segmentation": {"model": "Segmentation", "num_classes": 150},
    "depth": {"model": "DPT-B/16"},
    "detection": {"model": "DETR", "num_classes": 91},
}


class UniversalViT(DenseModel):
    """Backbone with a head for each task; by default all four on ViT-B/16.

    `model.apply(variables, images, task=NAME)` takes float32 images `(batch, height, width,
    channels)`, already normalised, and gives what the model of that head gives: logits `(batch,
    classes)`, logits of pixels `(batch, height, width, classes)`, depth `(batch, height, width)` or
    `Detections`. Without a task it gives all of them by name.

    Parameters: `backbone`, and `head_{name}` for each head, those of its model beside a backbone.

    num_classes: of the head `classification`, a dense layer of the pooled features; 0: there is
        none.
    task_heads: for each further head by name the registered `model` and the fields in which it
        differs.

    Raises:
        ValueError: at construction, for a head of no dense model, a field that it does not have, or
            one that all heads share.
    """

    num_classes: Classes = 1000
    task_heads: Mapping[str, Mapping[str, Any]] = FrozenDict(_DEFAULT)

    gives: ClassVar[str] = SEVERAL

    def __post_init__(self):
        if not isinstance(self.task_heads, Mapping) or not all(
            isinstance(fields, Mapping) for fields in self.task_heads.values()
        ):
            raise ValueError(
                f"UniversalViT: task_heads={shown(self.task_heads)} must be names with the fields "
                'of each head, such as {"depth": {"model": "DPT-B/16"}}.'
            )
        object.__setattr__(self, "task_heads", frozen_fields(self.task_heads))
        super().__post_init__()
        if not self.task_names:
            raise ValueError("UniversalViT: there are no heads; set num_classes or task_heads.")
        for name in self.task_heads:
            _check_name(name)
            self.part(name)

    def setup(self):
        super().setup()
        for name in self.task_heads:
            setattr(self, f"head_{name}", self.part(name))
        if self.num_classes:
            self.head_classification = nn.Dense(self.num_classes)

    @property
    def task_names(self) -> tuple[str, ...]:
        """Names of the heads."""
        return (CLASSIFICATION,) * bool(self.num_classes) + tuple(self.task_heads)

    def __call__(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        task: str | None = None,
        train: bool = False,
    ) -> Any:
        """Return what the head of a task gives; without a task, those of all by name."""
        if task is not None and task not in self.task_names:
            raise ValueError(
                f"UniversalViT: there is no head {shown(task)}{nearest(task, self.task_names)}; it "
                f"has {', '.join(self.task_names)}."
            )
        names = self.task_names if task is None or self.is_initializing() else (task,)
        numbers = self._blocks(names)
        features = self.features(images, train=train, blocks=numbers)
        blocks = dict(zip(numbers, features.blocks or (), strict=True))
        found = {}
        for name in names:
            found[name] = self._decode(name, features, blocks, images.shape[1:3], train=train)
        return found if task is None else found[task]

    def features(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        blocks: tuple[int, ...] = (),
        **asked: Any,
    ) -> Features:
        """Return the features of the backbone, with the outputs of some blocks of a ViT."""
        asked |= {"blocks": blocks} if blocks else {}
        return super().features(images, train=train, **asked)

    def part(self, name: str) -> nn.Module:
        """Return the model of one task: the same backbone with one head.

        Raises ValueError if there is no such head, or its fields are wrong.
        """
        if name == CLASSIFICATION and self.num_classes:
            return self.make_backbone().clone(num_classes=self.num_classes, parent=None)
        if name not in self.task_heads:
            raise ValueError(
                f"UniversalViT: there is no head {shown(name)}{nearest(name, self.task_names)}; it "
                f"has {', '.join(self.task_names)}."
            )
        shared = {field: getattr(self, field) for field in _SHARED}
        return _part(name, self.task_heads[name], frozen_fields(shared))

    def part_variables(self, variables: Mapping[str, Any], name: str) -> dict[str, Any]:
        """Return the variables of `part(name)` among those of this model."""
        head = f"head_{name}"
        found = {}
        for collection, tree in variables.items():
            if name == CLASSIFICATION:
                own = {"head": tree[head]} if head in tree else {}
                found[collection] = {**tree.get("backbone", {}), **own}
            else:
                own = {"backbone": tree["backbone"]} if "backbone" in tree else {}
                found[collection] = {**own, **tree.get(head, {})}
        return {collection: tree for collection, tree in found.items() if tree}

    def head_roles(self) -> Roles:
        """Return the roles of the parameters beside the backbone, in the order of the forward."""
        roles: dict[str, Any] = {
            f"head_{name}": self.part(name).head_roles() for name in self.task_heads
        }
        if self.num_classes:
            roles["head_classification"] = kernel_and_bias(Role.HEAD)
        return roles

    @property
    def of_classes(self) -> tuple[str, ...]:
        """Paths of the parameters that belong to classes."""
        paths = [
            f"head_{name}/{path}" for name in self.task_heads for path in self.part(name).of_classes
        ]
        return (*paths, "head_classification")

    def _blocks(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Return the blocks whose outputs the heads read, each once."""
        read = [getattr(self.part(name), "blocks", ()) for name in names if name in self.task_heads]
        return tuple(dict.fromkeys(number for numbers in read for number in numbers))

    def _decode(
        self,
        name: str,
        features: Features,
        blocks: Mapping[int, Array],
        size: tuple[int, int],
        *,
        train: bool,
    ) -> Any:
        """Return what a head gives. blocks: outputs of blocks of the backbone by number."""
        if name == CLASSIFICATION:
            return self.head_classification(features.pooled.astype(jnp.float32))
        head = getattr(self, f"head_{name}")
        own = tuple(blocks[number] for number in getattr(head, "blocks", ()))
        return head.decode(features.replace(blocks=own or None), size, train=train)


@functools.lru_cache(maxsize=64)
def _part(name: str, fields: Mapping[str, Any], shared: Mapping[str, Any]) -> nn.Module:
    from vit_jax.models.registry import create_model, get_preset

    where = f"UniversalViT: task_heads[{name!r}]"
    own = dict(fields)
    model = own.pop("model", None)
    if model is None:
        raise ValueError(f'{where} has no "model"; name one such as Segmentation, DPT or DETR.')
    architecture = get_preset(model).architecture
    if gives(architecture) in (CLASSES, SEVERAL) or not hasattr(architecture, "decode"):
        raise ValueError(
            f"{where}: {model} has no head that reads features; use Segmentation, DPT, DETR or a "
            "name of their kinds."
        )
    if twice := sorted(set(own) & set(_SHARED)):
        raise ValueError(f"{where} has {twice[0]!r}, which all heads share; set it on the model.")
    return create_model(model, parent=None, **{**own, **shared})


def _check_name(name: str) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name == CLASSIFICATION:
        raise ValueError(
            f"UniversalViT: {shown(name)} is no name of a head; use letters, digits and '_', and "
            "num_classes for classification."
        )
