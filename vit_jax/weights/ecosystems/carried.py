"""Entries of a `config.json` without effect on a model here, kept for writing it back.

Licence, tag, recommended test sizes, dropout rates of training: a library writes them, none of them
changes the model's computation, and they should survive a conversion in both directions. A record
has the files beside the weights as long as its model is the one in the file.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.weights.ecosystems import processors

# Names of classes, which the record has itself.
_NAMES = ("label_names", "labels", "id2label", "label2id", "num_labels")
# Entries about the source file's numbers or code, which do not apply to the written file.
_OF_THE_FILE = ("torch_dtype", "quantization_config", "auto_map", "pruned_heads")
# Entries written as in the file: dropout rates of training (otherwise 0), the epsilon of ConvNeXt's
# last norm, and the name of an architecture (otherwise any name of the same class).
_AS_IN_FILE = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"),
    *("layer_norm_eps", "architecture"),
)


def keep(library: str, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the entries of a file's configuration that a record keeps, as plain values.

    Args:
        library: the name of the library.
        config: the model's configuration, with that of its processor under "preprocessor", if any.
    """
    if not config:
        return {}
    left_out = (*_NAMES, *_OF_THE_FILE)
    kept = {name: value for name, value in config.items() if name not in left_out}
    return {"library": library, "config": kept}


def add(library: str, written: dict[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `config.json` for a library, with the kept entries of that library's file.

    Args:
        written: entries from the model's fields; they take precedence, except `_AS_IN_FILE`.
        kept: result of `keep`.
    """
    in_file = kept.get("config", {})
    if kept.get("library") != library or in_file.get("model_type") != written.get("model_type"):
        return written
    merged = {**_besides(in_file, written), **written}
    merged |= {name: in_file[name] for name in _AS_IN_FILE if name in in_file}
    for name in ("model_args", "pretrained_cfg"):
        section, ours = in_file.get(name), written.get(name)
        if ours is not None and isinstance(section, Mapping):
            merged[name] = {**_besides(section, ours), **ours}
    return merged


def processor(
    written: dict[str, Any], kept: Mapping[str, Any], preprocessing: Preprocessing
) -> dict[str, Any]:
    """Return the file's processor configuration if it still matches the preprocessing."""
    in_file = kept.get("config", {}).get("preprocessor")
    if kept.get("library") != "huggingface" or not in_file:
        return written
    fields = processors.read(in_file, (1, 1), kept["config"].get("model_type"))
    same = all(getattr(preprocessing, name) == value for name, value in fields.items())
    return dict(in_file) if same else written


# ----------------------------------------------------------------------------------------- inside

_ELSEWHERE = (
    "preprocessor",
    "open_clip",
    "model_args",
    "pretrained_cfg",
)  # separate files and sections


def _besides(in_file: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries to add to the written ones: no separate sections, no other classes."""
    left_out = (*_ELSEWHERE, *_NAMES)
    described = in_file.get("label_descriptions")
    names = written.get("label_names") or written.get("pretrained_cfg", {}).get("label_names", ())
    if not isinstance(described, Mapping) or set(described) - set(names):
        left_out = (*left_out, "label_descriptions")
    return {name: value for name, value in in_file.items() if name not in left_out}
