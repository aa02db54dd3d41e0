"""Command `predict`: classify images, or write the files of what else a model gives."""

import contextlib
import csv
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vit_jax.commands.options import (
    Average,
    Averaging,
    Calibrated,
    Checkpoint,
    Fields,
    Raw,
    Run,
    Together,
    Views,
    Weights,
    check_file,
    parse_checkpoint,
    parse_fields,
)
from vit_jax.errors import EXIT_STOPPED, UserError
from vit_jax.startup import unwind_on_signals
from vit_jax.text import printable, to_json

if TYPE_CHECKING:
    from vit_jax.inference import Classifier, ImageResult, Predictor
    from vit_jax.inference.submission import Submission

_FOLDERS = "Image files, folders, @FILE with one path per line, or - for stdin."


def predict(
    run: Run,
    images: Annotated[list[str] | None, typer.Argument(help=_FOLDERS)] = None,
    list_: Annotated[
        str, typer.Option("--list", help="Text file with one path per line; -: stdin.")
    ] = "",
    top: Annotated[int, typer.Option(min=1, help="Number of classes per image.")] = 3,
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    field: Fields = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per image.")] = False,
    as_csv: Annotated[
        str, typer.Option("--csv", help="CSV file for the top classes, one per row.")
    ] = "",
    output: Annotated[
        str,
        typer.Option(
            help="CSV file for all probabilities, one column per class; folder for the files of a "
            "model without classes."
        ),
    ] = "",
    submission: Annotated[
        str, typer.Option(help="Sample submission of a competition; --output has its format.")
    ] = "",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an --output that exists.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
    ensemble: Together = None,
    average: Average = "probabilities",
    weights: Weights = "",
    tta: Views = "",
    calibrated: Calibrated = False,
) -> None:
    """Classify images with a trained model, or write the files of what else it gives.

    With --ensemble or --tta, the answers of several models or views are averaged. A folder of runs
    in place of RUN is an ensemble of all of them.
    """
    from vit_jax.inference.find_images import read_lists

    names = [*(images or ()), *([list_ if list_ == "-" else f"@{list_}"] if list_ else ())]
    if not names:
        raise UserError("there is nothing to classify; give images, folders, @FILE, or - for stdin")
    stream = read_lists(names)

    from vit_jax.inference.loading import load, load_classifier, writes_files
    from vit_jax.inference.programs import keep_programs

    averaging = Averaging(run, ensemble, average, weights, tta, calibrated)
    several = averaging.is_asked()
    if not several and writes_files(run):
        if not output or as_csv or submission:
            raise UserError(
                f"{run} is no classifier of images; use --output=FOLDER for what it gives, without "
                "--csv and --submission"
            )
        predictor = load(run, parse_checkpoint(checkpoint), raw=raw, **parse_fields(field))
        return _write_files(predictor, stream, output)
    _check_outputs(as_csv, output, submission, overwrite)
    keep_programs()
    fields = parse_fields(field)
    if several:
        classifier = averaging.load(checkpoint, raw, fields)
    else:
        classifier = load_classifier(run, parse_checkpoint(checkpoint), raw=raw, **fields)
    form = None
    if submission:
        from vit_jax.inference.submission import Submission

        form = Submission(submission, classifier.class_names, classifier.activation)
        stream = _match(form, stream, names)
    report_classes(
        classifier,
        names,
        stream,
        top=top,
        as_json=as_json,
        as_csv=as_csv,
        output=output,
        form=form,
        batch_size=batch_size,
    )


def _write_files(predictor: "Predictor", images: Iterable[str], folder: str) -> None:
    from vit_jax.inference.dense.files import write_files

    unwind_on_signals()
    done = failed = 0
    for name, found in write_files(predictor, images, folder):
        done += 1
        if isinstance(found, UserError):
            failed += 1
            print(printable(f"error: {found}"), file=sys.stderr)
        else:
            print(printable(f"{name}: {', '.join(path.name for path in found)}"))
    print(f"{folder}: {predictor.files}, of {done - failed:,} of {done:,} images")
    if failed:
        raise UserError(f"{failed:,} of {done:,} images could not be read")


def report_classes(
    classifier: "Classifier",
    names: list[str],
    stream: Iterable[str],
    *,
    top: int,
    as_json: bool,
    as_csv: str,
    output: str = "",
    form: "Submission | None" = None,
    batch_size: int,
) -> None:
    """Print and write the classes of images.

    Args:
        names: of images, folders and lists. stream: the images in them.
        form: of a sample submission, for `output`.
        others: as the options of `predict`.

    Raises:
        UserError: some could not be classified; they are counted, and all others are done.
    """
    from vit_jax.inference.find_images import is_list

    quiet = bool(output) and not as_json
    unwind_on_signals()
    with contextlib.ExitStack() as held:
        sinks: list[Callable[[int, ImageResult], None]] = []
        if not quiet:
            sinks.append(_as_json_lines(classifier, top) if as_json else _as_text(classifier, top))
        if as_csv:
            sinks.append(held.enter_context(_top_table(as_csv, classifier, top)))
        if output:
            sinks.append(held.enter_context(_wide_table(output, classifier, form)))
        total = len(form.rows) if form else _count(names, is_list)
        total = None if classifier.preprocessing.frames else total  # clips are not counted before
        watched = quiet or not sys.stdout.isatty()
        done, failed = _classify(
            classifier, stream, batch_size, sinks, held.enter_context(_progress(total, watched))
        )
    if output:
        print(f"{output}: {done - failed:,} of {done:,} images")
    if failed:
        raise UserError(f"{failed:,} of {done:,} images could not be classified")


def _classify(
    classifier: "Classifier",
    images: Iterable[str],
    batch_size: int,
    sinks: list[Callable[[int, "ImageResult"], None]],
    show: Callable[[int], None],
) -> tuple[int, int]:
    """Pass results to the sinks as they arrive; return the numbers of images and of errors."""
    done = failed = 0
    try:
        with contextlib.closing(classifier.iter_predict(images, batch_size)) as results:
            for number, result in enumerate(results):
                for sink in sinks:
                    sink(number, result)
                done += 1
                if result.error is not None:  # an unreadable image does not stop the others
                    failed += 1
                    print(printable(f"error: {result.error}"), file=sys.stderr)
                show(done)
    except KeyboardInterrupt:
        print(
            f"stopped after {done:,} images; everything written so far is complete", file=sys.stderr
        )
        raise typer.Exit(EXIT_STOPPED) from None
    return done, failed


def _check_outputs(as_csv: str, output: str, submission: str, overwrite: bool) -> None:
    """Raise UserError, before the classification, for files that cannot be written."""
    if as_csv:
        check_file("csv", as_csv)
    if submission and not output:
        raise UserError("--submission needs --output=FILE")
    if not output:
        return
    check_file("output", output)
    if as_csv and os.path.realpath(as_csv) == os.path.realpath(output):
        raise UserError(f"--csv and --output are the same file, {output}; name two")
    if os.path.exists(output) and not overwrite and os.path.isfile(output):
        raise UserError(
            f"--output={output} already exists; choose another file, or replace it with --overwrite"
        )
    if submission and os.path.exists(output) and os.path.samefile(submission, output):
        raise UserError("--output is the sample file itself; choose another file")


def _match(form: "Submission", images: Iterable[str], names: list[str]) -> list[str]:
    """Return the images of a sample file's rows, in the order of its rows."""
    from vit_jax.inference.find_images import find_images

    found, problems = [], []
    for image in find_images(images):
        (found if isinstance(image, str) else problems).append(image)
    for problem in problems:
        raise UserError(str(problem))
    matched = form.match(found, [name for name in names if os.path.isdir(name)])
    spare = len(set(found)) - len(set(matched))
    rest = f"; {spare:,} images without a row were skipped" if spare else ""
    print(f"{form.note}{rest}", file=sys.stderr)
    return matched


# ---------------------------------------------------------------------------------- output formats


def _as_text(classifier: "Classifier", top: int) -> Callable[[int, "ImageResult"], None]:
    def report(number: int, result: "ImageResult") -> None:
        if result.probabilities is None:
            return
        guesses = classifier.top_classes(result.probabilities, top)
        shown = "   ".join(f"{label} {100 * probability:.1f} %" for label, probability in guesses)
        print(printable(f"{result.name}: {shown}"))

    return report


def _as_json_lines(classifier: "Classifier", top: int) -> Callable[[int, "ImageResult"], None]:
    def report(number: int, result: "ImageResult") -> None:
        if result.probabilities is None:
            line: dict[str, Any] = {"error": str(result.error)}
        else:
            guesses = classifier.top_classes(result.probabilities, top)
            line = classifier.to_json(guesses)
        print(to_json({"image": result.name, **line}))

    return report


@contextlib.contextmanager
def _top_table(path: str, classifier: "Classifier", top: int) -> Iterator[Callable]:
    with _table(path) as write:
        write([("image", "place", "label", "probability")])

        def report(number: int, result: "ImageResult") -> None:
            if result.probabilities is not None:
                guesses = classifier.top_classes(result.probabilities, top)
                write((result.name, place, *guess) for place, guess in enumerate(guesses, start=1))

        yield report


@contextlib.contextmanager
def _wide_table(path: str, classifier: "Classifier", form: "Submission | None") -> Iterator:
    from vit_jax.inference.submission import format_numbers

    names = classifier.class_names
    with _table(path) as write:
        if form is not None:
            write([form.header])
        else:  # a class may be named like the column
            column = next(name for name in ("path", "file", "image path") if name not in names)
            write([(column, *names)])

        def report(number: int, result: "ImageResult") -> None:
            if form is not None:
                write([form.fill(number, result.probabilities)])
            elif result.probabilities is not None:
                write([(result.name, *format_numbers(result.probabilities))])

        yield report


@contextlib.contextmanager
def _table(path: str) -> Iterator[Callable[[Iterable], None]]:
    """Open a CSV file in UTF-8; file names may hold bytes that are not UTF-8."""
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")

        def write(rows: Iterable) -> None:
            writer.writerows(rows)
            file.flush()  # complete rows, even if the process is killed

        yield write


# ----------------------------------------------------------------------------------------- progress


def _count(names: list[str], is_list: Callable[[str], bool]) -> int | None:
    """Return the number of images; None if it is unknown before a list is read."""
    if any(map(is_list, names)):
        return None
    if not any(map(os.path.isdir, names)):
        return len(names)
    if not sys.stderr.isatty():  # no progress bar is shown
        return None
    from vit_jax.inference.find_images import find_images

    return sum(1 for _ in find_images(names))


@contextlib.contextmanager
def _progress(total: int | None, watched: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error, if there are many images and no other output."""
    if not watched or total == 1:
        yield lambda done: None
        return
    from vit_jax.progress import progress_bars

    with progress_bars("images") as show:
        yield lambda done: show("classified", done, total)
