"""Distillation of a trained model into one of another size, on the data of its own training.

`student_config` gives the configuration; `vit_jax.training.fit` trains it, and docs/distillation.md
has the loss.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from vit_jax.config import default_config, restore_config
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.runs import RunDir
from vit_jax.runs.derived import is_in_training

_TASK = "classification"


def student_config(
    teacher: str | os.PathLike,
    student: str,
    overrides: Sequence[tuple[str, Any]] | Mapping[str, Any] = (),
) -> ConfigDict:
    """Return the configuration that trains a student with a run as its teacher.

    It is that of the teacher's training, with its data, schedule and augmentation, but another
    model, for images of the same size and channels.

    Args:
        teacher: the folder of a run that classifies. Converted weights have no data, so they need a
            dataset among the overrides.
        student: name of the model, such as "ViT-Ti/16".
        overrides: keys and values, as for `vit_jax.config.load_config`.

    Raises:
        UserError: a run that is unfinished or no classifier, an unknown name, or invalid keys.
    """
    run = RunDir(teacher)
    record = run.read_model()
    if not record.classifies or record.task != _TASK:
        raise UserError(
            f"{teacher} learned {record.task.replace('_', ' ')}, but a teacher must be a "
            "classifier; name a run of the task classification"
        )
    step = run.find_step()
    if is_in_training(run):
        raise UserError(f"{teacher} is not finished (step {step:,}); train it to the end first")
    trained_here = run.config_file.exists()
    config = run.read_config() if trained_here else default_config().to_dict()
    if not trained_here and "dataset" not in dict(overrides):
        raise UserError(
            f"{teacher} was not trained here, so it has no data; name a data set "
            "(--config.dataset=DATASET)"
        )
    model = record.create_model()
    try:
        create_model(student)
    except ValueError as error:
        raise UserError(f"--to={student} is invalid: {error}") from error
    config["model"] = {
        "name": student,
        "image_size": model.image_size,
        "in_channels": model.in_channels,
    }
    config["init_from"], config["resume"] = "", "auto"
    config["distillation"] = {**config["distillation"], "teacher": os.fspath(teacher)}
    return restore_config(config, overrides)
