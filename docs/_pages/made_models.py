"""Pages of model names and published checkpoints, from the tables of the package."""

from collections.abc import Sequence

from made_reference import code, table

from vit_jax.models import create_model, list_models
from vit_jax.models.registry import MODELS
from vit_jax.models.summary.counts import counts
from vit_jax.models.summary.reported import REPORTED
from vit_jax.weights.recognition import FORMATS
from vit_jax.weights.zoo import PUBLISHED

_LIBRARIES = {"huggingface": "Hugging Face", "google": "Google"}


def names() -> str:
    """Return the page of all model names, with a table for each architecture."""
    parts = [
        "# Names\n",
        "`vit_jax.create_model(NAME)` builds any of them at any number of classes and image size, "
        "and `vit_jax models --compare NAME ...` compares costs. Numbers are for the default image "
        "size and number of classes of the name. MACs are the "
        "multiply-adds of a forward pass on one image; FLOPs are twice as many.\n",
        "**Top-1** is the accuracy that the authors report on ImageNet-1k, with the image size and "
        "pre-training data; [Checkpoints](checkpoints.md) gives the accuracy of each file. **Files "
        "read** are the libraries whose weights of this architecture are read; see "
        "[Published weights](../weights.md).\n",
    ]
    for architecture, own in _by_architecture().items():
        parts.append(f"## {architecture}\n")
        parts.append(
            f"**Files read**: {', '.join(_libraries(architecture)) or 'none'}. "
            f"Fields and their values: `vit_jax.models.model_fields({own[0]!r})`.\n"
        )
        rows = []
        for name in own:
            model, numbers = create_model(name), counts(name)
            rows.append(
                (
                    code(name),
                    str(model.image_size),
                    f"{model.num_classes:,}",
                    f"{numbers.tokens:,}",
                    f"{numbers.parameters:,}",
                    f"{numbers.macs:,}",
                    _reported(name),
                    str(sum(one.model == name for one in PUBLISHED.values()) or ""),
                )
            )
        numbers = ("image", "classes", "tokens", "parameters", "MACs", "checkpoints")
        headings = ("name", *numbers[:-1], "top-1, %", "checkpoints")
        parts.append(table(headings, rows, numbers))
        parts.append("Sources of the sizes:\n")
        parts.append(_sources(own))
    return "\n".join(parts)


def checkpoints() -> str:
    """Return the page of the published checkpoints."""
    rows = [
        (
            code(one.name),
            f"{one.parameters:,}",
            str(one.image_size),
            "" if one.top1 is None else f"{one.top1:g}",
            one.measured,
            one.origin,
            _address(one.where),
            one.source,
        )
        for one in PUBLISHED.values()
    ]
    numbers = ("parameters", "image", "top-1, %")
    headings = ("name", *numbers, "measured", "origin", "file", "reported by")
    return (
        "# Checkpoints\n\nWeights that authors have published, by the name that "
        "`vit_jax.load_pretrained(NAME)`, `vit_jax convert NAME FOLDER` and "
        "`--config.init_from=NAME` take; `vit_jax models --pretrained` prints the same table. "
        "The accuracy is on the validation images of ImageNet-1k, as reported by the source; a "
        "missing value means that none is reported for this file. Other files of these libraries "
        "open by their path or address: see [Published weights](../weights.md).\n\n"
        + table(headings, rows, numbers)
    )


def _address(where: str) -> str:
    """Return a link to a checkpoint: to its file, or to its page at Hugging Face."""
    if where.startswith("hf://"):
        return f"[Hugging Face](https://huggingface.co/{where.removeprefix('hf://')})"
    return f"[file]({where})"


def _by_architecture() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name in list_models():
        found.setdefault(MODELS[name].architecture.__name__, []).append(name)
    return found


def _libraries(architecture: str) -> Sequence[str]:
    """Return the libraries whose weights of an architecture can be read."""
    names = (one.name for one in FORMATS if one.architecture == architecture)
    authors = architecture.lower()  # the files of its authors are named after the architecture
    return list(
        dict.fromkeys("the authors" if n == authors else _LIBRARIES.get(n, n) for n in names)
    )


def _sources(names: Sequence[str]) -> str:
    """Return a list of sources with the names from each."""
    by_source: dict[str, list[str]] = {}
    for name in names:
        by_source.setdefault(MODELS[name].source, []).append(name)
    return "".join(
        f"- {', '.join(map(code, own))}: {source}\n" for source, own in by_source.items()
    )


def _reported(name: str) -> str:
    """Return the reported accuracies of a model: `81.2 (224), 85.2 (224, ImageNet-22k)`."""
    return ", ".join(
        f"{one.top1:g} ({', '.join(filter(None, (str(one.image_size), one.pretraining)))})"
        for one in REPORTED
        if one.model == name
    )
