"""Configuration schema: one table of all keys with default, meaning and valid values.

Constraints here concern single keys; `training/setup/checks.py` has the constraints between keys.
The keys of `augment` are in `config/augment_keys.py`.
"""

from vit_jax.config.augment_keys import AUGMENT_KEYS
from vit_jax.config.key import Key
from vit_jax.config.values import (
    Choice,
    ClassWeights,
    Evaluations,
    Flag,
    Fold,
    Integer,
    Modules,
    Names,
    Number,
    Numbers,
    Rates,
    Sizes,
    Span,
    Text,
)

# Names of `optimizer.name`; `register_optimizer` adds others.
OPTIMIZERS = ["adamw", "lion", "lamb", "sgd", "adafactor", "muon"]

# Placeholder in a config for a value that the user must set.
REQUIRED = "<REQUIRED>"

# --------------------------------------------------------------------------------------- the table


KEYS: dict[str, Key] = {
    "seed": Key(0, "seed of initialisation, data order, augmentation and dropout", Integer()),
    "plugins": Key(
        "",
        "modules to import first, such as my_module; docs/extending.md",
        Modules(),
    ),
    # Data: source and preprocessing of images.
    "dataset": Key(
        "digits",
        "folder:PATH, csv:PATH, jsonl:PATH, wds:PATH, tfds:NAME of TensorFlow Datasets, or digits",
        Text(),
    ),
    "data.train": Key("train", "split to train on, or a part: train[:90%]", Text(filled=True)),
    "data.limit": Key(
        0, "largest number of training images, drawn by class and split_seed; 0: all", Integer()
    ),
    "data.validation": Key(
        "", "part of the training data that selects the best checkpoint; empty: none", Text()
    ),
    "data.test": Key("test", "split for the test results; selects nothing", Text(filled=True)),
    "data.fold": Key("", "fold of data.train that is the test data; docs/studies.md", Fold()),
    "data.dir": Key(
        "", "folder of prepared data of TensorFlow Datasets; empty: its own default", Text()
    ),
    "data.manual_dir": Key(
        "", "folder of manually downloaded files for TensorFlow Datasets; empty: none", Text()
    ),
    "data.holdout": Key(
        0.2, "share of each class held out as test if the dataset has no such split", Number(0, 1)
    ),
    "data.split_seed": Key(
        0, "seed of the choice of held-out test images; independent of `seed`", Integer()
    ),
    "data.labels": Key(
        True, "whether labels are used; false: images only, such as for pre-training", Flag()
    ),
    # Columns of a manifest: docs/data.md describes their automatic detection.
    "data.path_column": Key(
        "", "csv, jsonl: column with the path or name of the image; empty: detected", Text()
    ),
    "data.label_column": Key(
        "",
        "csv, jsonl, parquet, hf: column of labels, or NAME,NAME,... of classes; empty: detected",
        Text(),
    ),
    "data.caption_column": Key(
        "", "csv, jsonl: column with a caption of the image; empty: detected", Text()
    ),
    "data.tokenizer": Key(
        "",
        "tokenizer of captions: a path, hf://OWNER/NAME, or clip; empty: one that is trained on "
        "the training captions",
        Text(),
    ),
    "data.text_length": Key(
        0,
        "tokens of a caption; 0: those of the tokenizer, of a trained one up to 77",
        Integer(3, extra=(0,), high=2**16),
    ),
    "data.group_column": Key(
        "", "csv, jsonl: column of groups, such as patients, each of which is in one fold", Text()
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
        "images that cannot be read: skip replaces them in training and excludes them from "
        "evaluation; raise ends the run",
        Choice(("skip", "raise")),
    ),
    "data.channels": Key(
        None,
        "channels of the images: 3 RGB, 1 grey, another number as stored; None: the model's",
        Integer(1),
        optional=True,
    ),
    # With `init_from` these come with the weights; otherwise 0.5, 0.5, 1, bicubic, cover, False.
    "data.mean": Key(
        None, "mean subtracted from pixels scaled to 0..1, per channel", Numbers(), optional=True
    ),
    "data.std": Key(
        None, "divisor of the pixels after `data.mean`, per channel", Numbers(), optional=True
    ),
    "data.crop": Key(
        None,
        "side of the central crop as a share of the resized image's side",
        Number(0.01, 1),
        optional=True,
    ),
    "data.interpolation": Key(
        None,
        "interpolation of resizing",
        Choice(("bicubic", "bilinear", "lanczos")),
        optional=True,
    ),
    "data.resize": Key(
        None,
        "cover: keeps the aspect ratio and crops the centre; squash: changes the aspect ratio; "
        "pad: keeps the aspect ratio and pads with the mean",
        Choice(("cover", "squash", "pad")),
        optional=True,
    ),
    "data.max_tokens": Key(
        None,
        "budget of patches of an image at its own aspect ratio, for a NaFlexViT; 0: one size",
        Integer(high=65_535),
        optional=True,
    ),
    "data.color_management": Key(
        None, "whether colours are converted to sRGB by the file's profile", Flag(), optional=True
    ),
    "data.workers": Key(
        0, "worker processes that load images; 0: threads of the main process", Integer(high=1024)
    ),
    **AUGMENT_KEYS,
    # A name of `python -m vit_jax models`; every field of that model is a valid key of `model` too.
    # Without a name it is the model of `init_from`, or else ViT-Ti/16.
    "model.name": Key(
        None, "name of the model; its fields are model.FIELD", Text(filled=True), optional=True
    ),
    "init_from": Key(
        "",
        "initial weights: a run folder, a file, hf://OWNER/NAME or https://...; empty: none",
        Text(),
    ),
    "precision": Key("float32", "type of the computation", Choice(("float32", "bfloat16"))),
    # Loss and optimisation.
    "task": Key(
        "classification",
        "what is learned: a name of vit_jax.tasks; its fields are objective.FIELD",
        Text(filled=True),
    ),
    "objective.loss": Key(
        "softmax", "one class per image; sigmoid: each on its own", Choice(("softmax", "sigmoid"))
    ),
    "objective.class_weights": Key(
        "none",
        "balanced: all classes have equal weight in the loss, however rare; or weights by name",
        ClassWeights(),
    ),
    "objective.focal_gamma": Key(
        0.0, "focal loss: exponent of 1 - p; 0: plain cross-entropy", Number(0, 100)
    ),
    "objective.negative_gamma": Key(
        None,
        "asymmetric loss: exponent of p where a class is absent; None: focal_gamma",
        Number(0, 100),
        optional=True,
    ),
    "objective.negative_margin": Key(
        0.0, "asymmetric loss: what p has to exceed where a class is absent", Number(0, 0.99)
    ),
    "objective.label_smoothing": Key(
        0.0, "share of the label spread over all classes", Number(0, 0.99)
    ),
    "objective.patch_sizes": Key(
        None,
        "patch sizes of a FlexiViT, of which each training step draws one; None: the model's",
        Sizes(),
        optional=True,
    ),
    # Distillation from another model in addition to the labels; docs/distillation.md.
    "distillation.teacher": Key(
        "",
        "a trained model: a run folder, a file, a published name, hf://... or https://...; "
        "empty: none",
        Text(),
    ),
    "distillation.kind": Key(
        "hard",
        "hard: the teacher's top class is the target; soft: its probabilities are",
        Choice(("hard", "soft")),
    ),
    "distillation.alpha": Key(0.5, "weight of the distillation loss", Number(0, 1)),
    "distillation.temperature": Key(
        1.0, "soft: temperature of the logits of teacher and student", Number(0.01)
    ),
    "distillation.cache": Key(
        False, "whether to cache the teacher's logits; needs augmentation off", Flag()
    ),
    "optimizer.name": Key(
        "adamw",
        "name of the optimizer; docs/optimizers.md has the keys that each uses",
        Choice(OPTIMIZERS),
    ),
    "optimizer.learning_rate": Key(1e-3, "peak learning rate", Number()),
    "optimizer.weight_decay": Key(1e-4, "decoupled decay of matrices and kernels", Number()),
    "optimizer.weight_decay_end": Key(
        None,
        "decay after the last update, reached by half a cosine; None: that of weight_decay",
        Number(),
        optional=True,
    ),
    "optimizer.b1": Key(0.9, "decay of the first moment", Number(0, 0.999999)),
    "optimizer.b2": Key(0.999, "decay of the second moment", Number(0, 0.999999)),
    "optimizer.eps": Key(1e-8, "added to the root of the second moment", Number()),
    "optimizer.momentum": Key(
        0.9, "sgd, muon: decay of the momentum; 0: no momentum", Number(0, 0.999999)
    ),
    "optimizer.nesterov": Key(False, "sgd: whether momentum is Nesterov's", Flag()),
    "optimizer.moment_dtype": Key(
        "float32", "type of the stored first moment", Choice(("float32", "bfloat16"))
    ),
    "optimizer.clip": Key(1.0, "largest global norm of the gradient; 0: no clipping", Number()),
    "optimizer.layer_decay": Key(
        1.0,
        "learning rate of a block as a share of the next block's; 1: no decay",
        Number(0.01, 1),
    ),
    "optimizer.lr_multipliers": Key(
        (), "learning rate multipliers: (pattern, factor) pairs; factor 0 freezes", Rates()
    ),
    "schedule.name": Key(
        "cosine",
        "learning rate schedule after the warm-up; docs/optimizers.md has the formulas",
        Choice(("cosine", "linear", "rsqrt", "constant")),
    ),
    "schedule.warmup": Key("5%", "linear rise to the peak learning rate", Span(zero=True)),
    "schedule.end": Key(0.0, "last learning rate as a share of the peak", Number(0, 1)),
    "schedule.cooldown": Key("0%", "rsqrt, constant: linear fall to the end", Span(zero=True)),
    "schedule.timescale": Key(
        "10_000 steps", "rsqrt: time in which the rate falls to 1/sqrt(2)", Span()
    ),
    "batch_size": Key(64, "images in one step, over all devices and hosts", Integer(1)),
    "accumulate_steps": Key(
        1, "gradient accumulation: sequential parts of a batch, to save memory", Integer(1)
    ),
    "ema_decay": Key(0.0, "decay of the parameters' moving average; 0: no average", Number(0, 1)),
    "max_nonfinite_steps": Key(
        10, "consecutive steps with non-finite loss or gradient that end the run", Integer(1)
    ),
    "duration": Key("10 epochs", "length of the run", Span()),
    "stop_after": Key(
        "",
        "ends the run after so many evaluations without a better one on the validation data",
        Evaluations(),
    ),
    # Devices.
    "device": Key("auto", "type of device to run on", Choice(("auto", "cpu", "gpu", "tpu"))),
    "mesh.data": Key(
        -1, "devices that share each batch; -1: all remaining devices", Integer(1, extra=(-1,))
    ),
    "mesh.fsdp": Key(
        1, "devices that share each batch and the train state", Integer(1, extra=(-1,))
    ),
    "mesh.tensor": Key(1, "devices that share heads and hidden units", Integer(1, extra=(-1,))),
    "compile_cache": Key(
        "auto",
        "folder of compiled programs; auto: .jax_cache beside the run folder; none: no cache",
        Text(filled=True),
    ),
    # Checkpoints, evaluation and logs.
    "resume": Key(
        "auto",
        "auto: resume the run in the folder, if any; must: require one; never: start afresh",
        Choice(("auto", "must", "never")),
    ),
    "checkpoint.every": Key("10%", "interval of checkpoints", Span()),
    "checkpoint.keep": Key(3, "number of latest checkpoints to keep", Integer(1)),
    "evaluate.every": Key("10%", "interval of evaluations", Span()),
    "evaluate.batch_size": Key(0, "images in one evaluation step; 0: batch_size", Integer()),
    "evaluate.patch_sizes": Key(
        None,
        "patch sizes at which a FlexiViT is evaluated too; None: objective.patch_sizes",
        Sizes(),
        optional=True,
    ),
    # Evaluators besides those of the task; docs/evaluation.md.
    "evaluators": Key(
        "",
        "further evaluators: knn, linear_probe, few_shot or your own; docs/evaluation.md",
        Names(),
    ),
    "evaluate.probe_every": Key(
        "", "interval of `evaluators`; empty: that of evaluate.every", Span(empty=True)
    ),
    "evaluate.probe_data": Key(
        "",
        "dataset of `evaluators`, such as folder:PATH; its splits train and test are used; empty: "
        "the run's own",
        Text(),
    ),
    "log.every": Key("1%", "interval of training metrics", Span()),
    "log.diagnostics": Key(
        "",
        "interval of diagnostics of attention, ranks and norms, such as 5%; docs/looking_inside.md",
        Span(empty=True),
    ),
    "log.wandb": Key("", "project of Weights & Biases to log to as well; empty: none", Text()),
    "profile": Key("", "START:STEPS, the steps of a profiler trace; empty: none", Text()),
}

# A resumed run may change these keys: they affect neither the data nor the arithmetic.
FREE_KEYS = (
    *("mesh", "log", "checkpoint", "device", "resume", "profile", "compile_cache"),
    "plugins",  # a module may be renamed
    *("evaluators", "evaluate.probe_every", "evaluate.probe_data"),
    *("data.workers", "data.dir", "data.manual_dir", "data.on_decode_error"),
)


def is_free(key: str) -> bool:
    """Return whether a key is one of `FREE_KEYS`, or in one of their sections."""
    return any(key == free or key.startswith(f"{free}.") for free in FREE_KEYS)
