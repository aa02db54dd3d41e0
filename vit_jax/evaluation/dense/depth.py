"""Metrics of predicted depth: errors of the pixels whose depth is known, and the evaluator of them.

    >>> depth_errors(predicted, truth)["abs_rel"]          # of each image: (batch,)
    >>> depth_errors(inverse, truth, alignment="disparity")  # of a model up to factor and shift

- A metric of an image is the mean over its known pixels, and that of a dataset the mean over its
  images, as in the code of AdaBins, ZoeDepth and Depth Anything V2, and in KITTI's own. Eigen et
  al. 2014 took one mean over all pixels, so that images with more known pixels counted more.
- With d the predicted and t the true depth:

| name | of a pixel | |
|---|---|---|
| `abs_rel` | abs(d - t) / t | |
| `sq_rel` | (d - t)^2 / t | in the unit of the depth |
| `rmse` | (d - t)^2 | and the root of the mean |
| `rmse_log` | (ln d - ln t)^2 | and the root of the mean |
| `log10` | abs(log10 d - log10 t) | |
| `silog` | ln d - ln t | its deviation times 100, which KITTI ranks by |
| `delta1`, `delta2`, `delta3` | max(d / t, t / d) < 1.25, 1.25^2, 1.25^3 | a share |

Sources: Eigen et al. 2014, "Depth Map Prediction from a Single Image using a Multi-Scale Deep
Network", section 4.2; Ranftl et al. 2020, "Towards Robust Monocular Depth Estimation", section 7.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from vit_jax.data.features import IMAGE, Feature
from vit_jax.evaluation.base import HELD_OUT, Evaluator, Result

ALIGNMENTS = ("none", "median", "disparity")
CROPS = {  # shares of the height and of the width that count: top, bottom, left, right
    "none": (0.0, 1.0, 0.0, 1.0),
    "eigen": (45 / 480, 471 / 480, 41 / 640, 601 / 640),  # of NYU
    "garg": (0.40810811, 0.99189189, 0.03594771, 0.96405229),  # of KITTI
}
SHARES = ("delta1", "delta2", "delta3")
INPUTS = {"image": IMAGE, "depth": Feature("depth")}
SHOWN = 4  # of the best and of the worst images
_MOST_WRONG = 0.5  # of the depth, in the figure
_LEAST = 1e-8  # of an inverse depth, where there is no largest depth


def known_depth(
    truth: Float[Array, "batch height width"],
    min_depth: float = 1e-3,
    max_depth: float = 0.0,
    crop: str = "none",
) -> Bool[Array, "batch height width"]:
    """Return where the depth is known, in range and inside the crop; 0 is unknown.

    Args:
        max_depth: 0: there is none.
        crop: one of `CROPS`.
    """
    known = jnp.isfinite(truth) & (truth >= min_depth) & (truth > 0)
    if max_depth:
        known &= truth <= max_depth
    top, bottom, left, right = CROPS[crop]
    height, width = truth.shape[1:]
    rows, columns = jnp.arange(height), jnp.arange(width)
    inside = (rows >= int(top * height)) & (rows < int(bottom * height))
    beside = (columns >= int(left * width)) & (columns < int(right * width))
    return known & inside[:, None] & beside


def depth_errors(
    predicted: Float[Array, "batch height width"],
    truth: Float[Array, "batch height width"],
    *,
    alignment: str = "none",
    min_depth: float = 1e-3,
    max_depth: float = 0.0,
    crop: str = "none",
) -> dict[str, Float[Array, " batch"]]:
    """Return the metrics of each image, and `pixels`, the number of its known pixels.

    Without known pixels all are 0. Predictions are clipped to the range, and what is not finite is
    the smallest depth.

    Args:
        predicted: depths, or with "disparity" inverse depths.
        truth: depths; 0 is unknown.
        alignment: "none"; "median": predictions are multiplied so that the medians are equal; or
            "disparity": a factor and a shift of inverse depths, by least squares, for each image.
        min_depth, max_depth, crop: see `known_depth`.
    """
    known = known_depth(truth, min_depth, max_depth, crop)
    t = jnp.where(known, truth, 1.0)
    d = aligned(predicted, t, known, alignment, max_depth)
    d = jnp.where(jnp.isfinite(d), d, min_depth)
    d = jnp.clip(d, min_depth or _LEAST, max_depth or None)
    log = jnp.log(d) - jnp.log(t)
    ratio = jnp.maximum(d / t, t / d)

    def mean(x: Float[Array, "batch height width"]) -> Float[Array, " batch"]:
        return masked_mean(x, known)

    square = mean(log**2)
    return {
        "abs_rel": mean(jnp.abs(d - t) / t),
        "sq_rel": mean((d - t) ** 2 / t),
        "rmse": jnp.sqrt(mean((d - t) ** 2)),
        "rmse_log": jnp.sqrt(square),
        "log10": mean(jnp.abs(log)) / jnp.log(10.0),
        "silog": 100 * jnp.sqrt(jnp.maximum(mean((log - mean(log)[:, None, None]) ** 2), 0)),
        **{name: mean(ratio < 1.25**k) for k, name in enumerate(SHARES, start=1)},
        "pixels": known.sum((1, 2)),
    }


def aligned(
    predicted: Float[Array, "batch height width"],
    truth: Float[Array, "batch height width"],
    known: Bool[Array, "batch height width"],
    alignment: str,
    max_depth: float = 0.0,
) -> Float[Array, "batch height width"]:
    """Return depths from predictions, aligned to the known true depths of each image."""
    if alignment == "none":
        return predicted
    if alignment == "median":
        factor = masked_median(truth, known) / masked_median(predicted, known)
        return predicted * factor[:, None, None]
    factor, shift = least_squares(predicted, 1 / truth, known)
    inverse = factor[:, None, None] * predicted + shift[:, None, None]
    return 1 / jnp.maximum(inverse, 1 / max_depth if max_depth else _LEAST)


def masked_mean(
    x: Float[Array, "batch height width"], known: Bool[Array, "batch height width"]
) -> Float[Array, " batch"]:
    """Return the mean of the known pixels of each image; 0 without any."""
    return jnp.where(known, x, 0).sum((1, 2)) / jnp.maximum(known.sum((1, 2)), 1)


def masked_median(
    x: Float[Array, "batch height width"], known: Bool[Array, "batch height width"]
) -> Float[Array, " batch"]:
    """Return the median of the known pixels of each image, the lower of two, as torch's; or 0."""
    ranked = jnp.sort(jnp.where(known, x, jnp.inf).reshape(len(x), -1), axis=1)
    middle = jnp.maximum(known.sum((1, 2)) - 1, 0) // 2
    found = jnp.take_along_axis(ranked, middle[:, None], axis=1)[:, 0]
    return jnp.where(jnp.isfinite(found), found, 0.0)


def least_squares(
    x: Float[Array, "batch height width"],
    y: Float[Array, "batch height width"],
    known: Bool[Array, "batch height width"],
) -> tuple[Float[Array, " batch"], Float[Array, " batch"]]:
    """Return the factor and the shift of `x` nearest to `y` over the known pixels of each image.

    Of a constant `x` the factor is 0 and the shift the mean of `y`.
    """
    mean_x, mean_y = masked_mean(x, known), masked_mean(y, known)
    x, y = x - mean_x[:, None, None], y - mean_y[:, None, None]
    variance, covariance = masked_mean(x * x, known), masked_mean(x * y, known)
    least = 1e-12 * mean_x**2 + jnp.finfo(jnp.float32).tiny
    factor = jnp.where(variance > least, covariance / jnp.maximum(variance, least), 0.0)
    return factor, mean_y - factor * mean_x


@dataclass(frozen=True)
class DepthEvaluator(Evaluator):
    """The loss and all metrics, each the mean over the images that have a known depth.

    predict: from variables and a batch to the sums of a loss and the predictions of the model.
    alignment, min_depth, max_depth, crop: see `depth_errors`.
    """

    predict: Callable
    alignment: str = "none"
    min_depth: float = 1e-3
    max_depth: float = 0.0
    crop: str = "none"

    inputs: ClassVar = INPUTS

    def step(self, variables, batch):
        """Return the sums over the images with a known depth, and the errors of each image."""
        loss, predicted = self.predict(variables, batch)
        errors = depth_errors(
            predicted,
            batch["depth"],
            alignment=self.alignment,
            min_depth=self.min_depth,
            max_depth=self.max_depth,
            crop=self.crop,
        )
        pixels = errors.pop("pixels")
        counted = batch["mask"] * (pixels > 0)
        finite = jnp.isfinite(predicted).all((1, 2))
        sums = {name: jnp.sum(values * counted) for name, values in errors.items()}
        sums |= {"weight": counted.sum(), "loss": loss.total, "loss_weight": loss.weight}
        sums["nonfinite"] = jnp.sum(batch["mask"] * ~finite)
        return sums, {"abs_rel": errors["abs_rel"], "known": pixels > 0}

    def finish(self, parts):
        """Return the means; images without a known depth are counted and judged by nothing."""
        part = parts[HELD_OUT]
        apart = ("loss", "loss_weight", "nonfinite")
        loss, weight, nonfinite = (part.sums[name] for name in apart)
        rest = {name: total for name, total in part.sums.items() if name not in apart}
        metrics = {"loss": loss / weight if weight else float("nan")}
        metrics |= {**part._replace(sums=rest).means(), "examples": part.examples}
        counts = {"without_depth": (~part.rows["known"]).sum(), "nonfinite": nonfinite}
        return Result({**metrics, **{name: int(n) for name, n in counts.items() if n}})


@dataclass(frozen=True)
class DepthImages(Evaluator):
    """Figure of the best and the worst of some images: image, true and predicted depth, error.

    predict, alignment, min_depth, max_depth, crop: as of `DepthEvaluator`. preprocessing: of the
    images.
    """

    predict: Callable
    preprocessing: Any
    alignment: str = "none"
    min_depth: float = 1e-3
    max_depth: float = 0.0
    crop: str = "none"

    name: ClassVar[str] = "depths"
    every: ClassVar[str] = "100%"
    examples: ClassVar[int] = 16
    inputs: ClassVar = INPUTS

    def step(self, variables, batch):
        """Return images, true and aligned predicted depths and the AbsRel, or NaN, as rows."""
        _, predicted = self.predict(variables, batch)
        depths = {"min_depth": self.min_depth, "max_depth": self.max_depth, "crop": self.crop}
        known = known_depth(batch["depth"], **depths)
        true = jnp.where(known, batch["depth"], 1.0)
        errors = depth_errors(predicted, batch["depth"], alignment=self.alignment, **depths)
        error = jnp.where(errors["pixels"] > 0, errors["abs_rel"], jnp.nan)
        predicted = aligned(predicted, true, known, self.alignment, self.max_depth)
        rows = {"true": jnp.where(known, true, 0.0), "predicted": predicted, "error": error}
        return {"weight": jnp.sum(batch["mask"])}, {"image": batch["image"], **rows}

    def finish(self, parts):
        """Return the figure of images with a known depth, and no metric but the number of all."""
        rows = parts[HELD_OUT].rows
        order = np.argsort(rows["error"], kind="stable")  # NaN last
        order = order[: np.isfinite(rows["error"]).sum()]
        best, worst = order[:SHOWN], order[SHOWN:][-SHOWN:]
        chosen = {name: rows[name][[*best, *worst]] for name in rows if name != "index"}
        figures = {self.name: lambda: self._drawn(chosen)} if len(order) else {}
        return Result({"examples": len(rows["error"])}, figures=figures)

    def _drawn(self, rows):
        from vit_jax.data.inspect.overlays import depth_colours
        from vit_jax.evaluation.reconstruction import draw_rows

        pairs = list(zip(rows["true"], rows["predicted"], strict=True))
        wrong = [np.where(t > 0, abs(p - t) / np.where(t > 0, t, 1), 0) for t, p in pairs]
        images = self.preprocessing.shown(rows["image"])
        panels = {
            "image": images if images.shape[-1] == 3 else images[..., :1].repeat(3, axis=-1),
            "true": np.stack([depth_colours(t) for t, _ in pairs]) / 255,
            "predicted": np.stack([depth_colours(p, like=t) for t, p in pairs]) / 255,
            "error": np.clip(np.stack(wrong) / _MOST_WRONG, 0, 1)[..., None].repeat(3, axis=-1),
        }
        shown = " ".join(f"{error:.3f}" for error in rows["error"])
        return draw_rows(
            panels,
            f"best and worst of the first images, AbsRel: {shown}; white is an error of "
            f"{100 * _MOST_WRONG:.0f} % of the depth or more",
        )
