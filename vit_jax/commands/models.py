"""Commands `models` and `summary`."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from vit_jax.commands.options import AsJson
from vit_jax.commands.output import print_published, print_table
from vit_jax.errors import UserError
from vit_jax.progress import progress_bars

if TYPE_CHECKING:  # help does not wait for JAX
    from flax import linen as nn


def models(
    patterns: Annotated[
        list[str] | None, typer.Argument(help='Name patterns, such as "ViT-B*"; default: all.')
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="List published checkpoints instead.")
    ] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Add costs and reported accuracy.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the models, with their parameters, multiply-adds and tokens."""
    if pretrained and compare:
        raise UserError("--pretrained and --compare cannot be combined; use one of them")
    patterns = patterns or ["*"]
    if pretrained:
        return print_published(patterns, as_json)
    names = _names(patterns)
    rows = _compared(names) if compare else _listed(names)
    if as_json:
        return print(json.dumps(rows))
    print_table(_comparison(rows) if compare else _listing(rows))
    print("MACs: multiply-adds of one image's forward pass; FLOPs are twice as many.")
    if compare:
        print(
            "Memory: estimate for an AdamW training step in float32 with a batch of 32. Top-1: on "
            "ImageNet-1k; it depends on pre-training and image size as much as on the model."
        )


def summary(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Model name, such as ViT-B/16.")],
    cost: Annotated[
        bool, typer.Option("--cost", help="Print the costs of training and inference instead.")
    ] = False,
    batch: Annotated[int, typer.Option(help="Batch size for --cost.", min=1)] = 1,
) -> None:
    """Print a model's shapes and parameters from image to logits; --FIELD=VALUE sets a field."""
    from vit_jax.models.summary.cost import shape_walk

    model = _model(name, context.args)
    if cost:
        print_table(_costs(name, model, batch))
        print("One MAC, a multiplication and an addition, is two FLOPs; papers often print MACs.")
        return
    walk = Table("stage", "shape", title=name)
    with progress_bars("programs") as show:
        show("tracing", 0, 2)
        stages = shape_walk(model)
        show("tracing", 1, 2)
        parts = _parts(model)
    for stage, shape in stages:
        walk.add_row(stage, " x ".join(map(str, shape)))
    print_table(walk)
    print_table(parts)


# ----------------------------------------------------------------------------------------- inside


def _names(patterns: list[str]) -> list[str]:
    """Return the registered names that match, in the order of the patterns."""
    from vit_jax.models import list_models
    from vit_jax.models.registry import suggest_model

    names = []
    for pattern in patterns:
        found = list_models(pattern)
        if not found:
            hint = suggest_model(pattern.strip("*")) or "; see python -m vit_jax models"
            raise UserError(f"there is no model {pattern!r}{hint}")
        names += found
    return list(dict.fromkeys(names))


def _model(name: str, arguments: list[str]) -> "nn.Module":
    """Create the model with the fields set by `--FIELD=VALUE` arguments."""
    from vit_jax.config import literal
    from vit_jax.models import create_model

    fields = {}
    for argument in arguments:
        field, equals, text = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or not equals:
            raise UserError(f"summary has no argument {argument}; set fields with --FIELD=VALUE")
        fields[field.replace("-", "_")] = literal(text)
    try:
        return create_model(name, **fields)
    except ValueError as error:
        raise UserError(str(error)) from error


def _table(first: str, *numbers: str) -> Table:
    """Create a table whose columns, except the first, are numbers."""
    table = Table(first)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def _listed(names: list[str]) -> list[dict[str, Any]]:
    from vit_jax.models import create_model
    from vit_jax.models.summary.counts import counts

    models = [create_model(name) for name in names]
    return [
        {"model": name, "image_size": model.image_size, "classes": model.num_classes}
        | counts(name)._asdict()
        for name, model in zip(names, models, strict=True)
    ]


def _listing(rows: list[dict[str, Any]]) -> Table:
    table = _table("model", "image", "classes", "tokens", "parameters", "MACs")
    for row in rows:
        numbers = (f"{row[name]:,}" for name in ("classes", "tokens", "parameters", "macs"))
        table.add_row(row["model"], str(row["image_size"]), *numbers)
    return table


def _compared(names: list[str]) -> list[dict[str, Any]]:
    """Return a row for each image size with reported results, or the model's own size."""
    from vit_jax.models import create_model
    from vit_jax.models.summary.cost import cost
    from vit_jax.models.summary.memory import memory

    asked = [(name, one) for name in names for one in _reported(name) or [None]]
    rows, traced = [], {}  # by name and size, which several rows share
    with progress_bars("rows") as show:
        for done, (name, reported) in enumerate(asked):
            show("tracing", done, len(asked))
            model = create_model(name)
            size = reported.image_size if reported else model.image_size
            if (name, size) not in traced:
                sized = model.clone(image_size=size)
                traced[name, size] = cost(sized), memory(sized, 32, train=True)
            numbers, bytes_ = traced[name, size]
            rows.append(
                {
                    "model": name,
                    "image_size": size,
                    "parameters": numbers.parameters,
                    "macs": numbers.macs,
                    "flops": numbers.flops,
                    "memory_bytes": bytes_.total,
                    "top1": reported.top1 if reported else None,
                    "pretraining": (reported.pretraining or "nothing") if reported else None,
                    "source": reported.source if reported else None,
                }
            )
    return rows


def _comparison(rows: list[dict[str, Any]]) -> Table:
    table = _table("model", "image", "parameters", "MACs", "FLOPs", "memory MB", "top-1")
    table.add_column("pre-trained on", overflow="fold")
    table.add_column("reported by", overflow="fold")
    for row in rows:
        table.add_row(
            row["model"],
            str(row["image_size"]),
            *(f"{row[name]:,}" for name in ("parameters", "macs", "flops")),
            f"{row['memory_bytes'] / 1e6:,.0f}",
            "" if row["top1"] is None else f"{row['top1']} %",
            row["pretraining"] or "",
            row["source"] or "",
        )
    return table


def _reported(name: str) -> list:
    """Return the reported results of a model."""
    from vit_jax.models.summary.reported import REPORTED

    return [one for one in REPORTED if one.model == name]


def _parts(model: "nn.Module") -> Table:
    from vit_jax.models.summary.cost import cost

    numbers = cost(model)
    parts = _table("part", "parameters", "MACs")
    for part in numbers.parts:
        parts.add_row(part.name, f"{part.parameters:,}", f"{part.macs:,}")
    parts.add_section()
    parts.add_row("total", f"{numbers.parameters:,}", f"{numbers.macs:,}")
    return parts


def _costs(name: str, model: "nn.Module", batch: int) -> Table:
    """Create a table of work and memory of a forward pass and a training step."""
    from vit_jax.models.summary.cost import cost
    from vit_jax.models.summary.memory import memory

    with progress_bars("programs") as show:
        show("tracing", 0, 3)
        numbers = cost(model)
        show("tracing", 1, 3)
        inference = memory(model, batch, train=False)
        show("tracing", 2, 3)
        training = memory(model, batch, train=True)
    table = _table(f"{name}, batch {batch}", "inference", "training step")
    # The backward pass takes two products for each one of the forward pass.
    for heading, count in (("MACs", numbers.macs), ("FLOPs", numbers.flops)):
        table.add_row(heading, f"{batch * count:,}", f"{3 * batch * count:,}")
    table.add_section()
    table.add_row("parameters", f"{numbers.parameters:,}", f"{numbers.parameters:,}")
    for heading, field in (
        ("bytes of parameters", "parameters"),
        ("bytes of optimizer moments", "optimizer"),
        ("bytes of images", "images"),
        ("bytes of activations and gradients", "temporaries"),
        ("  of which attention matrices", "attention"),
        ("  gradients, at the end of the step", "gradients"),
        ("total bytes", "total"),
    ):
        row = (getattr(memory, field) for memory in (inference, training))
        table.add_row(heading, *(f"{number:,}" for number in row))
    return table
