"""The commands that look inside a trained model: reports, attention, probes, what is learned.

Each imports what it needs itself, so that help and mistakes do not wait for JAX.
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit_jax.commands.options import (
    AsJson,
    Checkpoint,
    Dataset,
    Raw,
    Run,
    Split,
    check_file,
    parse_checkpoint,
    parse_layer,
)
from vit_jax.commands.output import print_table
from vit_jax.errors import UserError
from vit_jax.progress import progress_bars
from vit_jax.text import tell, to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def report(
    run: Run,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Only what is there already: no data and no model is loaded."),
    ] = False,
) -> None:
    """Write the report of a run anew: settings, results, failures and costs on one page."""
    from vit_jax.analysis.report.full import write_full_report
    from vit_jax.analysis.report.run_report import write_report
    from vit_jax.runs import RunDir

    write = write_report if quick else write_full_report
    tell(f"The report is {write(RunDir(run))}; open it in a browser.")


def attention(
    run: Run,
    images: Annotated[list[str], typer.Argument(help="Image files.", metavar="IMAGE")],
    layer: Annotated[
        str, typer.Option(help="last, a number from 0, or pool: attention pooling.")
    ] = "last",
    head: Annotated[
        str, typer.Option(help="mean, all, a number from 0, rollout or relevance.")
    ] = "mean",
    query: Annotated[
        str, typer.Option(help="The patch that asks, ROW,COLUMN from 0; default: the class token.")
    ] = "",
    distances: Annotated[
        str,
        typer.Option(
            help="File: how far every head looks, and how widely, over all images; no overlay.",
            metavar="FILE",
        ),
    ] = "",
    output: Annotated[str, typer.Option("--output", "-o", help="File.")] = "attention.png",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
) -> None:
    """Draw where a model looks in images: what it sees, the map, and both together."""
    if distances:
        check_file("distances", distances, image=True)
    else:
        check_file("output", output, image=True)
    number, asking = layer if layer == "pool" else parse_layer(layer), _parse_query(query)
    from vit_jax.analysis.attention.overlays import draw_attention
    from vit_jax.analysis.attention.plots import draw_distances, look_in_turn
    from vit_jax.inference import load

    classifier = load(run, parse_checkpoint(checkpoint), raw=raw)
    if distances:
        _save(draw_distances(look_in_turn(classifier, images)), distances)
    else:
        _save(draw_attention(classifier, images, number, head, asking), output)
    tell(f"The image is {distances or output}.")


def probe(
    run: Run,
    dataset: Annotated[
        str, typer.Option(help="Other data, of any classes; default: the run's own.")
    ] = "",
    split: Annotated[str, typer.Option(help="What the accuracy is of.")] = "test",
    train_split: Annotated[str, typer.Option(help="What is learned from.")] = "train",
    other: Annotated[
        str, typer.Option("--with", help="Another run, to compare its layers with.")
    ] = "",
    pool: Annotated[
        str, typer.Option(help="Of tokens: own, as the model does it, mean or cls.")
    ] = "own",
    images: Annotated[
        int, typer.Option(min=0, help="The most of each split, at random; 0: all.")
    ] = 2000,
    neighbours: Annotated[int, typer.Option(min=1, help="That vote for a class.")] = 10,
    output: Annotated[str, typer.Option("--output", "-o", help="File.")] = "probe.png",
    as_csv: Annotated[str, typer.Option("--csv", help="A CSV file to write the results to.")] = "",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Measure what each layer knows of the classes, and how alike the layers are."""
    check_file("output", output, image=True)
    if as_csv:
        check_file("csv", as_csv)
    from vit_jax.analysis.representations.probe_report import probe_run

    with progress_bars() as progress:
        report = probe_run(
            run,
            other=other,
            dataset=dataset,
            split=split,
            train_split=train_split,
            pool=pool,
            images=images,
            neighbours=neighbours,
            checkpoint=parse_checkpoint(checkpoint),
            raw=raw,
            progress=progress,
        )
    if as_csv:
        report.write_csv(as_csv)
    _save(report.figure(), output)
    if as_json:
        return print(to_json(report.to_dict()))
    train, test = report.images
    tell(
        f"Accuracy in % on {test:,} images of {split} of probes that learned from {train:,} of "
        f"{train_split}, with intervals of 95 %: of linear probe and {neighbours} neighbours for "
        "other test images (Wilson), of shots (images of each class) for other draws of the "
        "images learned from (Student's t)."
    )
    for one in report.runs:
        print_table(report.table(one))
    tell(f"The image is {output}.")


def inspect(
    run: Run,
    only: Annotated[
        str,
        typer.Option(help="Some of positions,filters,features,neighbours,receptive_fields."),
    ] = "",
    beside: Annotated[
        str, typer.Option("--with", help="Another run, whose receptive fields stand beside.")
    ] = "",
    images: Annotated[int, typer.Option(min=4, help="How many images to take.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of images.")] = 0,
    split: Split = "test",
    dataset: Dataset = "",
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder; default: figures/inspect of the run.")
    ] = "",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
) -> None:
    """Draw what a model has learned: positions, filters, features, neighbours, receptive fields."""
    from vit_jax.analysis.weights_view.figures import (
        NotThere,
        draw,
        open_subject,
        parts_of,
        read_parts,
    )
    from vit_jax.runs import RunDir

    wanted, which = read_parts(only), parse_checkpoint(checkpoint)
    subject = open_subject(
        run, which, raw=raw, dataset=dataset, split=split, count=images, seed=seed, beside=beside
    )
    folder = Path(output) if output else RunDir(run).figures / "inspect"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output={folder} cannot be a folder: {error.strerror}") from error
    for part in wanted:
        try:
            figures, sentence = draw(part, subject)
        except NotThere as error:
            if only:
                has = ", ".join(parts_of(subject))
                raise UserError(f"--only={only}: {part}: {error}; {run} has {has}") from error
            tell(f"{part}: not drawn, {error}")
            continue
        files = [str(folder / f"{name}.png") for name in figures]
        for file, figure in zip(files, figures.values(), strict=True):
            _save(figure, file)
        tell(f"{part}: {sentence}; {', '.join(files)}")


def _parse_query(text: str) -> int | tuple[int, int]:
    """Row and column of a patch; 0 of an empty text, the token that asks by default."""
    numbers = text.split(",")
    if text and (len(numbers) != 2 or not all(number.strip().isdecimal() for number in numbers)):
        raise UserError(
            f"--query={text} is invalid; use ROW,COLUMN of a patch, each from 0, such as 0,2"
        )
    return (int(numbers[0]), int(numbers[1])) if text else 0


def _save(figure: "Figure", output: str) -> None:
    with warnings.catch_warnings():
        # A script that the font lacks shows as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(output, dpi=120)
