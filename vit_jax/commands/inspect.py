"""Commands that inspect a trained model: `report`, `attention`, `probe` and `inspect`.

Each imports its dependencies itself, so that help and error messages do not wait for JAX.
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vit_jax.commands.options import (
    AsJson,
    Checkpoint,
    Dataset,
    Fields,
    Raw,
    Run,
    Split,
    check_file,
    parse_checkpoint,
    parse_fields,
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
        typer.Option("--quick", help="Use existing files only, without loading data or model."),
    ] = False,
) -> None:
    """Write the report of a run: settings, results, errors and costs on one page."""
    from vit_jax.analysis.report.full import write_full_report
    from vit_jax.analysis.report.run_report import write_report
    from vit_jax.runs import RunDir

    write = write_report if quick else write_full_report
    tell(f"The report is {write(RunDir(run))}; open it in a browser.")


def attention(
    run: Run,
    images: Annotated[list[str], typer.Argument(help="Image files.", metavar="IMAGE")],
    layer: Annotated[
        str, typer.Option(help="Layer: last, a number from 0, or pool (attention pooling).")
    ] = "last",
    head: Annotated[
        str,
        typer.Option(
            help="Head: mean, all, a number from 0, rollout, relevance or grad-cam; default: mean, "
            "and relevance with --text."
        ),
    ] = "",
    query: Annotated[
        str, typer.Option(help="Query patch, ROW,COLUMN from 0; default: the class token.")
    ] = "",
    distances: Annotated[
        str,
        typer.Option(
            help="Write mean attention distance and entropy per head instead.",
            metavar="FILE",
        ),
    ] = "",
    text: Annotated[
        str, typer.Option(help="Text whose cosine with the image the relevance is for.")
    ] = "",
    tokens: Annotated[
        str,
        typer.Option(
            help="Draw the tokens that are left after blocks with tome_r or keep_ratio instead.",
            metavar="FILE",
        ),
    ] = "",
    output: Annotated[str, typer.Option("--output", "-o", help="File.")] = "attention.png",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    field: Fields = None,
) -> None:
    """Draw attention maps of images, or Grad-CAM: the input, the map, and the overlay."""
    if distances and tokens:
        raise UserError("--distances and --tokens are two figures; ask for one of them")
    if distances:
        check_file("distances", distances, image=True)
    elif tokens:
        check_file("tokens", tokens, image=True)
    else:
        check_file("output", output, image=True)
    number, asking = layer if layer == "pool" else parse_layer(layer), _parse_query(query)
    from vit_jax.analysis.attention.overlays import draw_attention
    from vit_jax.analysis.attention.plots import draw_distances, look_in_turn
    from vit_jax.inference import load_model

    if text:
        from vit_jax.inference import load_two_towers

        towers = load_two_towers(run, checkpoint=parse_checkpoint(checkpoint), raw=raw)
        classifier = towers.classifier([text], ("{}",))
    else:
        fields = parse_fields(field)
        classifier = load_model(run, parse_checkpoint(checkpoint), raw=raw, **fields)
    if tokens:
        from vit_jax.analysis.attention.tokens import draw_tokens

        _save(draw_tokens(classifier, images), tokens)
        return tell(f"The figure is {tokens}.")
    head = head or ("relevance" if text else "mean")
    if distances:
        _save(draw_distances(look_in_turn(classifier, images)), distances)
    else:
        _save(draw_attention(classifier, images, number, head, asking), output)
    tell(f"The figure is {distances or output}.")


def probe(
    run: Run,
    dataset: Annotated[
        str, typer.Option(help="Dataset, with any classes; default: the run's own.")
    ] = "",
    split: Annotated[str, typer.Option(help="Split for testing the probes.")] = "test",
    train_split: Annotated[str, typer.Option(help="Split for training the probes.")] = "train",
    other: Annotated[str, typer.Option("--with", help="Second run, to compare layers with.")] = "",
    pool: Annotated[
        str, typer.Option(help="Token pooling: own (the model's), mean or cls.")
    ] = "own",
    images: Annotated[
        int, typer.Option(min=0, help="Maximum number of images per split, at random; 0: all.")
    ] = 2000,
    neighbours: Annotated[int, typer.Option(min=1, help="k of the k-NN probe.")] = 10,
    exits: Annotated[
        bool,
        typer.Option(
            "--exits", help="Print early exits behind every block, by confidence, instead."
        ),
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="File.")] = "probe.png",
    as_csv: Annotated[str, typer.Option("--csv", help="CSV file for the results.")] = "",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """Probe the features of each layer, and compare the layers (CKA)."""
    if exits:
        if other or as_csv:
            raise UserError("--exits prints tables of one run; omit --with and --csv")
        asked = {"dataset": dataset, "split": split, "train_split": train_split, "pool": pool}
        asked |= {"images": images, "checkpoint": parse_checkpoint(checkpoint), "raw": raw}
        return _print_exits(run, asked, as_json)
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
        f"Accuracy in % on {test:,} images of {split} with probes trained on {train:,} images of "
        f"{train_split}. The 95 % intervals are for other test images (Wilson) with linear probe "
        f"and {neighbours} neighbours, and for other draws of the training images (Student's t) "
        "with shots (training images per class)."
    )
    for one in report.runs:
        print_table(report.table(one))
    tell(f"The figure is {output}.")


def _print_exits(run: str, asked: dict[str, Any], as_json: bool) -> None:
    """Print the early exits of a run; `asked` are arguments of `exits_of_run`."""
    from vit_jax.analysis.representations.probe_report import exits_of_run

    with progress_bars() as progress:
        found = exits_of_run(run, **asked, progress=progress)
    if as_json:
        return print(to_json(found.to_dict()))
    for table in found.tables():
        print_table(table)


def inspect(
    run: Run,
    only: Annotated[
        str,
        typer.Option(help="Parts: positions,filters,features,neighbours,receptive_fields."),
    ] = "",
    beside: Annotated[
        str, typer.Option("--with", help="Second run, to compare receptive fields with.")
    ] = "",
    images: Annotated[int, typer.Option(min=4, help="Number of images.")] = 500,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the image sample.")] = 0,
    split: Split = "test",
    dataset: Dataset = "",
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder; default: figures/inspect of the run.")
    ] = "",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
) -> None:
    """Draw positions, filters, features, nearest neighbours and receptive fields of a model."""
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
        raise UserError(f"--output={folder} cannot be created: {error.strerror}") from error
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
    """Parse row and column of a patch; return 0, the default query, for an empty text."""
    numbers = text.split(",")
    if text and (len(numbers) != 2 or not all(number.strip().isdecimal() for number in numbers)):
        raise UserError(
            f"--query={text} is invalid; use ROW,COLUMN of a patch, each from 0, such as 0,2"
        )
    return (int(numbers[0]), int(numbers[1])) if text else 0


def _save(figure: "Figure", output: str) -> None:
    with warnings.catch_warnings():
        # Characters missing in the font are drawn as boxes.
        warnings.filterwarnings("ignore", "Glyph .* missing", UserWarning)
        figure.savefig(output, dpi=120)
