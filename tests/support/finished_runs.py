"""Folders of finished runs, written without their training: configuration, record, log, answers."""

import json
from collections.abc import Sequence
from pathlib import Path

from vit_jax.config import load_config
from vit_jax.csv_files import write_csv
from vit_jax.data import Preprocessing
from vit_jax.runs import RunDir
from vit_jax.runs.record import ModelRecord

CLASSES = ("cat", "dog")


def write_run(
    folder: Path,
    right: Sequence[bool],
    images: Sequence[str] = (),
    finished: bool = True,
    task: str = "classification",
    **settings: object,
) -> RunDir:
    """Write a run of the digits' model whose test images are all cats.

    right: which of them it takes for cats. images: their names; by default by number. settings: of
    the configuration, with two underscores for a dot.
    """
    run = RunDir(folder)
    config = load_config("digits", {name.replace("__", "."): x for name, x in settings.items()})
    run.write_config({**json.loads(config.to_json()), "task": task})
    fields = {"num_classes": len(CLASSES)}
    preprocessing = Preprocessing((16, 16), mean=(0.5,), std=(0.5,))
    run.write_model(ModelRecord("Digits-ViT-64/4", fields, preprocessing, CLASSES, task=task))
    accuracy = sum(right) / len(right)
    lines = [
        {"kind": "train", "step": 1, "epoch": 0.5, "loss": 1.0},
        {"kind": "evaluate", "step": 2, "epoch": 1.0, "split": "test", "accuracy": accuracy},
        {"kind": "result", "step": 2, "epoch": 1.0, "split": "test", "accuracy": accuracy}
        | {"loss": 0.5, "examples": len(right), "elapsed_seconds": 120.0},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines[: 3 if finished else 2])
    run.metrics_file.write_text(text)
    names = images or [f"example {number}" for number in range(len(right))]
    rows = [
        (number, name, "cat", CLASSES[not hit], 0.9, int(not hit))
        for number, (name, hit) in enumerate(zip(names, right, strict=True))
    ]
    run.figures.mkdir()
    columns = ("index", "image", "true", "predicted", "confidence", "rank")
    write_csv(run.figures / "predictions.csv", columns, rows)
    return run
