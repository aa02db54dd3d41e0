"""Tiny models of images and texts that have learned nothing."""

import jax
import numpy as np

from vit_jax.data import Preprocessing
from vit_jax.data.text import train_tokenizer
from vit_jax.data.text.templates import TEMPLATES
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.tasks.contrastive.task import Contrastive

NAMES = ["cat", "dog", "red shoe"]
OPTIONS = {"embed_width": 4, "text_width": 8, "text_depth": 1, "text_heads": 2}
FIELDS = {"image_size": 8, "patch_size": 4, "width": 8, "depth": 1, "heads": 2, "num_classes": 0}
LENGTH = 12


def tiny_tokenizer():
    captions = [template.format(name) for template in TEMPLATES for name in NAMES]
    return train_tokenizer(captions, vocabulary=300, length=LENGTH)


def tiny_record():
    images = Preprocessing((8, 8), 3)
    about = {"task": "contrastive", "encoder": "image", "options": OPTIONS}
    return ModelRecord("ViT-Ti/16", FIELDS, images, (), "none", **about)


def tiny_variables(record, vocabulary, seed=0):
    task = Contrastive(record.create_model(), vocabulary=vocabulary, length=LENGTH, **OPTIONS)
    batch = {"image": np.zeros((1, 8, 8, 3)), "text": np.zeros((1, LENGTH), np.int32)}
    return jax.device_get(jax.jit(task.init)(jax.random.key(seed), batch))


def write_tiny_run(path, seed=0):
    record, tokenizer = tiny_record(), tiny_tokenizer()
    run = RunDir(path)
    run.path.mkdir()
    run.write_variables(tiny_variables(record, tokenizer.vocabulary, seed), record)
    run.write_model(record)
    tokenizer.save(run.tokenizer)
    return run
