"""FlexiViT: a ViT whose parameters serve every patch size (Beyer et al. 2023).

- The patch kernel and the position table are stored in sizes of their own. Each call resizes the
  kernel to `patch_size` by a pseudo-inverse (`layers/patch_resize.py`) and the table to the grid of
  the images. Both are products with constant matrices, so gradients reach what is stored.
- `model.clone(patch_size=8)` is the same model for smaller patches, more tokens and more work: the
  parameters stay. Keep them as they are stored; chained resizes lose information.
- For training, draw the patch size anew for each step: `objective.patch_sizes`.
"""

from vit_jax.models import validation
from vit_jax.models.fields import Size, check_types, pair
from vit_jax.models.layers.patch_embed import PatchEmbed
from vit_jax.models.layers.patch_resize import PAPER_METHOD
from vit_jax.models.positions.tables import ResizeMethod
from vit_jax.models.vit.module import ViT


class FlexiViT(ViT):
    """ViT for any patch size; the defaults are FlexiViT-B of the paper at 240 pixels.

    Everything besides patch embedding and positions is as in `ViT`.

    Raises:
        ValueError: at construction or at the call, as `ViT`.

    Source: Beyer et al. 2023, "FlexiViT: One Model for All Patch Sizes", sections 3 and 4; agrees
    with big_vision's `models/proj/flexi/vit.py`.
    """

    image_size: Size = 240
    kernel_size: Size = 32  # (height, width) of the stored patch kernel, in pixels
    table_grid: Size = 7  # (height, width) of the stored position table, in patches
    pos_on_cls: bool = False
    pos_resize: ResizeMethod = "bilinear"

    def __post_init__(self):
        check_types(self)
        name, size, patch = type(self).__name__, pair(self.image_size), pair(self.patch_size)
        validation.check_tokens(name, (size[0] // patch[0], size[1] // patch[1]))
        if self.attention_type == "linformer":
            raise ValueError(
                f"{name}: attention_type='linformer' has a parameter for every token, but the "
                "number of tokens follows from the patch size; use attention_type 'softmax'."
            )
        super().__post_init__()

    @property
    def patch_resize(self) -> str:
        """Method by which the kernel is resized, a name among `RESIZE_KERNELS`."""
        return PAPER_METHOD

    @property
    def built_grid(self) -> tuple[int, int]:
        """`(height, width)` in patches of the stored position table."""
        return pair(self.table_grid)

    def _make_patch_embed(self) -> PatchEmbed:
        return super()._make_patch_embed().clone(stored_size=pair(self.kernel_size))
