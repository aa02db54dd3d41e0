"""Fields of a ViT for other libraries: in numbers, and none that is lost in silence."""

from collections.abc import Iterable, Mapping
from typing import Any

from vit_jax.errors import UserError
from vit_jax.models.registry import model_fields
from vit_jax.models.vit.module import ViT
from vit_jax.weights import formats

# Fields of a ViT that no library has as such: how it is computed and trained.
_NOT_IN_FILES = (
    *("mlp_ratio", "drop_path", "init_scheme", "pos_resize", "patch_embed_method"),
    *("dtype", "attention_impl", "remat", "scan_layers"),
    *("attention_dropout", "projection_dropout", "mlp_dropout", "position_dropout"),
    *("patch_dropout", "tome_proportional", "keep_fused"),
    *("performer_features", "performer_seed", "linformer_rank", "local_window"),
)


def need_plain_vit(
    library: str, fields: Mapping[str, Any], known: Iterable[str], qkv_bias: Any = bool
) -> None:
    """Raise UserError for a field of a ViT that a library does not know and that is no default.

    known: fields that are written, or checked elsewhere. qkv_bias: types of that field.
    """
    known = {*known, *_NOT_IN_FILES}
    unknown = {name: value for name, value in model_fields("ViT").items() if name not in known}
    formats.need(library, fields, unknown)
    kinds = {"qkv_bias": qkv_bias, "qk_norm": bool, "heads": int, "mlp_width": int}
    for name, kind in kinds.items():
        if not isinstance(fields[name], kind):
            raise UserError(
                f"{library} does not support {name} = {fields[name]!r}; keep the run folder"
            )


def resolved_fields(model: Any) -> dict[str, Any]:
    """Return the fields of a ViT whose None stands for another value, with that; else none."""
    if not isinstance(model, ViT):
        return {}
    hidden = int(model.width * model.mlp_ratio) if model.mlp_width is None else model.mlp_width
    return {"mlp_width": hidden, "class_token": model.has_class_token}
