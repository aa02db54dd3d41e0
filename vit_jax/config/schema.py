"""Every key of a configuration, in one table: its default, what it means, which values are legal.

What is said here is about one key at a time; what keys mean together is in `training/checks.py`.
A key of `augment` whose default is None takes its value from `augment.preset`
(see `config/augment_presets.py`).
"""

from dataclasses import dataclass
from typing import Any

from vit_jax.config.augment_presets import PRESETS
from vit_jax.config.values import Choice, Flag, Integer, Modules, Number, Numbers, Rates, Span, Text

# What a config sets a key to that whoever runs it has to say.
REQUIRED = "<REQUIRED>"

# --------------------------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Key:
    """One key: its default, what it means, and which values are legal.

    optional: whether None is legal too, and the value comes from elsewhere then: that of
        `augment.preset`, or of the weights in `init_from`.
    """

    default: Any
    meaning: str
    legal: Integer | Number | Numbers | Flag | Choice | Text | Span | Rates | Modules
    optional: bool = False


def _of_preset(path: str, meaning: str, legal: Integer | Number | Flag | Choice) -> dict[str, Key]:
    """A key that takes its value from `augment.preset` where nobody sets it."""
    return {path: Key(None, meaning, legal, optional=True)}


KEYS: dict[str, Key] = {
    "seed": Key(
        0, "random numbers of initialisation, data order, augmentation, dropout", Integer()
    ),
    "plugins": Key(
        "",
        "modules to import before anything is built, such as my_module; docs/extending.md",
        Modules(),
    ),
    # Data: where images come from and how they are made to fit the model.
    "dataset": Key(
        "digits",
        "folder:PATH, csv:PATH, jsonl:PATH, tfds:NAME of TensorFlow Datasets, or digits",
        Text(),
    ),
    "data.train": Key("train", "split to learn from, or a part: train[:90%]", Text(filled=True)),
    "data.validation": Key(
        "", "part of the training data to choose 'best' by; empty: none", Text()
    ),
    "data.test": Key("test", "split to report on; it never chooses anything", Text(filled=True)),
    "data.dir": Key(
        "", "where TensorFlow Datasets keeps prepared data; empty: its own default", Text()
    ),
    "data.manual_dir": Key(
        "", "files fetched by hand for a set of TensorFlow Datasets; empty: none", Text()
    ),
    "data.holdout": Key(
        0.2, "share of each class held out as test where a dataset has no such split", Number(0, 1)
    ),
    "data.split_seed": Key(
        0, "chooses which images are held out as test; the same for every `seed`", Integer()
    ),
    # Of a file of labels: docs/data.md says what is found without them.
    "data.path_column": Key(
        "", "csv, jsonl: column with the path or name of the image; empty: found", Text()
    ),
    "data.label_column": Key(
        "", "csv, jsonl: column with the label, or NAME,NAME,... of 0 and 1; empty: found", Text()
    ),
    "data.image_dir": Key(
        "", "csv, jsonl: folder that paths start from; empty: that of the file", Text()
    ),
    "data.sampling": Key(
        "natural",
        "natural: every image once an epoch; balanced: every class equally often",
        Choice(("natural", "balanced")),
    ),
    "data.on_decode_error": Key(
        "skip",
        "an image that cannot be read: skip replaces it in training and leaves it out of "
        "evaluation; raise ends the run",
        Choice(("skip", "raise")),
    ),
    "data.channels": Key(
        None,
        "channels of the images: 3 RGB, 1 grey, another number as stored; None: the model's",
        Integer(1),
        optional=True,
    ),
    # These come with the weights of `init_from`; without, they 0.5, 0.5, 1, bicubic, cover, False.
    "data.mean": Key(
        None, "subtracted from pixels scaled to 0..1, per channel", Numbers(), optional=True
    ),
    "data.std": Key(None, "divides the pixels after that, per channel", Numbers(), optional=True),
    "data.crop": Key(
        None,
        "share of the resized image's side that the model sees",
        Number(0.01, 1),
        optional=True,
    ),
    "data.interpolation": Key(
        None,
        "how images are resized",
        Choice(("bicubic", "bilinear", "lanczos")),
        optional=True,
    ),
    "data.resize": Key(
        None,
        "cover: keeps the ratio of the sides, cuts out the centre; squash: squeezes the whole in; "
        "pad: fits the whole in, the rest is of the mean",
        Choice(("cover", "squash", "pad")),
        optional=True,
    ),
    "data.color_management": Key(
        None, "whether colours become sRGB by the profile of a file", Flag(), optional=True
    ),
    "data.workers": Key(
        0, "processes that load images; 0: threads of this one", Integer(high=1024)
    ),
    # Augmentation of training images; docs/augmentation.md names the papers.
    "augment.preset": Key(
        "none", "one dial for the augment keys whose default is None", Choice(tuple(PRESETS))
    ),
    **_of_preset(
        "augment.random_resized_crop", "smallest share of a random crop; 0: none", Number(0, 1)
    ),
    "augment.rotate": Key(0.0, "largest rotation, in degrees", Number(0, 180)),
    "augment.shift": Key(0.0, "largest shift, as a share of the image's side", Number(0, 1)),
    "augment.scale": Key(0.0, "largest change of size: 0.1 is from 1/1.1 to 1.1", Number(0, 1)),
    "augment.shear": Key(0.0, "largest shear, in pixels sideways per pixel down", Number(0, 1)),
    "augment.pad_crop": Key(0, "pixels of padding before a random crop", Integer(high=4096)),
    **_of_preset("augment.flip", "probability of a left-right flip", Number(0, 1)),
    "augment.flip_vertical": Key(0.0, "probability of an upside-down flip", Number(0, 1)),
    **_of_preset(
        "augment.policy",
        "rand: RandAugment; auto-...: AutoAugment; three: 3-Augment",
        Choice(("none", "rand", "auto-cifar10", "auto-imagenet", "three")),
    ),
    **_of_preset("augment.rand_n", "RandAugment: operations for an image", Integer(1, high=100)),
    **_of_preset("augment.rand_m", "RandAugment: mean level of an operation", Number(0, 10)),
    **_of_preset("augment.rand_std", "RandAugment: deviation of the level", Number(0, 10)),
    **_of_preset(
        "augment.rand_increasing", "RandAugment: whether a higher level changes more", Flag()
    ),
    **_of_preset(
        "augment.color_jitter", "strength of brightness, contrast, saturation", Number(0, 1)
    ),
    **_of_preset("augment.erase", "probability of an erased rectangle", Number(0, 1)),
    **_of_preset(
        "augment.repeats", "differently augmented copies in a batch", Integer(1, high=1024)
    ),
    **_of_preset("augment.mixup", "alpha of MixUp; 0: none", Number(0, 1000)),
    **_of_preset("augment.cutmix", "alpha of CutMix; 0: none", Number(0, 1000)),
    **_of_preset("augment.mix_probability", "probability that a batch is mixed", Number(0, 1)),
    **_of_preset(
        "augment.cutmix_probability", "probability of CutMix where both are on", Number(0, 1)
    ),
    # A name of `python -m vit_jax models`; every field of that model is a legal key beside it.
    # Without a name it is the model of `init_from`, or else ViT-Ti/16.
    "model.name": Key(
        None, "which model; its fields are model.FIELD", Text(filled=True), optional=True
    ),
    "init_from": Key(
        "",
        "weights to begin with: a run folder, a file, hf://OWNER/NAME or https://...; empty: none",
        Text(),
    ),
    "precision": Key("float32", "type of the computation", Choice(("float32", "bfloat16"))),
    # What is minimised, and how.
    "objective.loss": Key(
        "softmax",
        "softmax: one class of several; sigmoid: yes or no for each",
        Choice(("softmax", "sigmoid")),
    ),
    "objective.class_weights": Key(
        "none",
        "balanced: classes weigh alike in the loss, however rare",
        Choice(("none", "balanced")),
    ),
    "objective.label_smoothing": Key(
        0.0, "share of the label spread over all classes", Number(0, 0.99)
    ),
    # Learning from another model beside the labels; docs/distillation.md.
    "distillation.teacher": Key(
        "",
        "a trained model: a run folder, a file, a published name, hf://... or https://...; "
        "empty: none",
        Text(),
    ),
    "distillation.kind": Key(
        "hard",
        "hard: the teacher's answer is a label; soft: its probabilities are the target",
        Choice(("hard", "soft")),
    ),
    "distillation.alpha": Key(0.5, "weight of the teacher's part of the loss", Number(0, 1)),
    "distillation.temperature": Key(
        1.0, "soft: divides the logits of teacher and student", Number(0.01)
    ),
    "distillation.cache": Key(
        False, "whether the teacher sees each image once only; needs augmentation off", Flag()
    ),
    "optimizer.name": Key(
        "adamw",
        "how gradients become updates; docs/optimizers.md says what each reads",
        Choice(("adamw", "lion", "lamb", "sgd", "adafactor", "muon")),
    ),
    "optimizer.learning_rate": Key(1e-3, "peak learning rate", Number()),
    "optimizer.weight_decay": Key(1e-4, "decoupled decay of matrices and kernels", Number()),
    "optimizer.b1": Key(0.9, "decay of the first moment", Number(0, 0.999999)),
    "optimizer.b2": Key(0.999, "decay of the second moment", Number(0, 0.999999)),
    "optimizer.eps": Key(1e-8, "added to the root of the second moment", Number()),
    "optimizer.momentum": Key(
        0.9, "sgd, muon: decay of the summed gradients; 0: none", Number(0, 0.999999)
    ),
    "optimizer.nesterov": Key(False, "sgd: whether momentum looks one step ahead", Flag()),
    "optimizer.moment_dtype": Key(
        "float32", "type in which the first moment is kept", Choice(("float32", "bfloat16"))
    ),
    "optimizer.clip": Key(1.0, "largest global norm of the gradient; 0: no clipping", Number()),
    "optimizer.layer_decay": Key(
        1.0,
        "learning rate of a block as a share of the next block's; 1: all alike",
        Number(0.01, 1),
    ),
    "optimizer.lr_multipliers": Key(
        (), "learning rate by parameter: (pattern, factor) pairs; factor 0 freezes", Rates()
    ),
    "schedule.name": Key(
        "cosine",
        "the learning rate after the warm-up; docs/optimizers.md has the formulas",
        Choice(("cosine", "linear", "rsqrt", "constant")),
    ),
    "schedule.warmup": Key("5%", "linear rise to the peak learning rate", Span(zero=True)),
    "schedule.end": Key(0.0, "last learning rate as a share of the peak", Number(0, 1)),
    "schedule.cooldown": Key("0%", "rsqrt, constant: linear fall to the end", Span(zero=True)),
    "schedule.timescale": Key(
        "10_000 steps", "rsqrt: time in which the rate falls to the root of a half", Span()
    ),
    "batch_size": Key(64, "images in one step, over all devices and hosts", Integer(1)),
    "accumulate_steps": Key(
        1, "parts of a batch computed one after the other, to save memory", Integer(1)
    ),
    "ema_decay": Key(0.0, "decay of an average of the parameters; 0: none is kept", Number(0, 1)),
    "max_nonfinite_steps": Key(
        10, "steps in a row without finite loss and gradient that end the run", Integer(1)
    ),
    "duration": Key("10 epochs", "length of the run", Span()),
    # Where it runs.
    "device": Key("auto", "kind of device to run on", Choice(("auto", "cpu", "gpu", "tpu"))),
    "mesh.data": Key(
        -1, "devices that share each batch; -1: all that are left", Integer(1, extra=(-1,))
    ),
    "mesh.fsdp": Key(
        1, "devices that share each batch and the train state too", Integer(1, extra=(-1,))
    ),
    "mesh.tensor": Key(1, "devices that share heads and hidden units", Integer(1, extra=(-1,))),
    "compile_cache": Key(
        "auto",
        "folder that keeps compiled programs; auto: .jax_cache beside the run folder; none: none",
        Text(filled=True),
    ),
    # What is kept and shown.
    "resume": Key(
        "auto",
        "auto: go on where the run folder stopped; must: only that; never: start afresh",
        Choice(("auto", "must", "never")),
    ),
    "checkpoint.every": Key("10%", "how often the state is saved", Span()),
    "checkpoint.keep": Key(3, "how many of the last checkpoints are kept", Integer(1)),
    "evaluate.every": Key("10%", "how often the model is evaluated", Span()),
    "evaluate.batch_size": Key(0, "images in one evaluation step; 0: batch_size", Integer()),
    "log.every": Key("1%", "how often training metrics are written", Span()),
    "log.diagnostics": Key(
        "",
        "how often attention, ranks and norms are looked at, such as 5%; docs/looking_inside.md",
        Span(empty=True),
    ),
    "log.wandb": Key("", "project of Weights & Biases to log to as well; empty: none", Text()),
    "profile": Key("", "START:STEPS, the steps to write a profiler trace of; empty: none", Text()),
}

# A run may go on with other values of these: they change neither the data nor the arithmetic.
FREE_KEYS = (
    *("mesh", "log", "checkpoint", "device", "resume", "profile", "compile_cache"),
    "plugins",  # a module may be renamed
    *("data.workers", "data.dir", "data.manual_dir", "data.on_decode_error"),
)
