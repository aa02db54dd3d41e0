"""Where parameters begin: at random, or as somebody has trained them (`init_from`)."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from ml_collections import ConfigDict

from vit_jax.data.paths import same_form
from vit_jax.errors import UserError
from vit_jax.models import ViT, model_fields
from vit_jax.runs import ModelRecord
from vit_jax.weights.adapt import Adapted, adapt
from vit_jax.weights.resolve import open_weights

# What is no property of the weights: it is the new run's to say.
_OF_THE_RUN = ("num_classes", "dtype", "attention_impl", "remat", "scan_layers")

# The size of a model, as its name says it.
_SIZES = ("width", "depth", "heads", "mlp_width", "patch_size")


@dataclass(frozen=True)
class PretrainedInit:
    """Trained weights that a run begins with.

    source: where they come from. record: of the trained model. variables: its parameters, and any
    other collections.
    """

    source: str
    record: ModelRecord
    variables: dict[str, Any]

    def fit(self, model: Any, class_names: tuple[str, ...]) -> Adapted:
        """The parameters as the run's model wants them.

        Heads are kept where the classes are the same by name, and begin at zero elsewhere.
        """
        mine, theirs = (
            list(map(same_form, names)) for names in (class_names, self.record.class_names)
        )
        other_classes = mine != theirs
        params, trained = self.variables["params"], self.record.create_model()
        try:
            adapted = adapt(params, trained, model, fresh_head=other_classes)
        except UserError as error:
            raise UserError(f"init_from = {self.source!r}: {error}") from error
        state = {name: tree for name, tree in self.variables.items() if name != "params"}
        return dataclasses.replace(adapted, model_state=state)


def load_pretrained_init(source: str) -> PretrainedInit:
    """The weights of `init_from`, by any name that `open_weights` takes.

    Raises:
        UserError: it cannot be read, or does not say enough about itself.
    """
    try:
        record, variables = open_weights(source)
    except UserError as error:
        hint = ""
        if "--" in str(error):
            hint = (
                "; convert it once (python -m vit_jax convert SOURCE FOLDER, with that option) "
                "and begin from the folder"
            )
        raise UserError(f"init_from = {source!r}: {error}{hint}") from error
    return PretrainedInit(source, record, variables)


def inherited_fields(config: ConfigDict, record: ModelRecord) -> dict[str, Any]:
    """Fields of the model that come with trained weights.

    Raises:
        UserError: `model.name` is set, and is a model of another size.
    """
    trained = record.create_model()  # imports the module of an architecture of the user's own
    own = {**model_fields(record.name), **record.fields}
    name = config.model.name
    if name is not None and name != record.name:
        try:
            wanted = model_fields(name)
        except ValueError as error:
            raise UserError(f"model.name: {error}") from error
        sizes = [size for size in _SIZES if size in wanted or size in own]
        differ = [size for size in sizes if wanted.get(size) != own.get(size)]
        if differ:
            one = ", ".join(f"{size} {wanted.get(size)}" for size in differ)
            other = ", ".join(f"{size} {own.get(size)}" for size in differ)
            raise UserError(
                f"model.name = {name!r} has {one}, and the weights of init_from have {other} "
                f"({record.name}); leave model.name out to take the model of the weights"
            )
    inherited = {key: value for key, value in record.fields.items() if key not in _OF_THE_RUN}
    if not isinstance(trained, ViT):
        return inherited
    # Another pool would do without a class token that is there, or want one that is not.
    return {**inherited, "class_token": trained.has_class_token}
