"""YOLOS: a plain ViT that finds objects with tokens of its own ("You Only Look at One Sequence",
Fang et al. 2021).

- Detection tokens go through the blocks of the ViT beside the patches; two small networks read a
  class and a box from each. There is no decoder and no pyramid.
- They stand behind the prefix tokens and before the patches, which changes nothing: attention has
  no order. Each has a position of its own, that is a second vector.
- The larger published models add a further table of positions behind every block but the last,
  `mid_positions`. Tables are resized to the grid of the images.
"""

import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from vit_jax.models.attention.multi_head import Attention
from vit_jax.models.block import run_blocks
from vit_jax.models.dense import DETECTION, DenseModel
from vit_jax.models.description.roles import Role, Roles
from vit_jax.models.detection.heads import Detections, MlpHead
from vit_jax.models.features import Features
from vit_jax.models.fields import Classes, Count
from vit_jax.models.initializers import INIT_SCHEMES
from vit_jax.models.positions.tables import PositionTable, resize_positions
from vit_jax.models.vit.module import ViT


class YOLOS(DenseModel):
    """ViT with detection tokens; gives `Detections`.

    Parameters beside the backbone: `det_tokens` and `det_positions (1, queries, width)`,
    `class_head` and `box_head`, and with `mid_positions` tables `mid_positions_{i} (1, tokens,
    width)`, rows in the order of the tokens.

    `method="features"` gives `Features` whose prefix tokens include the detection tokens.

    Raises:
        ValueError: at construction, for a backbone that is no plain ViT, or whose blocks take
            positions of the patches alone.

    Source: Fang et al. 2021, and transformers' `YolosForObjectDetection`.
    """

    num_classes: Classes = 91
    backbone_name: str = "DeiT-Ti/16"
    queries: Count = 100  # detection tokens: the most objects that are found
    mid_positions: bool = False

    gives: ClassVar[str] = DETECTION

    def __post_init__(self):
        super().__post_init__()
        backbone = self.make_backbone()
        plain = isinstance(backbone, ViT) and backbone.attention_class is Attention
        if not plain or backbone.distilled:
            raise ValueError(
                f"YOLOS: backbone_name={self.backbone_name!r} has no place for detection tokens; "
                "use a ViT that is not distilled, such as 'DeiT-Ti/16', or DETR, which takes any "
                "backbone."
            )
        needed = {
            "positions": (backbone.positions not in ("relative", "rotary"), "learned"),
            "rotary": (backbone.rotary == "none", "none"),
            "attention_type": (backbone.attention_type in ("softmax", "performer"), "softmax"),
            "scan_layers": (not (backbone.scan_layers and self.mid_positions), False),
        }
        for field, (fits, instead) in needed.items():
            if not fits:
                raise ValueError(
                    f"YOLOS: backbone_fields.{field}={getattr(backbone, field)!r} does not go with "
                    f"detection tokens; use {instead!r}."
                )

    def setup(self):
        super().setup()
        backbone = self.backbone
        scheme, width = INIT_SCHEMES[backbone.init_scheme], backbone.width
        shape = (1, self.queries, width)
        self.det_tokens = self.param("det_tokens", scheme.registers, shape)
        self.det_positions = self.param("det_positions", scheme.positions, shape)
        if self.mid_positions:
            height, columns = backbone.built_grid
            rows = self.prefix + height * columns
            self.mid_tables = [
                self.param(f"mid_positions_{i}", scheme.positions, (1, rows, width))
                for i in range(backbone.depth - 1)
            ]
        self.class_head = MlpHead(self.num_classes + 1, width)
        self.box_head = MlpHead(4, width)

    @property
    def prefix(self) -> int:
        """Number of tokens before the patches, detection tokens among them."""
        return self.make_backbone().prefix + self.queries

    def __call__(
        self, images: Float[Array, "batch height width channels"], *, train: bool = False
    ) -> Detections:
        """Return a class and a box for every detection token."""
        features = self.features(images, train=train)
        found = features.tokens[:, features.prefix - self.queries : features.prefix]
        return Detections(self.class_head(found), jax.nn.sigmoid(self.box_head(found)))

    def features(
        self,
        images: Float[Array, "batch height width channels"],
        *,
        train: bool = False,
        attention_weights: bool = False,
    ) -> Features:
        """Return all tokens after the final norm; `pooled` is that of the backbone's own."""
        backbone = self.backbone
        x, grid = backbone.embed(images, train=train)
        found = (self.det_tokens + self.det_positions).astype(x.dtype)
        found = jnp.broadcast_to(found, (x.shape[0], *found.shape[1:]))
        front = backbone.prefix
        x = jnp.concatenate([x[:, :front], found, x[:, front:]], axis=1)
        run = functools.partial(
            run_blocks, grid=grid, train=train, attention_weights=attention_weights
        )
        if self.mid_positions:
            tables = self._mid_positions_of(grid)
            for i, block in enumerate(backbone.blocks):
                x = run([block], x, ())
                x = x + tables[i].astype(x.dtype) if i < len(tables) else x
        else:
            x = run(backbone.blocks, x, backbone.drop_path_rates)
        if backbone.pool_norm == "before":
            x = backbone.norm(x)
        own = jnp.concatenate([x[:, :front], x[:, self.prefix :]], axis=1)
        pooled = backbone.pool_tokens(own, train=train)
        if backbone.pool_norm == "after":  # then the heads read normed tokens all the same
            x, pooled = backbone.norm(x), backbone.norm(pooled)
        return Features(tokens=x, pooled=pooled, grid=grid, prefix=self.prefix)

    def _mid_positions_of(self, grid: tuple[int, int]) -> list[Float[Array, "1 tokens width"]]:
        """Return the tables behind the blocks for a grid; all are resized at once."""
        backbone = self.backbone
        joined = jnp.concatenate(self.mid_tables, axis=-1)
        joined = resize_positions(
            joined, backbone.built_grid, grid, prefix=self.prefix, kernel=backbone.pos_resize
        )
        return jnp.split(joined, len(self.mid_tables), axis=-1)

    @property
    def position_tables(self) -> dict[str, PositionTable]:
        """The tables that can be resized to another grid, by their paths."""
        backbone = self.make_backbone()
        tables = {f"backbone/{path}": one for path, one in backbone.position_tables.items()}
        if self.mid_positions:
            table = PositionTable(backbone.built_grid, self.prefix, backbone.pos_resize)
            tables |= {f"mid_positions_{i}": table for i in range(backbone.depth - 1)}
        return tables

    def head_roles(self) -> Roles:
        """Return the roles of the parameters beside the backbone."""
        return {
            "det_tokens": Role.TOKEN,
            "det_positions": Role.POSITION_TABLE,
            "mid_positions_*": Role.POSITION_TABLE,
            "class_head": MlpHead.ROLES,
            "box_head": MlpHead.ROLES,
        }
