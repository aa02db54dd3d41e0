"""Contrastive learning (CLIP, SigLIP, LiT): an image and its caption get vectors of one direction.

- The encoder is the configured model, the image tower; a `TextTower` beside it reads the captions.
  A matrix brings the pooled features of the images to the width of the texts' vectors.
- All images of the global batch are compared with all its texts, so accumulation is refused.
- With `freeze_image` the image tower is no parameter of the run (LiT, Zhai et al. 2022): it keeps
  its bits, and costs neither gradients nor moments. `init_from` says what it is.
- With `wrong_texts` each image has to tell its caption from a wrong one that the data give with it.
- With `patch_dropout` the image tower sees a part of the patches in training (FLIP).
- Held-out images are classified by texts of the class names, with templates that no caption of the
  training data has.

Sources: see `losses`; Zhai et al. 2022, "LiT: Zero-Shot Transfer with Locked-image text Tuning";
Li et al. 2023, "Scaling Language-Image Pre-training via Masking" (FLIP), section 3.
"""

import functools
import math
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from vit_jax.data.features import IMAGE, Feature
from vit_jax.data.sources.composed.captions import Prompts, prompts
from vit_jax.errors import UserError
from vit_jax.evaluation.retrieval import Retrieval
from vit_jax.evaluation.zero_shot import ImagesAndTexts, ZeroShot
from vit_jax.models.description import model_roles
from vit_jax.models.description.roles import Role, kernel_and_bias
from vit_jax.models.masking import check_can_drop, random_mask, visible_features
from vit_jax.models.text import TextTower, text_tower
from vit_jax.models.tokens.reduction import patches_left
from vit_jax.runs.record import part_of
from vit_jax.tasks.base import Task
from vit_jax.tasks.contrastive.losses import (
    capped_scale,
    equal_rows,
    normalized,
    sigmoid_losses,
    softmax_losses,
    wrong_text_losses,
)
from vit_jax.tasks.contrastive.start import check_start, read_both
from vit_jax.tasks.masked.random_masks import mask_noise
from vit_jax.tasks.registry import register_task
from vit_jax.text import counted

# Of an untrained model: Radford et al. 2021, section 2.5; Zhai et al. 2023, section 3.
_SCALES = {"softmax": 1 / 0.07, "sigmoid": 10.0}
_BIAS = -10.0


@register_task("contrastive")
@dataclass(frozen=True)
class Contrastive(Task):
    """Softmax or sigmoid loss of the pairs of `image` and `text`, `(batch, length)` ids of tokens.

    kind: "softmax" (CLIP) or "sigmoid" (SigLIP).
    embed_width: of the vectors of images and texts.
    text_width, text_depth, text_heads, text_pool: of the text tower; "end" has the causal attention
        of CLIP, "last" and "map" attention in both directions.
    text_mlp_width, text_activation, text_norm_eps, text_end_token: of it too; by default as in CLIP
        for "end", and as in SigLIP for the others.
    image_projection: whether a matrix brings the pooled features of images to `embed_width`; if
        not, they are the vectors, as SigLIP's, and `embed_width` is their width.
    freeze_image: whether the image tower stays as it is.
    patch_dropout: share of the patches, rounded up, that the image tower does not see in training;
        which ones is drawn anew for every image and step. Evaluation sees all.
    start_text: whether `init_from` starts the text tower, the projection and the scale too, if it
        has them.
    shared_targets: whether all texts of one caption in a batch are answers of all its images; if
        not, an image has one answer, and an equal caption is a wrong one.
    wrong_texts: weight of the loss by which an image tells its text from `wrong_text`, ids of the
        same shape that the data give; one that is equal to the text is none. 0: not asked for.
    max_scale: cap of the softmax's scale; the sigmoid's has none.
    vocabulary, length: numbers of tokens, of the data's tokenizer.
    prompts: ids of texts for each class; empty: the images are not classified.
    """

    model: nn.Module
    kind: str = "softmax"
    embed_width: int = 512
    text_width: int = 512
    text_depth: int = 12
    text_heads: int = 8
    text_pool: str = "end"
    text_mlp_width: int | None = None
    text_activation: str | None = None
    text_norm_eps: float | None = None
    text_end_token: int | None = None
    image_projection: bool = True
    freeze_image: bool = False
    patch_dropout: float = 0.0
    start_text: bool = True
    shared_targets: bool = True
    wrong_texts: float = 0.0
    max_scale: float = 100.0
    vocabulary: int = 49_408
    length: int = 77
    prompts: Prompts = ()

    additive = False
    reads_texts = True
    from_setting = ("model", "vocabulary", "length", "prompts")

    def __post_init__(self):
        if self.kind not in _SCALES:
            raise ValueError(f"kind = {self.kind!r} must be one of {', '.join(_SCALES)}")
        if self.embed_width < 1:
            raise ValueError(f"embed_width = {self.embed_width} must be a whole number from 1")
        if not self.max_scale > 0:
            raise ValueError(f"max_scale = {self.max_scale} must be above 0")
        if not 0 <= self.wrong_texts < math.inf:
            raise ValueError(f"wrong_texts = {self.wrong_texts} must be a weight from 0")
        if not 0 <= self.patch_dropout < 1:
            raise ValueError(
                f"patch_dropout = {self.patch_dropout} must be a share from 0 to below 1"
            )
        if self.patch_dropout:
            check_can_drop(self.model, decoded=False)
        _ = self.text

    @classmethod
    def make(cls, setting, **fields):
        """Return the task of a configuration. Raises UserError for data without captions."""
        source = setting.source
        tokenizer = source.tokenizer
        if tokenizer is None:
            raise UserError(
                f"{source.name} has no captions, which the task 'contrastive' needs; use a file "
                "with a column 'caption' (--config.dataset=csv:PATH), or captions:DATASET, which "
                "makes them from the names of the classes"
            )
        if fields.get("freeze_image") and not setting.config.init_from:
            raise UserError(
                "objective.freeze_image = True keeps the image tower as it is, but it is untrained;"
                " name a trained one with --config.init_from=RUN"
            )
        trained = dict(setting.trained)
        sizes = check_start(trained, fields, tokenizer, setting.config.init_from)
        return cls(
            setting.model,
            prompts=prompts(tokenizer, source.class_names),
            **{**trained, **fields, **sizes},
        )

    @classmethod
    def read_start(cls, config):
        """Return both towers of `init_from`; None for an image tower, or without `start_text`."""
        return read_both(config.init_from) if config.objective.get("start_text", True) else None

    @property
    def inputs(self) -> dict[str, Feature]:
        """The image and its caption, and the wrong one if it is asked for."""
        text = Feature("text", (self.length,))
        pair = {"image": IMAGE, "text": text}
        return {**pair, "wrong_text": text} if self.wrong_texts else pair

    @property
    def monitor(self) -> tuple[str, str]:
        """Zero-shot accuracy, or the loss of data without classes."""
        return ("zero_shot_accuracy", "max") if self.prompts else ("loss", "min")

    @property
    def encoder(self) -> str:
        """The image tower, which is no parameter of the run if it is frozen."""
        return "frozen/image" if self.freeze_image else "image"

    # -------------------------------------------------------------------------------- modules

    @functools.cached_property
    def text(self) -> TextTower:
        """Module from the ids of a text's tokens to its vector."""
        return text_tower(vars(self), getattr(self.model, "dtype", "float32"))

    @functools.cached_property
    def projection(self) -> nn.Dense:
        """Module from the pooled features of an image to its vector."""
        return nn.Dense(self.embed_width, use_bias=False)

    def init(self, rng, batch):
        """Return the initial variables of both towers, the projection, and scale and bias."""
        encoder = super().init(rng, batch)
        pooled = self.model.apply(encoder, batch["image"], train=False, method="features").pooled
        keys = jax.random.split(jax.random.fold_in(rng, 1))
        logits = {"scale": jnp.float32(math.log(_SCALES[self.kind]))}
        if self.kind == "sigmoid":
            logits["bias"] = jnp.float32(_BIAS)
        params = {"text": self.text.init(keys[1], batch["text"])["params"], "logits": logits}
        if self.image_projection:
            params["projection"] = self.projection.init(keys[0], pooled)["params"]
        elif pooled.shape[-1] != self.embed_width:
            raise ValueError(
                f"image_projection = False: the images have vectors of {pooled.shape[-1]} numbers, "
                f"but embed_width = {self.embed_width}; use one number for both"
            )
        if not self.freeze_image:
            others = {name: {"image": tree} for name, tree in encoder.items()}
            return {**others, "params": {"image": encoder["params"], **params}}
        if set(encoder) - {"params", "intermediates"}:
            raise ValueError(
                f"freeze_image: {type(self.model).__name__} has running statistics, which cannot "
                "be frozen here; use a model without them, such as a ViT"
            )
        return {"params": params, "frozen": {"image": encoder["params"]}}

    def start_from(self, variables, trained):
        """Return the initial variables with a trained image tower, and all else that is trained."""
        modules = trained.get("modules", {})
        trained = {name: tree for name, tree in trained.items() if name != "modules"}
        if self.freeze_image:
            begun = {**variables, "frozen": {"image": trained["params"]}}
        else:
            begun = super().start_from(variables, trained)
        return {**begun, "params": {**begun["params"], **modules}}

    def roles(self, params):
        """Return the roles of the parameters of all modules."""
        roles = {
            "image": model_roles(self.model),
            "projection": kernel_and_bias(Role.LINEAR),
            "text": self.text.roles(),
            "logits": {"scale": Role.LAYER_SCALE, "bias": Role.BIAS},
        }
        return {name: roles[name] for name in params}

    # ------------------------------------------------------------------------------- learning

    def loss(self, variables, batch, rng, *, train):
        """Return the sums of the loss of each pair; the metric `scale` is that of the cosines.

        With wrong texts in the batch `told_apart` is the share of images that are nearer their own.
        """
        images, state = self.image_vectors(variables, batch["image"], rng, train=train)
        texts = self.text_vectors(variables, batch["text"], rng, train=train)
        groups = equal_rows(batch["text"]) if self.shared_targets else None
        shared = {"mask": batch.get("mask"), "groups": groups}
        learned = variables["params"]["logits"]
        if self.kind == "softmax":
            scale = capped_scale(learned["scale"], self.max_scale)
            losses = softmax_losses(images, texts, scale, **shared)
        else:
            scale = jnp.exp(learned["scale"])
            losses = sigmoid_losses(images, texts, scale, learned["bias"], **shared)
        metrics = {"scale": jnp.full(len(losses), scale)}
        if self.wrong_texts and "wrong_text" in batch:
            wrong = self.text_vectors(variables, batch["wrong_text"], rng, train=train)
            differ = jnp.any(batch["text"] != batch["wrong_text"], axis=1)
            found = wrong_text_losses(images, texts, wrong, scale)
            losses += self.wrong_texts * jnp.where(differ, found, 0)
            metrics["told_apart"] = jnp.where(differ, found < math.log(2), True)
        return self.summed(losses, batch, state, **metrics)

    @property
    def patches(self) -> int:
        """Number of patches of an image."""
        return math.prod(self.model.block_infos()[0].grid)

    @property
    def keep(self) -> int:
        """Number of patches that the image tower sees in training."""
        return patches_left(self.patches, self.patch_dropout)

    def image_vectors(
        self, variables: Any, images: Array, rng: Array | None = None, *, train: bool = False
    ) -> tuple[Float[Array, "batch embed_width"], dict[str, Any]]:
        """Return vectors of length 1 for images, and the new state."""
        of_image = part_of(variables, self.encoder)
        state = {name: tree for name, tree in variables.items() if name != "params"}
        seen: dict[str, Any] = {"method": "features"}
        if train and self.patch_dropout:
            noise = mask_noise({"image": images}, rng, self.patches, train=True)
            seen = {"method": visible_features, "kept": random_mask(noise, self.keep).kept}
        train = train and not self.freeze_image
        found, news = self.apply(of_image, images, rng, train=train, **seen)
        if not self.freeze_image:
            state |= {name: {"image": tree} for name, tree in news.items()}
        vectors = found.pooled
        if self.image_projection:
            of_projection = {"params": variables["params"]["projection"]}
            vectors = self.projection.apply(of_projection, vectors)
        return normalized(vectors), state

    def text_vectors(
        self,
        variables: Any,
        texts: Int[Array, "batch length"],
        rng: Array | None = None,
        *,
        train: bool = False,
    ) -> Float[Array, "batch embed_width"]:
        """Return vectors of length 1 for the ids of texts."""
        of_text = {"params": variables["params"]["text"]}
        rngs = {"dropout": jax.random.fold_in(rng, 1)} if train else {}
        return normalized(self.text.apply(of_text, texts, train=train, rngs=rngs))

    def after_update(self, state):
        """Return the state with a scale that is at most its cap."""
        if self.kind == "sigmoid":
            return state
        learned = state.params["logits"]
        scale = jnp.minimum(learned["scale"], math.log(self.max_scale))
        params = {**state.params, "logits": {**learned, "scale": scale}}
        return state.replace(params=params)

    # -------------------------------------------------------------------------------- judging

    def describe(self, source):
        """Return the number of captions, and a sentence on their tokens."""
        count = len(source) if source.texts is None else len(source.texts.ids)
        tokens = f"captions have {self.length} tokens of a vocabulary of {self.vocabulary:,}"
        return f"with {counted(count, 'caption')}", [tokens]

    def class_vectors(self, variables: Any) -> Float[Array, "classes embed_width"]:
        """Return for each class the direction of the mean vector of its prompts."""
        prompts = jnp.array(self.prompts, jnp.int32)
        vectors = self.text_vectors(variables, prompts.reshape(-1, self.length))
        return normalized(vectors.reshape(*prompts.shape[:2], -1).mean(1))

    def evaluators(self):
        """Return the evaluators of the loss, with zero-shot accuracy if there are classes, and of
        retrieval."""
        first = ZeroShot(self) if self.prompts else ImagesAndTexts(self)
        return first, Retrieval(self)
