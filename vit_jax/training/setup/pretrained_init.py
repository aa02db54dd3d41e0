"""Initialisation from pretrained weights (`init_from`)."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flax.traverse_util import flatten_dict, unflatten_dict
from ml_collections import ConfigDict

from vit_jax.errors import UserError
from vit_jax.models import model_fields
from vit_jax.models.dense import DenseModel
from vit_jax.models.registry import get_preset
from vit_jax.models.stacking import match_layout, unstack_blocks
from vit_jax.runs import ModelRecord
from vit_jax.weights.adapt import Adapted, adapt
from vit_jax.weights.adapt_dense import adapt_dense
from vit_jax.weights.of_tasks.task_weights import TaskWeights
from vit_jax.weights.resolve import open_weights

# Fields that are not properties of the weights but of the new run.
_OF_THE_RUN = ("num_classes", "dtype", "attention_impl", "remat", "scan_layers")

_NAME, _FIELDS = "backbone_name", "backbone_fields"  # of models with a head
# Fields that a model's name determines, and that weights cannot change. The patch size can.
_SIZES = ("width", "depth", "heads", "mlp_width")


@dataclass(frozen=True)
class PretrainedInit:
    """Pretrained weights that a run starts from.

    source: their origin. record: of the trained model. variables: its parameters, and any
    other collections. modules: parameters of the other modules of the task. fields: of the task
    that they were trained for.
    """

    source: str
    record: ModelRecord
    variables: dict[str, Any]
    modules: dict[str, Any] = dataclasses.field(default_factory=dict)
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)

    def fit(
        self, model: Any, record: ModelRecord, shapes: Mapping[str, Any] | None = None
    ) -> Adapted:
        """Adapt the parameters to the run's model and its record.

        Heads are kept if the class names are the same, and start at zero otherwise. Those of a
        model with a head on a backbone may be missing, see `adapt_dense`.

        shapes: of the parameters of a task's other modules.
        """
        other_classes = not self.record.same_classes(record)
        params, trained = self.variables["params"], self.record.create_model()
        try:
            if isinstance(model, DenseModel):
                return adapt_dense(self.variables, trained, model, other_classes=other_classes)
            adapted = adapt(params, trained, model, fresh_head=other_classes)
        except UserError as error:
            raise UserError(f"init_from = {self.source!r}: {error}") from error
        state = {name: tree for name, tree in self.variables.items() if name != "params"}
        modules, untrained, cut = self._fit_modules(shapes or {})
        return dataclasses.replace(
            adapted,
            model_state=state,
            modules=modules,
            untrained=untrained,
            resized=(*adapted.resized, *cut),
        )

    def _fit_modules(
        self, shapes: Mapping[str, Any]
    ) -> tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]:
        """Return the parameters of other modules, the names of new ones, and the paths of cut ones.

        A table of positions may lose its last rows.
        """
        fitted, untrained, cut = {}, [], []
        for name, wanted in shapes.items():
            old = flatten_dict(unstack_blocks(self.modules.get(name, {})), sep="/")
            new = flatten_dict(unstack_blocks(wanted), sep="/")
            if set(old) != set(new):
                untrained.append(name)
                continue
            for path, leaf in new.items():
                if old[path].shape == leaf.shape:
                    continue
                at = f"{name}/{path}"
                if path != "pos_embed" or old[path].shape[1] < leaf.shape[1]:
                    raise UserError(
                        f"init_from = {self.source!r}: {at} is {old[path].shape} in the weights "
                        f"and {leaf.shape} in the model"
                    )
                old[path] = old[path][:, : leaf.shape[1]]
                cut.append(at)
            fitted[name] = match_layout(unflatten_dict(old, sep="/"), like=wanted)
        return fitted, tuple(untrained), tuple(cut)


def load_pretrained_init(
    source: str, read_start: Callable[[], TaskWeights | None] = lambda: None
) -> PretrainedInit:
    """Load the weights of `init_from`, by any name that `open_weights` takes.

    read_start: reads the weights of all modules of a task, if there are any, see `Task.read_start`.

    Raises:
        UserError: the weights cannot be read, or their model cannot be determined.
    """
    try:
        if (found := read_start()) is not None:
            params = dict(found.variables["params"])
            encoder = {"params": params.pop(found.record.encoder)}
            return PretrainedInit(source, found.record.alone(), encoder, params, found.fields)
        record, variables = open_weights(source)
    except UserError as error:
        hint = ""
        if "--" in str(error):
            hint = (
                "; convert it once (python -m vit_jax convert SOURCE FOLDER, with that option) "
                "and use the folder"
            )
        raise UserError(f"init_from = {source!r}: {error}{hint}") from error
    return PretrainedInit(source, record, variables)


def chosen_name(config: ConfigDict, record: ModelRecord) -> str:
    """Return the name of the run's model: that of the weights, unless it is of another class.

    So a FlexiViT may begin with the weights of a ViT, and a ViT with those of a FlexiViT. A model
    with a head on a backbone keeps its name, and so its head.
    """
    name = config.model.name
    other = name is not None and (_is_dense(name) or _is_other_class(name, record))
    return name if other else record.name


def _is_other_class(name: str, record: ModelRecord) -> bool:
    return get_preset(name).architecture is not get_preset(record.name).architecture


def inherited_fields(config: ConfigDict, record: ModelRecord) -> dict[str, Any]:
    """Return the model fields that are inherited from pretrained weights.

    If `model.name` is a model of other patches, its patch size is the new one. If it is one with a
    head on a backbone, weights of a classifier or an encoder determine that backbone.

    Raises:
        UserError: `model.name` is a model of another size.
    """
    name = config.model.name
    if name is None or name == record.name or not _is_dense(name):
        return _inherited(name, "model.name", record, {})
    return _with_backbone(config, record)


def _with_backbone(config: ConfigDict, record: ModelRecord) -> dict[str, Any]:
    """Return the fields of the backbone of a model with a head."""
    record = _backbone_of(record)
    named = config.model.get("backbone_name", get_preset(config.model.name).fields.get(_NAME))
    said = dict(config.model.get(_FIELDS, {}))
    fields = _inherited(named, f"model.{_NAME}", record, said)
    other = named is not None and _is_other_class(named, record)
    own = {key: fields.pop(key) for key in ("image_size", "in_channels") if key in fields}
    return {**own, _NAME: named if other else record.name, _FIELDS: fields}


def _backbone_of(record: ModelRecord) -> ModelRecord:
    """Return the record of the backbone of a model with a head; another model is one itself."""
    if not _is_dense(record.name):
        return record
    model = record.create_model()
    own = {"image_size": model.image_size, "in_channels": model.in_channels}
    fields = {**own, **model.backbone_fields}
    return dataclasses.replace(record, name=model.backbone_name, fields=fields, class_names=())


def _is_dense(name: str) -> bool:
    try:
        return issubclass(get_preset(name).architecture, DenseModel)
    except ValueError as error:
        raise UserError(f"model.name: {error}") from error


def _inherited(
    name: str | None, key: str, record: ModelRecord, said: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields that a model of this name inherits; None: that of the record.

    key: that names it. said: fields that the configuration sets.
    """
    trained = record.create_model()  # imports the module of a user-defined architecture
    own = {**model_fields(record.name), **record.fields}
    if name is not None and name != record.name:
        try:
            wanted = {**model_fields(name), **said}
        except ValueError as error:
            raise UserError(f"{key}: {error}") from error
        # The name of another class alone, such as TimeSformer, is that of any size.
        bare = _is_other_class(name, record) and name == get_preset(name).architecture.__name__
        sizes = [size for size in _SIZES if not bare and (size in wanted or size in own)]
        differ = [size for size in sizes if wanted.get(size) != own.get(size)]
        if differ:
            one = ", ".join(f"{size} {wanted.get(size)}" for size in differ)
            other = ", ".join(f"{size} {own.get(size)}" for size in differ)
            raise UserError(
                f"{key} = {name!r} has {one}, but the weights of init_from have {other} "
                f"({record.name}); omit {key} to use the model of the weights"
            )
    inherited = {key: value for key, value in record.fields.items() if key not in _OF_THE_RUN}
    if name is not None and name != record.name and "patch_size" in wanted:
        inherited["patch_size"] = wanted["patch_size"]
        if _is_other_class(name, record):
            taken = wanted.keys() - {*_not_inherited(name)}
            inherited = {key: value for key, value in inherited.items() if key in taken}
            inherited["image_size"] = wanted["image_size"]
            if bare:
                sizes = (*_SIZES, "mlp_ratio")
                inherited |= {size: own[size] for size in sizes if size in wanted and size in own}
    takes = own if name is None else model_fields(name).keys() - {*_not_inherited(name)}
    if not hasattr(type(trained), "has_class_token") or "class_token" not in takes:
        return inherited
    # Otherwise another pool would drop an existing class token, or need a missing one.
    return {**inherited, "class_token": trained.has_class_token}


def _not_inherited(name: str) -> tuple[str, ...]:
    """Return the fields in which a model never follows the weights of another class."""
    return getattr(get_preset(name).architecture, "not_inherited", ())
