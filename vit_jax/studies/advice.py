"""Advice on how to begin with a dataset: configurations, with the rules that propose them.

Rules of thumb are only as good as where they come from, so each names its source. Where a rule of
the literature and a measurement of this project differ, the measurement is given beside it.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from vit_jax.config import load_config
from vit_jax.config.durations import Clock
from vit_jax.data.inspect.report import Report, SplitReport
from vit_jax.models import create_model
from vit_jax.models.summary.cost import cost
from vit_jax.models.summary.memory import memory
from vit_jax.studies.machine import Machine
from vit_jax.weights.zoo import PUBLISHED

MANY = 1_000_000  # training images
_SMALL_SIDE = 64  # pixels, below which published weights would see enlarged images
_UTILISATION = (0.15, 0.45)  # share of the peak that training reaches: slowest and fastest
_WEIGHTS = {False: "DeiT3-S/16.in21k-in1k", True: "DeiT3-B/16.in21k-in1k"}  # on an accelerator

_TRANSFER = (
    "published weights have learned from millions of images: ViT-B/16 reaches 98.13 % on the 50,000"
    " images of CIFAR-10 by fine-tuning (Dosovitskiy et al. 2021, table 5)"
)
_TRANSFER_HERE = (
    "measured here with a small ViT: fine-tuned 84.2 % and from scratch 79.5 % on 100 images, 99.6"
    " and 98.1 % on 1,437 (docs/results/finetuning.md)"
)
_CONVOLUTIONS = (
    "below a million images a convolutional network usually wins from scratch (Dosovitskiy et al."
    " 2021, section 4.3)"
)
_MEASURED = {  # accuracy in percent by number of training images, docs/results/data_scaling.md
    100: {"ResNet": 68.7, "ConvNeXt": 66.0, "hybrid": 67.0, "ViT": 60.4},
    600: {"ResNet": 80.9, "ConvNeXt": 79.5, "hybrid": 77.8, "ViT": 75.7},
    6_000: {"ResNet": 86.8, "ConvNeXt": 85.3, "hybrid": 84.2, "ViT": 81.9},
    60_000: {"ResNet": 90.0, "ConvNeXt": 88.0, "hybrid": 87.9, "ViT": 85.6},
}
_STEM = (
    "a ViT with a stem of convolutions trains more stably and needs fewer epochs than one with"
    " large patches (Xiao et al. 2021, sections 4 and 5)"
)
_LARGE = (
    "with a million images and strong augmentation a ViT from scratch keeps up: DeiT-S 79.9, DeiT"
    " III-S 81.4 % on ImageNet-1k (Touvron et al. 2021 and 2022)"
)
_UNLABELLED = (
    "without labels an encoder learns by filling in what is masked, and is fine-tuned later (He et"
    " al. 2022); measured here with 100 labels of Fashion-MNIST: 70.3 % after it, 66.2 % without,"
    " and no gain with 6,000 (docs/results/label_efficiency.md)"
)


@dataclasses.dataclass(frozen=True)
class Proposal:
    """Configuration to begin with.

    config: name of a config. keys: of it that are set, besides those of the data. reasons: rules
    with their sources, the most important one first.
    """

    title: str
    config: str
    keys: Mapping[str, Any]
    reasons: tuple[str, ...]


class Effort(NamedTuple):
    """Estimate of what a training takes.

    hours: at the usual least and most share of the machine's peak. bytes: of memory on a device.
    """

    parameters: int
    macs: int
    steps: int
    hours: tuple[float, float]
    bytes: int


def proposals(report: Report, machine: Machine) -> list[Proposal]:
    """Return two or three configurations for a dataset, the first one first."""
    train = report.splits["train"]
    if report.labelled:
        return list(_with_labels(report, train, machine))[:3]
    scratch = _from_scratch(train)
    return [
        Proposal("pre-train a masked autoencoder", "mae/images", scratch, (_UNLABELLED,)),
        Proposal(
            "pre-train by self-distillation",
            "dino/images",
            scratch,
            ("features for k-NN and retrieval without fine-tuning (Caron et al. 2021, table 2)",),
        ),
    ]


def _with_labels(report: Report, train: SplitReport, machine: Machine) -> Iterator[Proposal]:
    side, count = _side(train), train.examples
    photographs = side >= _SMALL_SIDE and len(train.mean or ()) == 3
    if photographs:
        name = _WEIGHTS[machine.is_accelerator]
        published = PUBLISHED[name]
        yield Proposal(
            f"fine-tune {name}, {published.parameters / 1e6:.0f} M parameters",
            "images",
            {"init_from": name},
            (_TRANSFER, _TRANSFER_HERE),
        )
    scratch = _from_scratch(train)
    if count >= MANY:
        yield Proposal("train DeiT III-S from scratch", "imagenet_deit3_s16", {}, (_LARGE,))
    title, network = ("ResNet-18", _RESNET_18) if side >= _SMALL_SIDE else ("ResNet", _SMALL_RESNET)
    here = _measured(count)
    why = (_CONVOLUTIONS, here) if count < MANY else (here,)
    yield Proposal(f"train a {title} from scratch", "images", {**network, **scratch}, why)
    if side >= _SMALL_SIDE:
        yield Proposal("train a ViT with a stem of convolutions", "images", scratch, (_STEM, here))
    else:
        patch = max(2, scratch["model.image_size"] // 8)
        tiny = {"model.name": "ViT", "model.patch_size": patch, "model.width": 96}
        tiny |= {"model.depth": 6, "model.heads": 3, **scratch}
        yield Proposal(f"train a small ViT on patches of {patch} pixels", "images", tiny, (here,))


def _measured(count: int) -> str:
    """Return what families reached here on about as many images, the best one first."""
    images = min(_MEASURED, key=lambda size: abs(math.log(size / max(count, 1))))
    reached = sorted(_MEASURED[images].items(), key=lambda one: -one[1])
    families = ", ".join(f"{family} {accuracy:.1f}" for family, accuracy in reached)
    return (
        f"measured here on {images:,} images of Fashion-MNIST, at equal cost: {families} %"
        " (docs/results/data_scaling.md)"
    )


_RESNET_18 = {"model.name": "ResNet", "model.block": "basic", "model.depths": (2, 2, 2, 2)}
_SMALL_RESNET = {
    "model.name": "ResNet",
    "model.depths": (1, 1, 1),
    "model.widths": (32, 64, 128),
    "model.block": "basic",
    "model.stem_width": 32,
    "model.small_stem": True,
}


def _side(train: SplitReport) -> int:
    """Return the shorter side of a usual image."""
    return int(min(train.height.median, train.width.median))


def _from_scratch(train: SplitReport) -> dict[str, int]:
    """Return the keys of images for training from scratch.

    The side is a multiple of 16 pixels, at most 96.
    """
    size = min(96, max(16, 16 * math.ceil(_side(train) / 16)))
    channels = len(train.mean or (0, 0, 0))
    return {"model.image_size": size, **({} if channels == 3 else {"model.in_channels": channels})}


def effort(proposal: Proposal, report: Report, machine: Machine) -> Effort:
    """Return what a proposal takes on a machine.

    Time is that of the operations, at 15 to 45 % of the peak; decoding images may take longer, and
    so does compilation. Memory is that of the whole training step with AdamW in float32.
    """
    config = load_config(proposal.config, list(proposal.keys.items()))
    model = _model(config, report)
    examples = report.splits["train"].examples
    batch = min(config.batch_size, examples)
    steps = Clock(examples, batch).steps(config.duration)
    size = cost(model)
    seconds = steps * batch * 3 * size.flops / machine.flops
    return Effort(
        size.parameters,
        size.macs,
        steps,
        (seconds / _UTILISATION[1] / 3600, seconds / _UTILISATION[0] / 3600),
        memory(model, -(-batch // machine.count), train=True).total,
    )


def _model(config: ConfigDict, report: Report) -> Any:
    """Return the model that a configuration trains."""
    fields = {name: value for name, value in config.model.items() if name != "name"}
    name = config.model.name
    if config.init_from:
        published = PUBLISHED[config.init_from]
        name, fields = published.model, {**published.fields, "image_size": published.image_size}
    return create_model(name, **{**fields, "num_classes": max(1, len(report.class_names))})
