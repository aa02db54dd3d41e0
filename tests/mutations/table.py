"""Small mistakes that tests have to notice: a line of the package each, and what it breaks.

Every one was made once, here or elsewhere, or could be made in a tired minute; none ends in an
error of its own. `run.py` makes them one by one in a copy of the tree and runs the nearest tests.
"""

from typing import NamedTuple


class Mutation(NamedTuple):
    """One mistake.

    name: short, for `--only`.
    breaks: consequence, in a few words.
    file: of the package, without `vit_jax/`.
    old, new: text that stands exactly once in the file, and what it becomes.
    tests: the nearest ones, as arguments of pytest; paths begin below `tests/`.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: str


MUTATIONS = (
    # ----------------------------------------------------------------------------------------- data
    Mutation(
        "exif-ignored",
        "photographs taken upright lie on their side",
        "data/images/decoding.py",
        "return image.getexif().get(ExifTags.Base.Orientation)",
        "return None",
        "unit/data/images/test_decoding.py -k exif",
    ),
    Mutation(
        "alpha-on-black",
        "what is transparent is black",
        "data/images/transparency.py",
        'Image.new("RGBA", image.size, "white")',
        'Image.new("RGBA", image.size, "black")',
        "unit/data/images/test_transparency.py",
    ),
    Mutation(
        "table-class-order",
        "classes of a table are numbered as they come, differently for a sorted copy",
        "data/sources/manifest/listing.py",
        'or sorted({n for path, of in splits["train"].items() for n in shares.get(path, of)})',
        'or list({n: 0 for path, of in splits["train"].items() for n in shares.get(path, of)})',
        "unit/data/sources/manifest/test_listing.py -k 'csv_as or order'",
    ),
    Mutation(
        "labels-not-in-fingerprint",
        "a label that is corrected in the middle of a run goes unnoticed",
        "data/sources/files.py",
        "        content.update(labels.tobytes())\n",
        "        pass\n",
        "unit/data/sources/manifest/test_listing.py -k fingerprint",
    ),
    Mutation(
        "every-epoch-alike",
        "examples come in the same order in every epoch",
        "data/sampler.py",
        "np.random.default_rng((FOR_ORDER, seed, epoch))",
        "np.random.default_rng((FOR_ORDER, seed, 0))",
        "unit/data/test_sampler.py",
    ),
    Mutation(
        "padding-is-no-padding",
        "evaluation counts the rows that fill the last batch",
        "data/streams.py",
        "mask.append(example is not self.padding)",
        "mask.append(True)",
        "unit/data/test_pipeline.py -k evaluation",
    ),
    Mutation(
        "half-steps-rounded-down",
        "durations are up to a step too short",
        "config/durations.py",
        "math.floor(exact + 0.5)",
        "math.floor(exact)",
        "unit/config/test_durations.py",
    ),
    # --------------------------------------------------------------------------------------- models
    Mutation(
        "prefix-positions-lost",
        "the class token has no position once positions are resized",
        "models/positions/tables.py",
        "return jnp.concatenate([in_front, resized], axis=1)",
        "return jnp.concatenate([0 * in_front, resized], axis=1)",
        "unit/models/positions/test_tables.py -k prefix",
    ),
    Mutation(
        "rotary-axes-exchanged",
        "rows are rotated as columns",
        "models/positions/rotary.py",
        'axes = (columns, rows) if way.first == "x" else (rows, columns)',
        'axes = (rows, columns) if way.first == "x" else (columns, rows)',
        "unit/models/positions/test_rotary.py",
    ),
    Mutation(
        "padding-attended",
        "tokens attend to what only fills up a batch",
        "models/attention/multi_head.py",
        "        if key_mask is not None:",
        "        if False:",
        "unit/models/vit/test_modern_options.py -k masked",
    ),
    Mutation(
        "norm-of-keys-of-another-type",
        "a model with RMS norms has layer norms of queries and keys",
        "models/attention/multi_head.py",
        "norm_type = self.norm_type if self.qk_norm is True else self.qk_norm",
        'norm_type = "layer" if self.qk_norm is True else self.qk_norm',
        "unit/models/vit/test_modern_options.py -k norms",
    ),
    Mutation(
        "drop-path-not-rescaled",
        "kept branches are too small in training",
        "models/layers/residual.py",
        "jnp.where(kept, x / divisor, ",
        "jnp.where(kept, x, ",
        "unit/models/layers/test_residual.py -k drop_path",
    ),
    Mutation(
        "swin-without-mask",
        "shifted windows see across the edge of the image",
        "models/swin/attention.py",
        "mask = windows.mask()",
        "mask = None",
        "unit/models/attention/test_windows.py -k any_map",
    ),
    Mutation(
        "swin-attention-never-drops",
        "a rate of Swin does nothing",
        "models/swin/attention.py",
        "dropout_rate=self.attention_dropout,",
        "dropout_rate=0.0,",
        "contract/test_architectures.py -k 'rate_acts and Swin-attention'",
    ),
    Mutation(
        "batch-statistics-in-evaluation",
        "an answer depends on the other images of its batch",
        "models/layers/convolutions.py",
        "        if not train:",
        "        if False:",
        "contract/test_architectures.py -k 'alike_in_any_batch and ResNet'",
    ),
    Mutation(
        "attention-weights-not-passed-on",
        "a ViT gives no attention weights",
        "models/block.py",
        "asked = (train, attention_weights, grid, key_mask)",
        "asked = (train, False, grid, key_mask)",
        "contract/test_architectures.py -k 'on_request and ViT and not Stem and not Hybrid'",
    ),
    Mutation(
        "gpu-bound-off-by-one",
        "A100 cards do without the fused kernel",
        "models/attention/implementations.py",
        "(call.compute_capability or (0, 0)) < (8, 0)",
        "(call.compute_capability or (0, 0)) <= (8, 0)",
        "unit/models/attention/test_implementations.py -k auto_takes",
    ),
    Mutation(
        "channels-not-rescaled",
        "weights for colour give other magnitudes with more channels",
        "weights/adapt.py",
        "return repeated * np.float32(old / channels)",
        "return repeated",
        "unit/weights/test_adapt.py -k channels",
    ),
    # ------------------------------------------------------------------------------------- training
    Mutation(
        "late-warm-up",
        "the peak of the learning rate comes one step late",
        "training/optim/schedules.py",
        "warmup_steps=warmup,",
        "warmup_steps=warmup + 1,",
        "unit/training/optim/test_schedules.py",
    ),
    Mutation(
        "norms-decayed",
        "weight decay shrinks norms and biases too",
        "training/optim/optimizer.py",
        "optax.add_decayed_weights(weight_decay, decayed)",
        "optax.add_decayed_weights(weight_decay)",
        "unit/training/optim/test_optimizer.py -k decay_shrinks",
    ),
    Mutation(
        "projections-not-split",
        "Muon turns queries, keys and values as one matrix",
        "models/description/roles.py",
        "Role.QKV: Matrix(inputs=1, separate=1, outputs=2)",
        "Role.QKV: Matrix(inputs=1, outputs=3)",
        "unit/training/optim/test_muon.py -k q_k_and_v",
    ),
    Mutation(
        "reduction-of-the-stage-before",
        "what precedes the blocks of a stage learns like the blocks before it",
        "models/description/parameters.py",
        "return earlier if key > inside[-1] else earlier + 1",
        "return earlier",
        "unit/models/description/test_parameters.py -k stage",
    ),
    Mutation(
        "role-of-the-order",
        "a parameter that a table does not have is described by chance",
        "models/description/parameters.py",
        "        if entry is None:\n            raise _without_role(path)\n",
        "        if entry is None:\n            entry, number = list(node)[0], None\n",
        "unit/models/description/test_parameters.py -k not_in_the_table",
    ),
    Mutation(
        "layer-decay-off-by-one",
        "the head learns faster than it should, and so does every block",
        "training/optim/param_groups.py",
        "settings.layer_decay ** (depth + 1 - layer)",
        "settings.layer_decay ** (depth - layer)",
        "unit/training/optim/test_param_groups.py -k layer_decay",
    ),
    Mutation(
        "targets-not-smoothed",
        "label smoothing takes from the true class and gives to none",
        "tasks/classification.py",
        "targets = optax.smooth_labels(targets, smoothing)",
        "targets = (1 - smoothing) * targets",
        "unit/tasks/test_classification.py -k smoothed",
    ),
    Mutation(
        "labels-not-mixed",
        "MixUp and CutMix mix images and keep labels",
        "tasks/mixing.py",
        "return weight * targets + (1 - weight) * _partners(targets)",
        "return targets",
        "unit/tasks/test_mixing.py -k stored_rows",
    ),
    Mutation(
        "several-labels-not-mixed",
        "the same, where images have several labels",
        "tasks/classification.py",
        "return targets if own_share is None else",
        "return targets if own_share is None or self.multi_label else",
        "unit/tasks/test_classification.py -k mixed",
    ),
    Mutation(
        "class-weights-not-mixed",
        "a mixed image weighs what the class of one of the two does",
        "tasks/classification.py",
        "return weights if own_share is None else mix_targets(weights[:, None], own_share)[:, 0]",
        "return weights",
        "unit/tasks/test_classification.py -k mixed",
    ),
    Mutation(
        "parts-share-random-numbers",
        "all parts of an accumulated batch drop and mix alike",
        "training/step.py",
        "keys = jax.random.split(rng, parts)",
        "keys = jnp.broadcast_to(rng, (parts,))",
        "unit/training/test_step.py -k random_numbers",
    ),
    Mutation(
        "soft-loss-unscaled",
        "a high temperature makes the teacher quiet",
        "tasks/distillation.py",
        "return self.temperature**2 * jnp.sum(",
        "return jnp.sum(",
        "unit/tasks/test_distillation.py -k soft_loss",
    ),
    Mutation(
        "resume-skips-a-batch",
        "a resumed run never sees one of its batches",
        "training/setup/experiment.py",
        "start_step=start_step,",
        "start_step=start_step + (start_step > 0),",
        "integration/training/test_golden_runs.py -k straight_through",
    ),
    Mutation(
        "accumulation-ignored",
        "a batch that should be computed in parts does not fit into memory",
        "training/setup/experiment.py",
        "accumulate_steps=self.config.accumulate_steps,\n            ema",
        "ema_decay",
        "unit/training/setup/test_experiment.py -k step",
    ),
    Mutation(
        "head-of-other-classes",
        "fine-tuning keeps the head where only the order of the classes is another",
        "runs/record.py",
        "return mine == theirs",
        "return sorted(mine) == sorted(theirs)",
        "unit/training/setup/test_pretrained_init.py -k another_order",
    ),
    Mutation(
        "rate-of-the-next-step",
        "the log shows the learning rate of one step later",
        "training/loop.py",
        "max(int(updates) - 1, 0)",
        "int(updates)",
        "integration/training/test_golden_runs.py -k learning_rate",
    ),
    Mutation(
        "one-checkpoint-too-many",
        "runs take more room than asked for",
        "training/checkpointing/checkpoints.py",
        "LatestN(keep)",
        "LatestN(keep + 1)",
        "unit/training/checkpointing/test_checkpoints.py -k as_many",
    ),
    # ---------------------------------------------------------------------- evaluation and commands
    Mutation(
        "padding-counted",
        "padding is among the predictions",
        "evaluation/runner.py",
        'np.concatenate([row.pop("mask") for row in rows]) > 0',
        'np.concatenate([row.pop("mask") for row in rows]) >= 0',
        "unit/evaluation/test_runner.py",
    ),
    Mutation(
        "top-six",
        "top-5 accuracy forgives one class more",
        "evaluation/metrics.py",
        "np.mean((self.rank < TOP)",
        "np.mean((self.rank <= TOP)",
        "unit/evaluation/test_metrics.py",
    ),
    Mutation(
        "best-is-last",
        "--checkpoint=best takes the last one",
        "runs/run_dir.py",
        'wanted = best if which == "best" else which',
        'wanted = steps[-1] if which == "best" else which',
        "unit/runs/test_run_dir.py",
    ),
    Mutation(
        "binary-classes-exchanged",
        "a model of one output names the other class",
        "inference/classifier.py",
        "of.concatenate([1 - yes, yes], axis=-1)",
        "of.concatenate([yes, 1 - yes], axis=-1)",
        "unit/inference/test_classifier.py -k single_output",
    ),
    Mutation(
        "predict-ignores-raw",
        "predict --raw answers with the average",
        "commands/predict.py",
        "load_classifier(run, parse_checkpoint(checkpoint), raw=raw, **fields)",
        "load_classifier(run, parse_checkpoint(checkpoint), **fields)",
        "unit/commands/test_raw_arguments.py -k 'predict'",
    ),
    Mutation(
        "evaluate-ignores-raw",
        "evaluate --raw measures the average",
        "commands/evaluate.py",
        "read_variables(which, raw=raw, record=record)",
        "read_variables(which, record=record)",
        "unit/commands/test_raw_arguments.py -k 'evaluate'",
    ),
    Mutation(
        "rollout-without-identity",
        "rollout leaves the residual paths out",
        "analysis/attention/compute.py",
        "mixed += residual * np.eye(tokens)",
        "mixed += 0 * np.eye(tokens)",
        "unit/analysis/attention/test_compute.py -k rollout_is",
    ),
    # --------------------------------------------------------------------------- self-distillation
    Mutation(
        "a-view-is-its-own-target",
        "crops are compared with themselves too",
        "tasks/self_distillation.py",
        "1 - jnp.eye(large, views)",
        "jnp.ones((large, views))",
        "unit/tasks/test_self_distillation.py -k every_pair",
    ),
    Mutation(
        "padding-moves-the-centre",
        "the centre follows rows that are no images",
        "tasks/self_distillation.py",
        '"b,bgk->k", mask, teacher',
        '"b,bgk->k", jnp.ones_like(mask), teacher',
        "unit/tasks/test_self_distillation.py -k padding",
    ),
    Mutation(
        "late-parameters-in-the-norm",
        "what does not learn yet shrinks the updates of the rest",
        "training/optim/optimizer.py",
        "_started(lambda _: optax.identity(), frozen_until), clip",
        "optax.identity(), clip",
        "unit/training/optim/test_optimizer.py -k in_the_norm_before",
    ),
)
