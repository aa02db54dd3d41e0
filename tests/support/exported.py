"""Runs of tiny models that have learned nothing, to be exported."""

from flax import linen as nn

from tests.support.shapes import CLASSES, SIDE, VIT, random_images, random_variables
from vit_jax.data import Preprocessing
from vit_jax.runs import ModelRecord, RunDir

NAMES = ("cat", "dog", "red shoe")[:CLASSES]
TINY = {**VIT, "depth": 1, "mlp_width": 24}


def write_run(path, module: nn.Module, record: ModelRecord) -> RunDir:
    """Write the run of a model with random variables, as `convert` writes it."""
    run = RunDir(path)
    run.path.mkdir(parents=True)
    size = record.preprocessing.shape
    run.write_variables(random_variables(module, random_images(1, *size)), record)
    run.write_model(record)
    return run


def write_classifier(path, **fields) -> RunDir:
    """Write the run of a tiny ViT of three classes."""
    fields = {**TINY, **fields}
    images = Preprocessing((SIDE, SIDE), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
    record = ModelRecord("ViT-Ti/16", fields, images, NAMES)
    return write_run(path, record.create_model(), record)
