"""The `open_clip_config.json` of open_clip, which its tensors do not tell.

It has `model_cfg`, with sections `vision_cfg` and `text_cfg`, and `preprocess_cfg`. Missing entries
are the defaults of the library.

Source: open_clip 3.3, `model.py` and `factory.py`, by running them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vit_jax.errors import UserError
from vit_jax.weights import formats
from vit_jax.weights.ecosystems.timm_writing import mlp_ratio
from vit_jax.weights.io.safety import show

FILE = "open_clip_config.json"

# Entries that change the computation in a way that no model here has, with the values that do not.
_NEEDED = {
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner"), (False,)),
    **dict.fromkeys(("scale_attn", "scale_fc", "attentional_pool", "no_ln_pre"), (False,)),
    **dict.fromkeys(("final_ln_after_pool", "embed_cls"), (False,)),
    "pos_embed_type": ("learnable",),
    "hf_model_name": (None, ""),
}
_POOLS = {"argmax": "end", "eos": "end", "last": "last"}
_RESIZES = {"shortest": "cover", "squash": "squash"}
_AS_TIMM = {"cover": "center", "squash": "squash"}


@dataclass(frozen=True)
class Settings:
    """The sections of the file; `of` returns them."""

    model: Mapping[str, Any]
    image: Mapping[str, Any]
    text: Mapping[str, Any]
    preprocess: Mapping[str, Any]

    @classmethod
    def of(cls, config: Mapping[str, Any] | None) -> "Settings | None":
        """Return the settings in the result of `read_configs`; None without any.

        Raises UserError for a value that no model here has.
        """
        content = (config or {}).get("open_clip")
        if content is None:
            return None
        model = _section(content, "model_cfg")
        image, text = _section(model, "vision_cfg"), _section(model, "text_cfg")
        for name, values in _NEEDED.items():
            for section in (image, text):
                if section.get(name) is not None and section[name] not in values:
                    raise UserError(
                        f"{FILE}: {name} = {show(section[name])} is not supported, only "
                        f"{show(values[0])}"
                    )
        pool = image.get("pool_type", "tok")
        if pool != "tok":
            raise UserError(
                f"{FILE}: pool_type = {show(pool)} of images is not supported, only 'tok'"
            )
        return cls(model, image, text, _section(content, "preprocess_cfg"))

    @property
    def origin(self) -> str:
        """Origin of the weights, which is that of the GELU."""
        return "clip" if self.model.get("quick_gelu") else "openclip"

    @property
    def trunk(self) -> str | None:
        """Name of timm's architecture, where the image tower is one."""
        return formats.configured_text(self.image, "timm_model_name")

    @property
    def has_prefix(self) -> bool:
        """True if names of the text tower begin with `text.`."""
        return bool(self.model.get("custom_text"))

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of images."""
        return formats.configured_size(self.image, "image_size")

    def image_heads(self, width: int) -> int:
        """Return the number of heads of the image tower, which the file has as their width."""
        return width // (formats.configured_number(self.image, "head_width") or 64)

    def layers(self, tower: str) -> dict[str, Any]:
        """Return activation and epsilon of the tower "image" or "text"."""
        section = getattr(self, tower)
        exact = _section(section, "act_kwargs").get("approximate", "none") != "tanh"
        activation = "gelu" if exact else "gelu_tanh"
        eps = _section(section, "norm_kwargs").get("eps", 1e-5)
        if type(eps) is not float or not 0 < eps < 1:
            raise UserError(f"{FILE}: eps = {show(eps)} should be a number between 0 and 1")
        quick = self.model.get("quick_gelu")
        return {"activation": "quick_gelu" if quick else activation, "norm_eps": eps}

    def text_pool(self) -> tuple[str, int | None]:
        """Return the pooling of texts, and the token that ends them; None: the largest id.

        Raises UserError for attention in both directions where only that of CLIP has the pooling.
        """
        name = self.text.get("pool_type", "argmax")
        causal = not self.text.get("no_causal_mask", False)
        pool = _POOLS.get(name) if isinstance(name, str) else None
        if pool is None or causal != (pool == "end"):
            directions = "before a token only" if causal else "in both directions"
            raise UserError(
                f"{FILE}: pool_type = {show(name)} with attention {directions} is not supported; "
                "'argmax' and 'eos' are with the former, 'last' with the latter"
            )
        return pool, formats.configured_number(self.text, "eos_id") or 2 if name == "eos" else None

    def preprocessing(self) -> dict[str, Any]:
        """Return the fields of `Preprocessing`, which crops nothing; {} if the file has none."""
        if not self.preprocess:
            return {}
        mode = self.preprocess.get("resize_mode") or "shortest"
        if not isinstance(mode, str) or mode not in _RESIZES:
            raise UserError(
                f"{FILE}: resize_mode = {show(mode)} is not supported; use one of "
                f"{', '.join(_RESIZES)}"
            )
        named = {
            "mean": formats.configured_numbers(self.preprocess, "mean"),
            "std": formats.configured_numbers(self.preprocess, "std"),
            "interpolation": formats.configured_text(self.preprocess, "interpolation"),
        }
        return {
            **formats.CLIP,
            "crop": 1.0,
            "interpolation": "bicubic",
            "resize": _RESIZES[mode],
            **{name: value for name, value in named.items() if value is not None},
        }

    def as_timm(self) -> dict[str, Any]:
        """Return the settings of the image tower as a `config.json` of timm."""
        fields = self.preprocessing() or {**formats.CLIP, "interpolation": "bicubic"}
        size = self.image_size
        return {
            "architecture": self.trunk,
            "num_classes": 0,
            "pretrained_cfg": {
                "mean": list(fields["mean"]),
                "std": list(fields["std"]),
                "interpolation": fields["interpolation"],
                "crop_pct": 1.0,
                "crop_mode": _AS_TIMM[fields.get("resize", "cover")],
                **({} if size is None else {"input_size": [3, *size]}),
            },
        }


def _section(config: Any, name: str) -> Mapping[str, Any]:
    section = config.get(name) if isinstance(config, Mapping) else None
    if section is not None and not isinstance(section, Mapping):
        raise UserError(f"{FILE}: {name} = {str(section)[:80]!r} should be an object")
    return section or {}


def clip_tower(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of an image tower of CLIP; UserError if open_clip has none such."""
    return {
        "image_size": fields["image_size"],
        "patch_size": fields["patch_size"],
        "head_width": fields["width"] // fields["heads"],
        **_common(fields),
    }


def timm_tower(name: str, side: int, projection: str | None) -> dict[str, Any]:
    """Return the section of an image tower of timm.

    projection: "linear" for a layer behind it, None for its own head, "none" without any.
    """
    return {
        "image_size": side,
        "timm_model_name": name,
        "timm_model_pretrained": False,
        "timm_pool": "map",
        "timm_proj": projection,
    }


def text_tower(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section of a text tower.

    fields: of the text tower, with `vocabulary`, `length` and `end_token`.

    Raises UserError if open_clip has no such tower.
    """
    section = {"context_length": fields["length"], "vocab_size": fields["vocabulary"]}
    pool = fields["pool"]
    if pool not in ("end", "last"):
        raise UserError(
            f"--to=openclip has no text_pool = {pool!r}, only 'end' and 'last'; keep the run folder"
        )
    is_last = pool == "last"
    if is_last and (name := _TOKENIZERS.get(fields["vocabulary"])):
        section |= {"hf_tokenizer_name": name, "tokenizer_kwargs": {"clean": "canonicalize"}}
    section |= {"heads": fields["heads"], **_common(fields)}
    if is_last:
        section |= {"no_causal_mask": True, "proj_bias": True, "pool_type": "last"}
    elif fields["end_token"] is not None:
        section |= {"pool_type": "eos", "eos_id": fields["end_token"]}
    return section


def preprocessing_of(preprocessing: Any) -> dict[str, Any]:
    """Return the section of the preprocessing; UserError if open_clip has none such."""
    resizes = {ours: theirs for theirs, ours in _RESIZES.items()}
    if preprocessing.resize not in resizes or preprocessing.crop != 1:
        raise UserError(
            "open_clip resizes images to the size of the model, and crops no share of them; use "
            "--to=huggingface"
        )
    return {
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "interpolation": preprocessing.interpolation,
        "resize_mode": resizes[preprocessing.resize],
    }


# The published tokenizers, by the size of the vocabulary.
_TOKENIZERS = {
    32_000: "timm/ViT-B-16-SigLIP",
    250_000: "timm/ViT-B-16-SigLIP-i18n-256",
    256_000: "timm/ViT-B-16-SigLIP2",
}
_ACTIVATIONS = ("gelu", "gelu_tanh", "quick_gelu")


def _common(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what both sections have by the same names."""
    if fields["activation"] not in _ACTIVATIONS:
        raise UserError(
            f"open_clip has no activation = {fields['activation']!r}, only "
            f"{' and '.join(map(repr, _ACTIVATIONS))}; use --to=huggingface"
        )
    width = fields["width"]
    ratio = mlp_ratio(fields["mlp_width"], width)
    common = {"width": width, "layers": fields["depth"], "mlp_ratio": ratio}
    if fields["activation"] == "gelu_tanh":
        common["act_kwargs"] = {"approximate": "tanh"}
    if fields["norm_eps"] != 1e-5:
        common["norm_kwargs"] = {"eps": fields["norm_eps"]}
    return common
