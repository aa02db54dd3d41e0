"""Commands that compare images with texts: `zero-shot`, `search` and `embed`."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from vit_jax.commands.options import Checkpoint, Raw, check_file, parse_checkpoint
from vit_jax.errors import UserError
from vit_jax.text import counted, tell, to_json

if TYPE_CHECKING:
    from vit_jax.inference.two_towers import TwoTowers

Model = Annotated[
    str,
    typer.Argument(
        help="Model of images and texts: a run folder, a file of CLIP or SigLIP, hf://OWNER/NAME."
    ),
]
Images = Annotated[
    list[str] | None,
    typer.Argument(help="Image files, folders, @FILE with one path per line, or - for stdin."),
]
TokenizerPath = Annotated[
    str,
    typer.Option("--tokenizer", help="Its tokenizer, a path or address; default: the model's own."),
]
BatchSize = Annotated[int, typer.Option(min=1, help="Batch size.")]


def zero_shot(
    model: Model,
    images: Images = None,
    classes: Annotated[
        str, typer.Option(help="Names of the classes, CAT,DOG, or @FILE with one on each line.")
    ] = "",
    template: Annotated[
        list[str] | None,
        typer.Option(
            help="Sentence with {} in the place of a class, or @FILE with one on each line; may be "
            "repeated; default: a dozen for photos."
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of classes per image.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per image.")] = False,
    as_csv: Annotated[
        str, typer.Option("--csv", help="CSV file for the top classes, one per row.")
    ] = "",
    output: Annotated[
        str, typer.Option(help="CSV file for all probabilities, one column per class.")
    ] = "",
    tokenizer: TokenizerPath = "",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    batch_size: BatchSize = 64,
) -> None:
    """Classify images by the names of classes, without training."""
    for option, path in (("csv", as_csv), ("output", output)):
        if path:
            check_file(option, path)
    names = _names(images)
    listed, templates = class_names(classes), templates_of(template)
    from vit_jax.commands.predict import report_classes
    from vit_jax.inference.find_images import read_lists

    stream = read_lists(names)
    towers = _load(model, tokenizer, checkpoint, raw)
    classifier = towers.classifier(listed, templates)
    if report := towers.tokenizer.cut_report():
        tell(report, error=True)
    report_classes(
        classifier,
        names,
        stream,
        top=top,
        as_json=as_json,
        as_csv=as_csv,
        output=output,
        batch_size=batch_size,
    )


def search(
    model: Model,
    folder: Annotated[str, typer.Argument(help="Folder of images, or an image file.")],
    queries: Annotated[
        list[str], typer.Argument(help='What to look for: "a red shoe"; a row for each.')
    ],
    top: Annotated[int, typer.Option(min=1, max=100, help="Number of images per query.")] = 8,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Sheet of the nearest images; empty: none.")
    ] = "search.png",
    cache: Annotated[
        str,
        typer.Option(help="File for the vectors of the images; default: FOLDER.vectors.npz."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON line per query.")] = False,
    tokenizer: TokenizerPath = "",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    batch_size: BatchSize = 64,
) -> None:
    """Find the images of a folder that are nearest to a text."""
    if output:
        check_file("output", output, image=True)
    if not os.path.exists(folder):
        raise UserError(f"there is no folder {folder}")
    cache = cache or f"{folder.rstrip('/')}.vectors.npz"
    check_file("cache", cache)
    towers = _load(model, tokenizer, checkpoint, raw)
    texts = towers.encode_text(queries)
    from vit_jax.inference.image_index import build_index
    from vit_jax.progress import progress_bars

    with progress_bars("images") as bars:
        index = build_index(
            towers,
            [folder],
            cache,
            batch_size=batch_size,
            show=lambda done, total: bars("read", done, total),
        )
    found = [index.nearest(text, top) for text in texts]
    for query, matches in zip(queries, found, strict=True):
        if as_json:
            images = [{"image": match.name, "cosine": match.cosine} for match in matches]
            print(to_json({"text": query, "images": images}))
            continue
        tell(f"{query}:")
        for match in matches:
            tell(f"  {match.cosine:6.3f}  {match.name}")
    if output:
        _draw(towers, queries, [[match.name for match in row] for row in found], output)
        tell(f"The sheet is {output}; the vectors are kept in {cache}.", error=as_json)


def embed(
    model: Model,
    images: Images = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="File for the vectors, float32 (images, width).")
    ] = "vectors.npy",
    texts: Annotated[
        str, typer.Option(help="Embed the lines of this text file in place of images.")
    ] = "",
    names: Annotated[
        str,
        typer.Option(
            help="File for the name of each row, one on each line; default: beside the vectors."
        ),
    ] = "",
    tokenizer: TokenizerPath = "",
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    batch_size: BatchSize = 64,
) -> None:
    """Write the vectors of images or texts to a file of NumPy.

    Any run has vectors of images, its pooled features; those of images and texts have length 1.
    """
    names = names or f"{output.removesuffix('.npy')}.txt"
    check_file("output", output)
    check_file("names", names)
    if texts and images:
        raise UserError("--texts and images cannot be embedded into one file; call embed for each")
    if not texts:
        asked = _names(images)
    import numpy as np

    from vit_jax.errors import writing

    if texts:
        rows = _lines(texts, "texts")
        towers = _load(model, tokenizer, checkpoint, raw)
        vectors = towers.encode_text(rows)
        if report := towers.tokenizer.cut_report():
            tell(report, error=True)
        failed = 0
    else:
        rows, vectors, failed = _embedded(model, tokenizer, checkpoint, raw, asked, batch_size)
    with writing(output), open(output, "wb") as file:
        np.save(file, vectors)
    with writing(names), open(names, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.writelines(f"{row}\n" for row in rows)
    what = "text" if texts else "image"
    tell(
        f"{output}: {counted(len(rows), what)} of {vectors.shape[1]} numbers; {names}: their names"
    )
    if failed:
        raise UserError(f"{failed:,} of {failed + len(rows):,} images could not be read")


def class_names(text: str) -> list[str]:
    """Return the classes of `--classes=A,B`, or the lines of `--classes=@FILE`.

    Raises UserError if there are none.
    """
    if text.startswith("@"):
        return _lines(text[1:], "classes")
    found = [item.strip() for item in text.split(",") if item.strip()]
    if not found:
        raise UserError("there are no classes; give --classes=CAT,DOG, or --classes=@FILE")
    return found


def templates_of(given: list[str] | None) -> tuple[str, ...]:
    """Return the sentences of `--template`, or a dozen for photos."""
    from vit_jax.data.text.templates import TEMPLATES, check_templates, read_templates

    if not given:
        return TEMPLATES
    found: list[str] = []
    for one in given:
        found += read_templates(one[1:]) if one.startswith("@") else [one]
    return check_templates(found, "--template")


# ----------------------------------------------------------------------------------------- inside


def _load(model: str, tokenizer: str, checkpoint: str, raw: bool) -> "TwoTowers":
    from vit_jax.inference.two_towers import load_two_towers

    return load_two_towers(model, tokenizer, parse_checkpoint(checkpoint), raw=raw)


def _names(images: list[str] | None) -> list[str]:
    if not images:
        raise UserError("there are no images; give images, folders, @FILE, or - for stdin")
    return images


def _lines(path: str, option: str) -> list[str]:
    """Return the lines of a text file, without empty ones."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        raise UserError(f"--{option}: {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"--{option}: {path} is no text in UTF-8: {error.reason}") from error
    if not any(lines):
        raise UserError(f"--{option}: {path} is empty; write one on each line")
    return [line for line in lines if line]


def _embedded(
    model: str, tokenizer: str, checkpoint: str, raw: bool, names: list[str], batch_size: int
):
    """Return names and vectors of the images that can be read, and the number of others."""
    import numpy as np

    from vit_jax.inference.encoder import Encoder
    from vit_jax.inference.find_images import read_lists
    from vit_jax.inference.loading import load, predictor_class
    from vit_jax.inference.two_towers import TwoTowers
    from vit_jax.runs import RunDir

    stream, run = read_lists(names), RunDir(model)
    if not run.is_run():
        predictor = _load(model, tokenizer, checkpoint, raw)
    elif issubclass(predictor_class(run.read_model()), TwoTowers):
        predictor = load(model, parse_checkpoint(checkpoint), raw=raw)
    else:
        variables, step = run.read_variables(parse_checkpoint(checkpoint), raw=raw)
        predictor = Encoder.of_record(run.read_model(), variables, step)
    output = "vectors" if isinstance(predictor, TwoTowers) else "features"
    rows, vectors, failed = [], [], 0
    for batch, outputs in predictor.batches(stream, batch_size):
        for name, error, vector in zip(batch.names, batch.errors, outputs[output], strict=True):
            if error is not None:
                failed += 1
                tell(f"error: {error}", error=True)
                continue
            rows.append(name)
            vectors.append(vector)
    if not rows:
        raise UserError(f"none of {counted(failed, 'image')} could be read; nothing is written")
    return rows, np.stack(vectors).astype(np.float32), failed


def _draw(towers: "TwoTowers", queries: list[str], found: list[list[str]], output: str) -> None:
    """Draw a row of images for each query."""
    from vit_jax.data.inspect.contact_sheets import SheetRow, draw_rows

    decode = towers.preprocessing.decode
    rows = [
        SheetRow(query, [decode(name) for name in names])
        for query, names in zip(queries, found, strict=True)
    ]
    draw_rows(rows, note="nearest first").save(output)
