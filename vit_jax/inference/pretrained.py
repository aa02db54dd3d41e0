"""Published weights as a classifier, and conversion of weights between formats."""

import dataclasses
import os
import sys

from vit_jax.errors import UserError
from vit_jax.inference.classifier import Classifier
from vit_jax.inference.loading import predictor_class
from vit_jax.inference.predictor import Predictor
from vit_jax.models import create_model
from vit_jax.models.text import text_tower
from vit_jax.runs import ModelRecord, RunDir
from vit_jax.runs.derived import check_empty, make_folder
from vit_jax.weights.adapt import adapt, merge_lora, padding_note
from vit_jax.weights.class_names import names_of_outputs, read_class_names
from vit_jax.weights.convert import write_pretrained
from vit_jax.weights.formats import Hints
from vit_jax.weights.of_tasks.masked_autoencoders import (
    check_library,
    read_masked_autoencoder,
    write_masked_autoencoder,
)
from vit_jax.weights.of_tasks.task_weights import TaskWeights
from vit_jax.weights.of_tasks.towers_writing import check_library as check_towers
from vit_jax.weights.of_tasks.towers_writing import write_two_towers
from vit_jax.weights.of_tasks.two_towers import TASK, has_two_towers, read_two_towers
from vit_jax.weights.resolve import open_weights, place_of

RUN = "run"


def load_pretrained(
    source: str | os.PathLike,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    in_channels: int | None = None,
    origin: str | None = None,
    heads: int | None = None,
    file_size: tuple[int, int] | None = None,
    part: str | None = None,
) -> Predictor:
    """Load published weights: `load_pretrained("model.safetensors").predict("cat.png")`.

    It is a `Classifier`; a model that gives something else than classes is what `load` would give.

    If a fact is neither in the file nor in these arguments, an error asks for it.

    Args:
        source: a name of `python -m vit_jax models --pretrained`, `hf://OWNER/NAME`,
            `https://...`, a file or folder that `weights` can read, or a run folder.
        num_classes: classes of a new head, initialised with zeros; 0: no head. By default the
            file's own head.
        image_size: pixels (height, width) of the inputs; the position table is resized. By default
            the size of the file's position table.
        patch_size: pixels (height, width) of the patches; the patch kernel is resized by a
            pseudo-inverse, and the position table to the new grid. By default that of the file.
        in_channels: channels of images; the patch kernel is summed or repeated.
        origin: origin of the weights ("timm", "deit", "mae", ...), if several have such a file.
        heads: number of attention heads, if unknown.
        file_size: pixels (height, width) of the file's position table, if it is not square.
        part: name of the weights in a file with several, such as "model_ema".

    Raises:
        UserError: the file cannot be read, or contradicts the arguments.
    """
    record, variables = open_weights(source, Hints(origin, heads, file_size), part=part)
    record, variables = change(
        record,
        variables,
        num_classes=num_classes,
        image_size=image_size,
        patch_size=patch_size,
        in_channels=in_channels,
    )
    if record.task == "classification":
        return Classifier.of_record(record, variables)
    return predictor_class(record).of_record(record, variables)


def convert(
    source: str | os.PathLike,
    folder: str | os.PathLike,
    to: str = RUN,
    hints: Hints | None = None,
    *,
    part: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    class_names: str | os.PathLike | None = None,
    background_first: bool = False,
    image_tower: bool = False,
) -> ModelRecord:
    """Convert weights of any format to a run folder, or to the files of another library.

    Low-rank updates (LoRA) are merged into their kernels. Of a model of images and texts both
    towers are kept, and its tokenizer, if it is beside them.

    Args:
        source: as for `load_pretrained`.
        folder: output folder; it must be empty or missing.
        to: "run", "timm" or "huggingface"; "openclip", "big_vision", "openai" or "pe" for
            models of images and texts.
        hints, part, image_size, patch_size: as for `load_pretrained`.
        class_names: text file with the names of the outputs, one per line.
        background_first: output 0 is the background, which has no name in the file.
        image_tower: take only the image tower of a model of images and texts.

    Returns:
        The record of the written model.

    Raises:
        UserError: the weights cannot be read, or the folder cannot be written.
    """
    check_empty(folder)  # before weights are downloaded
    if not image_tower and has_two_towers(place_of(source)[0], part):
        if class_names is not None:
            raise UserError(
                "--class-names are those of a classifier, but the file has a text tower; add "
                "--image-tower"
            )
        changes = {"image_size": image_size, "patch_size": patch_size}
        return convert_two_towers(source, folder, to, hints, part=part, **changes)
    record, variables = open_weights(source, hints, part=part)
    if record.task == TASK:  # the image tower is no model of texts
        record = dataclasses.replace(record, task="classification", options={})
    if record.fields.get("lora_rank"):
        variables = {**variables, "params": merge_lora(variables["params"])}
        record = record.changed({**record.fields, "lora_rank": 0})
    record, variables = change(record, variables, image_size=image_size, patch_size=patch_size)
    if class_names is not None:
        names, outputs = read_class_names(class_names), len(record.class_names)
        names = names_of_outputs(names, outputs, background_first=background_first)
        record = dataclasses.replace(record, class_names=names)
    make_folder(folder)
    if to == RUN:
        run = RunDir(folder)
        run.write_variables(variables, record)
        run.write_model(record)
    else:
        write_pretrained(folder, to, record, variables)
    return record


def convert_two_towers(
    source: str | os.PathLike,
    folder: str | os.PathLike,
    to: str = RUN,
    hints: Hints | None = None,
    *,
    part: str | None = None,
    **changes,
) -> ModelRecord:
    """Convert a model of images and texts, as `convert` does.

    changes: `image_size` and `patch_size` of the image tower.

    Raises:
        UserError: the file has no text tower, cannot be read, or has a tokenizer of other weights.
    """
    from vit_jax.weights.remote.tokenizer import find_tokenizer  # its library is slow to import

    if to != RUN:
        check_towers(to)
    source, hints = place_of(source, hints)
    found = read_two_towers(source, hints, part=part)
    record, image = found.record, {"params": found.variables["params"]["image"]}
    if record.fields.get("lora_rank"):
        image = {"params": merge_lora(image["params"])}
        record = record.changed({**record.fields, "lora_rank": 0})
    record, image = change(record, image, **changes)
    variables = {"params": {**found.variables["params"], "image": image["params"]}}
    found = TaskWeights(record, variables, found.fields)
    tower = text_tower(found.fields)
    tokenizer = find_tokenizer(source, tower.length)
    if tokenizer is not None:
        tokenizer.check_tower(tower)
    make_folder(folder)
    if to == RUN:
        run = RunDir(folder)
        run.write_variables(variables, record)
        run.write_model(record)
        if tokenizer is not None:
            tokenizer.save(run.tokenizer)
    else:
        write_two_towers(folder, to, found)
    return record


def convert_with_decoder(
    source: str | os.PathLike,
    folder: str | os.PathLike,
    to: str,
    hints: Hints | None = None,
) -> ModelRecord:
    """Convert a masked autoencoder to the files of another library, with its decoder.

    Args:
        source: a file with a decoder, or the folder of a run of the task `masked_autoencoding`.
        folder, hints: as for `convert`.
        to: "timm", the names of the authors, or "huggingface".

    Raises:
        UserError: there is no decoder, or the folder cannot be written.
    """
    check_empty(folder)  # before weights are downloaded
    check_library(to)
    found = read_masked_autoencoder(source, hints)
    make_folder(folder)
    write_masked_autoencoder(folder, to, found)
    return found.record


def change(record: ModelRecord, variables: dict, **changes) -> tuple[ModelRecord, dict]:
    """Return the model with changed fields; None keeps a field."""
    old = record.create_model()
    changes = {name: value for name, value in changes.items() if value is not None}
    changes = {name: value for name, value in changes.items() if getattr(old, name) != value}
    if not changes:
        return record, variables
    fields = {**record.fields, **changes}
    try:
        model = create_model(record.name, **fields)
    except ValueError as error:
        raise UserError(str(error)) from error
    adapted = adapt(variables["params"], old, model)
    if record.origin.startswith("weights of") and (note := padding_note(model)):
        print(note, file=sys.stderr)
    return record.changed(fields), {**variables, "params": adapted.params}
