"""Aliases: the names that other trainers give to configuration keys, with the key that each means.

They are used in suggestions only: a key has one name, and the error for an unknown key suggests it.
The aliases are options of timm's, torchvision's, DeiT's, Ultralytics' and Hugging Face's training
scripts.
"""

import difflib
import re
from collections.abc import Iterable

from vit_jax.config.schema import KEYS, Key
from vit_jax.config.values import Span

_SHORT = {
    "accumulate_steps": "accumulate accum accum_iter accum_steps grad_accum grad_accum_steps "
    "accumulation_steps gradient_accumulation_steps update_freq accumulate_grad_batches",
    "augment.color_jitter": "color_jitter jitter colour_jitter",
    "augment.cutmix": "cutmix cutmix_alpha",
    "augment.erase": "reprob random_erase random_erasing erasing",
    "augment.flip": "hflip fliplr horizontal_flip",
    "augment.flip_vertical": "vflip flipud vertical_flip",
    "augment.mix_probability": "mixup_prob mix_prob",
    "augment.cutmix_probability": "mix_switch mixup_switch_prob cutmix_prob",
    "augment.mixup": "mixup mixup_alpha",
    "augment.policy": "aa auto_augment autoaugment randaugment trivialaugment three_augment",
    "augment.preset": "augment augmentation augmentations aug augs",
    "augment.rand_m": "ra_magnitude magnitude",
    "augment.rand_n": "ra_n num_ops",
    "augment.random_resized_crop": "rrc random_crop crop_scale scale_min",
    "augment.repeats": "aug_repeats repeated_aug ra_sampler ra_reps",
    "augment.rotate": "degrees rotation",
    "max_nonfinite_steps": "bad_steps nan_steps skip_nonfinite",
    "batch_size": "b bs batch batchsize train_batch_size per_device_train_batch_size global_batch "
    "batch_size_per_gpu",
    "checkpoint.every": "save_every save_steps save_freq save_interval save_period save_epoch "
    "checkpoint_every checkpoint_freq save_strategy",
    "checkpoint.keep": "save_total_limit keep checkpoint_hist max_to_keep",
    "compile_cache": "cache cache_dir compilation_cache",
    "data.crop": "crop_pct center_crop crop",
    "data.fold": "fold kfold cv cv_fold",
    "data.group_column": "group groups group_col group_by",
    "data.interpolation": "interpolation train_interpolation",
    "data.holdout": "val_split test_split val_ratio valid_size test_size validation_split holdout",
    "data.limit": "max_train_samples num_samples subset_size num_train_images limit_train_batches",
    "data.mean": "mean image_mean",
    "data.on_decode_error": "strict",
    "data.sampling": "sampler sampling balanced oversample weighted_sampler",
    "data.split_seed": "split_seed",
    "data.std": "std image_std",
    "data.test": "test test_dir",
    "data.train": "train train_dir train_split",
    "data.validation": "val valid validation val_dir val_data validation_dir",
    "data.workers": "workers num_workers j nproc dataloader_num_workers num_proc",
    "dataset": "data data_dir data_path data_set root datasets dataset_name dataset_dir folder "
    "data_root train_data path",
    "device": "gpu cuda accelerator platform backend",
    "distillation.alpha": "distillation_alpha distill_alpha",
    "distillation.kind": "distillation_type distill_type",
    "distillation.teacher": "teacher teacher_model teacher_path",
    "distillation.temperature": "temperature tau distillation_tau distill_temperature",
    "duration": "epochs epoch num_epochs max_epochs num_train_epochs n_epochs ep steps max_steps "
    "num_steps total_steps iterations iters max_iter train_steps training_steps total_epochs",
    "ema_decay": "ema model_ema model_ema_decay",
    "evaluate.batch_size": "eval_batch_size val_batch_size validation_batch_size "
    "per_device_eval_batch_size",
    "evaluate.every": "eval_every eval_steps eval_freq eval_interval val_interval "
    "check_val_every_n_epoch evaluation_strategy eval_strategy",
    "evaluate.probe_data": "probe_dataset knn_data probe_data_path",
    "evaluate.probe_every": "probe_freq probe_interval knn_every knn_freq",
    "evaluators": "evaluator metrics probes probe knn knn_eval linear_eval online_evaluators",
    "init_from": "pretrained weights checkpoint ckpt finetune finetune_from initial_checkpoint "
    "load load_from model_path pretrained_path weights_path init_checkpoint "
    "pretrained_model_name_or_path model_name_or_path",
    "log.every": "log_every log_interval logging_steps print_freq log_steps",
    "log.diagnostics": "inside log_inside watch",
    "log.wandb": "wandb wandb_project log_wandb report_to",
    "mesh.data": "devices num_devices gpus num_gpus world_size n_gpu",
    "mesh.fsdp": "fsdp zero",
    "mesh.tensor": "tensor_parallel tp mp",
    "model.attention_dropout": "attn_drop attn_drop_rate",
    "model.drop_path": "drop_path drop_path_rate stochastic_depth",
    "model.image_size": "img_size image_size imgsz size resolution input_size img image_resolution "
    "crop_size input_resolution",
    "model.in_channels": "in_chans channels in_channels num_channels",
    "model.lora_rank": "lora lora_rank lora_r rank",
    "model.mlp_dropout": "dropout drop drop_rate",
    "model.name": "model arch a architecture backbone net network model_name",
    "model.num_classes": "num_classes nb_classes classes n_classes num_labels",
    "model.patch_size": "patch_size patch",
    "model.pool": "gp global_pool pool pooling",
    "model.remat": "remat grad_checkpointing gradient_checkpointing checkpointing",
    "objective.class_weights": "class_weight class_weights weighted_loss",
    "objective.focal_gamma": "gamma focal focal_loss fl_gamma",
    "objective.negative_gamma": "gamma_neg asl asymmetric_loss",
    "objective.negative_margin": "clip_prob asl_clip",
    "objective.label_smoothing": "smoothing label_smoothing ls label_smoothing_factor",
    "objective.loss": "loss criterion bce_loss",
    "optimizer.b1": "beta1 adam_beta1",
    "optimizer.b2": "beta2 adam_beta2",
    "optimizer.clip": "clip clip_grad grad_clip max_grad_norm clip_norm gradient_clip_val "
    "clip_grad_norm clipping",
    "optimizer.eps": "eps opt_eps adam_epsilon epsilon",
    "optimizer.layer_decay": "layer_decay llrd lr_decay layerwise_decay",
    "optimizer.learning_rate": "lr lr0 base_lr learning_rate lrate max_lr peak_lr blr rate eta",
    "optimizer.momentum": "momentum",
    "optimizer.name": "opt optim optimizer optimiser",
    "optimizer.lr_multipliers": "rates lr_mult freeze frozen param_groups",
    "optimizer.weight_decay": "wd weight_decay decay l2",
    "precision": "dtype amp fp16 bf16 bfloat16 half mixed_precision amp_dtype",
    "profile": "profiler trace",
    "resume": "resume_from auto_resume resume_from_checkpoint",
    "schedule.cooldown": "cooldown cooldown_epochs",
    "schedule.end": "min_lr lrf final_lr end_lr min_learning_rate",
    "schedule.name": "sched scheduler lr_scheduler lr_scheduler_type lr_schedule schedule",
    "schedule.warmup": "warmup warm_up warmup_steps warmup_epochs num_warmup_steps "
    "lr_warmup_epochs warmup_ratio warmup_iters",
    "stop_after": "patience early_stopping early_stop early_stopping_patience",
    "seed": "random_seed rng manual_seed",
}
_BY_SHORT = {word: key for key, words in _SHORT.items() for word in words.split()}

# The option of the command that is not a key.
_OF_WORKDIR = (
    "workdir output output_dir out_dir out logdir log_dir save_dir run_dir exp_name experiment "
    "checkpoint_dir work_dir rundir outdir save_path"
)

_WITH_UNIT = ' (with its unit, such as "5 epochs"; a bare number is steps)'


def short_names() -> dict[str, tuple[str, ...]]:
    """Return the aliases of each key."""
    return {key: tuple(words.split()) for key, words in _SHORT.items()}


def suggest_key(path: str) -> str:
    """Return the hint for a key that does not exist, such as `; did you mean 'seed'?`."""
    name = _bare(path)
    last = name.rsplit(".", 1)[-1]
    inside = [key for key in KEYS if key.startswith(f"{name}.")]
    if key := _key_of(name, last):
        section = f" ({name} is a section: {', '.join(inside)})" if inside else ""
        span = isinstance(getattr(KEYS.get(key), "allowed", None), Span)
        return f"; did you mean {key!r}?{_WITH_UNIT if span else ''}{section}"
    if last in _OF_WORKDIR.split():
        return "; use the option --workdir=FOLDER, which is no key"
    if inside:
        return f"; it is a section: use its keys {', '.join(inside)}"
    same_end = [key for key in KEYS if key.rsplit(".", 1)[-1] == last]
    if same_end:
        return "; did you mean " + " or ".join(map(repr, same_end)) + "?"
    return (
        _nearest_keys(name)
        or "; python -m vit_jax train --keys lists all keys, --keys WORD those about a word"
    )


def _nearest_keys(name: str) -> str:
    """Return a hint with the keys whose names or aliases are spelled similarly."""
    name = name[:100]
    meant = {key: key for key in KEYS} | {key.rsplit(".", 1)[-1]: key for key in KEYS} | _BY_SHORT
    words = difflib.get_close_matches(name, meant, n=3, cutoff=0.6)
    keys = dict.fromkeys(meant[word] for word in words)
    return "; did you mean " + " or ".join(map(repr, keys)) + "?" if keys else ""


def find_keys(words: Iterable[str]) -> dict[str, Key]:
    """Return the keys whose name or description has one of the words; all keys without words."""
    words = [word.lower().removeprefix("--config.") for word in words]

    def has(path: str, key: Key) -> bool:
        said = f"{path} {key.meaning} {key.allowed.describe()}".lower()
        return any(word in said or _BY_SHORT.get(_bare(word)) == path for word in words)

    return {path: key for path, key in KEYS.items() if not words or has(path, key)}


def _key_of(name: str, last: str) -> str | None:
    if len(name) > 100:  # longer than any key or typing error
        return None
    if name in KEYS or last in KEYS:
        return name if name in KEYS else last
    key = _BY_SHORT.get(name) or (_BY_SHORT.get(last) if last not in _ENDS else None)
    return key if key in KEYS or (key or "").startswith("model.") else None


def _bare(name: str) -> str:
    """Normalise a key for comparison: `Batch-Size` equals `batch_size`."""
    return re.sub(r"[^a-z0-9.]+", "_", name.lower().removeprefix("config.")).strip("_")


# Keys by their last part: `x.name` gets a hint with all keys that end in `name`.
_ENDS = {key.rsplit(".", 1)[-1] for key in KEYS if "." in key}
