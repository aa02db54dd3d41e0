"""Command `robustness`: accuracy of models under image perturbations."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vit_jax.commands.options import AsJson, Checkpoint, Raw, Run, Split, parse_checkpoint
from vit_jax.errors import UserError
from vit_jax.progress import progress_bars
from vit_jax.text import tell, to_json

if TYPE_CHECKING:  # help does not wait for JAX
    from matplotlib.figure import Figure

    from vit_jax.analysis.robustness.candidates import Candidate
    from vit_jax.analysis.robustness.shape_texture import Decisions
    from vit_jax.analysis.robustness.suite import Perturbation


def robustness(
    run: Run,
    dataset: Annotated[
        str, typer.Argument(help="Dataset, such as folder:PATH; default: the run's own.")
    ] = "",
    split: Split = "test",
    only: Annotated[
        str,
        typer.Option(
            help="Tests, such as corruptions,pgd or fog; default: corruptions, patch_drop, "
            "occlusion, shuffle, shift, rotation, fgsm and pgd; clean: none."
        ),
    ] = "",
    compare: Annotated[
        list[str] | None, typer.Option(help="Another run, tested on the same data; repeatable.")
    ] = None,
    images: Annotated[
        int, typer.Option(min=0, help="Number of images, drawn at random; 0: all.")
    ] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    among: Annotated[
        str,
        typer.Option(help="Candidate classes: model, or data (only classes in the data)."),
    ] = "model",
    constants: Annotated[
        str,
        typer.Option(help="Corruption strengths: imagenet, or cifar (32-pixel images)."),
    ] = "imagenet",
    fill: Annotated[str, typer.Option(help="Fill of occluded pixels: black or mean.")] = "black",
    padding: Annotated[
        str, typer.Option(help="Padding of shifts and rotations: edge or zero.")
    ] = "edge",
    grid: Annotated[
        int,
        typer.Option(min=0, help="Patch drop grid per side; 0: 14, patches of at least 4 pixels."),
    ] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Number of PGD steps.")] = 10,
    cue_conflict: Annotated[
        str, typer.Option(help="Folder of cue-conflict images (shape against texture).")
    ] = "",
    categories: Annotated[
        str, typer.Option(help="JSON file of class names by category, for --cue-conflict.")
    ] = "",
    output: Annotated[
        str, typer.Option("--output", "-o", help="Folder; default: robustness/NAME of the run.")
    ] = "",
    as_csv: Annotated[
        str, typer.Option("--csv", help="CSV file; default: robustness.csv in the folder.")
    ] = "",
    as_json: AsJson = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
) -> None:
    """Test and compare models under corruptions, occlusion, shifts and adversarial attacks."""
    if among not in ("model", "data"):
        raise UserError(f"--among={among} is invalid; use model or data")
    if categories and not cue_conflict:
        raise UserError("--categories needs --cue-conflict=FOLDER")

    from vit_jax.analysis.robustness import report as report
    from vit_jax.analysis.robustness.candidates import open_candidate
    from vit_jax.analysis.robustness.evaluate import measure
    from vit_jax.analysis.robustness.suite import Options, make_suite
    from vit_jax.commands.output import print_table

    names = [name.strip() for name in only.split(",") if name.strip()]
    options = Options(fill, padding, grid, steps, seed, constants)
    paths = [run, *(compare or [])]
    folder = Path(output or Path("robustness") / Path(run).resolve().name)
    csv_file = Path(as_csv or folder / "robustness.csv")
    # Invalid outputs and tests are reported before the work.
    report.check_places(folder, csv_file)
    loading = {"checkpoint": parse_checkpoint(checkpoint), "raw": raw}
    results, drawn, decisions = [], {}, {}
    content = {"dataset": dataset, "split": split, "seed": seed, "among": among}
    content["constants"] = constants
    if not cue_conflict or dataset or only:
        candidates = [
            open_candidate(
                path,
                dataset,
                split,
                name=name,
                only_classes_of_data=among == "data",
                **loading,
            )
            for path, name in zip(paths, _names(paths), strict=True)
        ]
        suite = make_suite(candidates[0].preprocessing.size, names, options)
        content["dataset"] = candidates[0].source.name
        tell(_what(candidates[0], images), error=True)
        with progress_bars() as show:
            results = measure(
                candidates,
                only=names,
                options=options,
                count=images,
                batch_size=batch_size,
                progress=partial(show, "tested"),
            )
        drawn = _examples(candidates[0], suite, images, seed)
    if cue_conflict:
        decisions = _decisions(paths, cue_conflict, categories, batch_size, loading)
    content |= report.record(results, decisions)
    files = report.write(folder, content, results, decisions, drawn, csv_file)
    if as_json:
        return print(to_json(content))
    for table in report.tables(results):
        print_table(table)
    if decisions:
        print_table(report.shape_table(decisions))
    for note in report.notes(results) if results else ():
        tell(note)
    tell(f"written: {', '.join(map(str, files))}")


def _names(paths: Sequence[str]) -> list[str]:
    """Return the names of the runs in results: folder names, or full paths if two are equal."""
    folders = [Path(path).expanduser().resolve() for path in paths]
    names = [folder.name for folder in folders]
    if len(set(folders)) < len(folders):
        raise UserError("--compare has the same run twice")
    return names if len(set(names)) == len(names) else list(paths)


def _what(candidate: "Candidate", count: int) -> str:
    """Describe the data of the test in one line."""
    import numpy as np

    source, classes = candidate.source, len(candidate.classifier.class_names)
    labels = source.labels[source.labels >= 0]
    there = len(np.unique(labels))
    taken = f"{count:,} of {len(labels):,}" if 0 < count < len(labels) else f"{len(labels):,}"
    line = f"{source.name} {source.split}: {taken} images, {there:,} of the model's {classes:,}"
    if candidate.among is not None:
        return f"{line} classes; predictions are chosen among these {there:,}"
    if there < classes:
        return f"{line} classes; predictions are chosen among all {classes:,} (--among=data: these)"
    return f"{line} classes"


def _examples(
    candidate: "Candidate", suite: "Sequence[Perturbation]", count: int, seed: int
) -> "dict[str, Figure | None]":
    """Draw the first readable image under each test, in figures of corruptions and others."""
    from vit_jax.analysis.robustness.candidates import choose_images
    from vit_jax.analysis.robustness.plots import examples
    from vit_jax.errors import DecodeError

    corruptions = [test for test in suite if test.kind == "corruptions"]
    others = [test for test in suite if test.kind != "corruptions"]
    for number in choose_images(candidate.source, count, seed):
        try:
            image = candidate.preprocessing(candidate.source[int(number)]["image"])
        except DecodeError:
            continue
        return {
            "examples_corruptions": examples(image, corruptions, seed, int(number)),
            "examples": examples(image, others, seed, int(number)),
        }
    return {}


def _decisions(
    paths: Sequence[str], folder: str, categories: str, batch_size: int, loading: dict
) -> "dict[str, Decisions]":
    """Return the decisions of each run on cue-conflict images."""
    from vit_jax.analysis.robustness.shape_texture import Categories, decide, list_images
    from vit_jax.inference.loading import load_classifier

    images, made = list_images(folder), {}
    for path, name in zip(paths, _names(paths), strict=True):
        classifier = load_classifier(path, **loading)
        names = classifier.class_names
        mapped = Categories.read(categories, names) if categories else Categories.named(names)
        with progress_bars() as show:
            progress = partial(show, f"cue conflict, {name}")
            made[name] = decide(classifier, images, mapped, batch_size, progress)
    return made
