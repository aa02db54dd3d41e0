"""Record of a model: everything that loading and predicting need besides its parameters."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vit_jax.config.values import Modules
from vit_jax.data.features import LABEL, check_inputs
from vit_jax.data.images.preprocess import Preprocessing
from vit_jax.data.paths import same_form
from vit_jax.data.sources.source import Source
from vit_jax.errors import UserError, shown
from vit_jax.plugins import import_installed, import_plugins, module_names

FORMAT = 2


@dataclass(frozen=True)
class ModelRecord:
    """Record of a model: everything that `load` and `predict` need besides its parameters.

    name, fields: the model, as `create_model(name, **fields)`.
    task: the task that it learned. encoder: part of the variables that are the model's, where the
        task trained other modules with it, see `part_of`; empty: all of them.
    preprocessing: preprocessing of images to inputs.
    class_names: in the order of the model's outputs.
    activation: "softmax" or "sigmoid", from outputs to probabilities; a sigmoid of a single output
        is the probability of the second of two classes; "none" for outputs that are none.
    origin: origin of the parameters.
    versions: versions of the libraries that wrote them.
    plugins: modules to import first, for an architecture of a user.
    options: the fields of the task that its configuration set, such as a width of a decoder.
    head_classes: names of the classes of each head of a model with several, where it has some.
    quantization: bits of the kernels and the type of activations, see
        `vit_jax.models.quantized`; empty: all parameters are float32.
    source_config: the configuration of the library that wrote the weights, for writing them back;
        empty if the parameters have changed.
    """

    name: str
    fields: dict[str, Any]
    preprocessing: Preprocessing
    class_names: tuple[str, ...]
    activation: str = "softmax"
    origin: str = ""
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    format: int = FORMAT
    plugins: tuple[str, ...] = ()
    source_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    task: str = "classification"
    encoder: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    head_classes: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    quantization: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return a dictionary of JSON values."""
        record = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        for name in ("options", "head_classes", "quantization"):
            if not record[name]:
                del record[name]
        return {**record, "preprocessing": self.preprocessing.to_dict()}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> "ModelRecord":
        """Return the record of a `to_json`; lists become tuples again."""
        return cls(
            **{
                **record,
                "fields": _with_tuples(record["fields"]),
                "options": _with_tuples(record.get("options", {})),
                "head_classes": _with_tuples(record.get("head_classes", {})),
                "preprocessing": Preprocessing.from_dict(record["preprocessing"]),
                "class_names": tuple(record["class_names"]),
                "plugins": module_names(Modules().convert(record.get("plugins", ()))),
            }
        )

    @property
    def classifies(self) -> bool:
        """Return whether the outputs are classes of an image, and not of its pixels or objects."""
        return bool(self.class_names) and self.activation != "none"

    def has_names(self) -> bool:
        """Return whether the classes have names instead of numbers."""
        return self.class_names != unnamed_classes(len(self.class_names))

    def of_encoder(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the variables of the model among those of all modules of its task."""
        return part_of(variables, self.encoder)

    def alone(self) -> "ModelRecord":
        """Return the record of the model without the other modules of its task."""
        return dataclasses.replace(self, encoder="")

    def dequantized(self) -> "ModelRecord":
        """Return the record of the same model with all its parameters in float32."""
        return dataclasses.replace(self, quantization={})

    def with_kernels(self, variables: dict[str, Any], *, in_float: bool) -> dict[str, Any]:
        """Return variables from a file with the kernels of a quantized model.

        in_float: with these in float32.
        """
        if not self.quantization:
            return variables
        from vit_jax.models.quantized import dequantized, unpacked  # linen is slow to import

        variables = unpacked(variables, self.quantization.get("activations", "float"))
        return dequantized(variables) if in_float else variables

    def label_names(self) -> tuple[str, ...] | None:
        """Return the names of the classes, by which data are labelled; None if they have none."""
        return self.class_names if self.has_names() else None

    def same_classes(self, other: "ModelRecord") -> bool:
        """Return whether two records have the same class names in the same order."""
        return self._are_mine(other.class_names)

    def _are_mine(self, names: Sequence[str]) -> bool:
        mine, theirs = (list(map(same_form, some)) for some in (self.class_names, names))
        return mine == theirs

    def check_classes(self, dataset: str, source: Source, folder: str | os.PathLike) -> None:
        """Raise UserError if data have no labels, or another number of classes than the model.

        Only a model whose classes have no names takes any classes of the right number.
        """
        of_pixels = [named for one in source.features.values() if (named := one.classes)]
        if any(self._are_mine(names) for names in of_pixels):
            return
        if self.class_names and of_pixels and not self.classifies:
            raise UserError(
                f"{folder} has the classes {', '.join(self.class_names[:10])}, but {dataset} has "
                f"{', '.join(of_pixels[0][:10])}, so they cannot be matched"
            )
        if self.class_names:
            # A head of several learns from the examples that have labels.
            label = dataclasses.replace(LABEL, partial=not self.classifies)
            check_inputs({"label": label}, source, wanted_by="a classifier")
        classes, found = len(self.class_names), len(source.class_names)
        if classes and found != classes:
            raise UserError(
                f"{folder} has {classes:,} unnamed classes, but {dataset} has "
                f"{found:,}, so they cannot be matched; add the names, in the order of the "
                "outputs, to class_names in model.json"
            )

    def changed(self, fields: dict[str, Any]) -> "ModelRecord":
        """Return the record with changed fields; size, channels and classes are updated."""
        from vit_jax.models.inputs import num_frames
        from vit_jax.models.validation import pair

        model = dataclasses.replace(self, fields=fields).create_model()
        size, classes = pair(model.image_size), model.num_classes
        patch_size = pair(model.patch_size) if self.preprocessing.max_tokens else None
        return dataclasses.replace(
            self,
            fields=fields,
            source_config={},
            preprocessing=self.preprocessing.for_images(
                size, model.in_channels, patch_size, num_frames(model)
            ),
            class_names=self.class_names
            if classes == len(self.class_names)
            else unnamed_classes(classes),
        )

    def used_with(self, fields: Mapping[str, Any]) -> "ModelRecord":
        """Return the record with fields that change the computation and no parameter.

        Raises:
            UserError: a field is none of these, or the model does not take its value.
        """
        if not fields:
            return self
        from vit_jax.models.tokens.fields import OF_TOKENS

        free = (*OF_TOKENS, "attention_impl", "dtype", "scan_layers")
        for field in fields:
            if field not in free:
                raise UserError(
                    f"{shown(field)} of a trained model cannot be changed in use; fields that can "
                    f"are {', '.join(free)}"
                )
        changed = dataclasses.replace(self, fields={**self.fields, **fields})
        try:
            changed.create_model()
        except UserError as error:
            raise UserError(str(error.__cause__ or error)) from error
        return changed

    def create_model(self):
        """Return the module of the parameters; UserError if this version cannot create it.

        Imports the `plugins` if the name is unknown without them.
        """
        # This import takes seconds, and a cached program does not need it.
        from vit_jax.models import create_model
        from vit_jax.models.registry import MODELS

        if self.name not in MODELS:
            import_installed()
            import_plugins(self.plugins, "plugins of the model record (model.json)")
        try:
            return create_model(self.name, **self.fields)
        except (ValueError, TypeError) as error:
            hint = ""
            if self.name not in MODELS:
                hint = (
                    ' An architecture of your own is found by "plugins" in model.json, the names '
                    "of the modules that register it; docs/extending.md has an example"
                )
            raise UserError(f"the model record cannot be followed: {error}{hint}") from error


def _with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _with_tuple(value) for name, value in fields.items()}


def _with_tuple(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _with_tuples(value)
    return tuple(map(_with_tuple, value)) if isinstance(value, list | tuple) else value


def part_of(variables: Mapping[str, Any], encoder: str) -> Mapping[str, Any]:
    """Return the part of all collections under a name; all of them for an empty name.

    A name such as "teacher/encoder" is a part of one collection, which holds parameters.
    """
    if not encoder:
        return variables
    collection, _, encoder = encoder.rpartition("/")
    if collection:
        return {"params": variables[collection][encoder]}
    return {name: tree[encoder] for name, tree in variables.items() if encoder in tree}


def unnamed_classes(count: int) -> tuple[str, ...]:
    """Return default names for unnamed classes."""
    return tuple(f"class {number}" for number in range(count))
