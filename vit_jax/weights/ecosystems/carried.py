"""Entries of a `config.json` that make no difference to a model here, kept for the way back.

Licence, tag, sizes recommended for tests, rates of training: a library writes them, none of them
changes what the model computes, and whoever converts weights and converts them back expects them.
A record keeps the files beside the weights as long as its model is the one in the file.
"""

from collections.abc import Mapping
from typing import Any

from vit_jax.data import Preprocessing
from vit_jax.weights.ecosystems import processors

# Names of classes, which the record has itself.
_NAMES = ("label_names", "labels", "id2label", "label2id", "num_labels")
# What is about the numbers in the file, or the code to run, and not about what is written.
_OF_THE_FILE = ("torch_dtype", "quantization_config", "auto_map", "pruned_heads")
# As the file has it: rates of training, which are written as 0 where nobody says them, the epsilon
# of ConvNeXt's last norm, and the name of an architecture, where we write any of the same class.
_AS_TOLD = (
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "drop_path_rate"),
    *("layer_norm_eps", "architecture"),
)


def keep(library: str, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a record keeps of the configuration beside a file, in plain values.

    Args:
        library: the name of the ecosystem.
        config: of the model, with that of its processor under "preprocessor" if there is one.
    """
    if not config:
        return {}
    left_out = (*_NAMES, *_OF_THE_FILE)
    kept = {name: value for name, value in config.items() if name not in left_out}
    return {"library": library, "config": kept}


def add(library: str, written: dict[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """A `config.json` for a library, with what the file of the same library said besides.

    Args:
        written: what the model's own fields make of it; it wins, but for `_AS_TOLD`.
        kept: of `keep`.
    """
    told = kept.get("config", {})
    if kept.get("library") != library or told.get("model_type") != written.get("model_type"):
        return written
    merged = {**_besides(told, written), **written}
    merged |= {name: told[name] for name in _AS_TOLD if name in told}
    for name in ("model_args", "pretrained_cfg"):
        section, ours = told.get(name), written.get(name)
        if ours is not None and isinstance(section, Mapping):
            merged[name] = {**_besides(section, ours), **ours}
    return merged


def processor(
    written: dict[str, Any], kept: Mapping[str, Any], preprocessing: Preprocessing
) -> dict[str, Any]:
    """The processor's configuration of the file, where it still says what is done to images."""
    told = kept.get("config", {}).get("preprocessor")
    if kept.get("library") != "huggingface" or not told:
        return written
    fields = processors.read(told, (1, 1), kept["config"].get("model_type"))
    same = all(getattr(preprocessing, name) == value for name, value in fields.items())
    return dict(told) if same else written


# ----------------------------------------------------------------------------------------- inside

_ELSEWHERE = ("preprocessor", "model_args", "pretrained_cfg")  # files and sections of their own


def _besides(told: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return what can stand beside what is written: no own sections, no words on other classes."""
    left_out = (*_ELSEWHERE, *_NAMES)
    described = told.get("label_descriptions")
    names = written.get("label_names") or written.get("pretrained_cfg", {}).get("label_names", ())
    if not isinstance(described, Mapping) or set(described) - set(names):
        left_out = (*left_out, "label_descriptions")
    return {name: value for name, value in told.items() if name not in left_out}
