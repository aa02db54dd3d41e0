"""Command `data`: inspect a dataset before training."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from vit_jax.commands.output import print_table
from vit_jax.progress import progress_bars
from vit_jax.text import tell, to_json


def data(
    dataset: Annotated[
        str, typer.Argument(help="Dataset, such as digits, folder:PATH or tfds:NAME.")
    ],
    split: Annotated[str, typer.Option(help="Split, such as train or test[:100], or all.")] = "all",
    data_dir: Annotated[str, typer.Option(help="Folder of the data prepared by TFDS.")] = "",
    manual_dir: Annotated[
        str, typer.Option(help="Folder of manually downloaded files for TFDS.")
    ] = "",
    path_column: Annotated[
        str, typer.Option(help="Column of image paths in a CSV or JSONL file.")
    ] = "",
    label_column: Annotated[
        str, typer.Option(help="Column of labels in a table, or NAME,NAME,... of classes.")
    ] = "",
    image_dir: Annotated[
        str, typer.Option(help="Base folder of the paths in a CSV or JSONL file.")
    ] = "",
    caption_column: Annotated[
        str, typer.Option(help="Column of captions in a CSV or JSONL file.")
    ] = "",
    labels: Annotated[
        bool, typer.Option("--labels/--no-labels", help="Whether labels are used.")
    ] = True,
    output: Annotated[
        str, typer.Option(help="Folder of the report; default: data_report/NAME.")
    ] = "",
    augment: Annotated[
        str, typer.Option(help="Augmentation preset for a contact sheet, such as light.")
    ] = "",
    size: Annotated[
        int,
        typer.Option(min=0, help="Side of the model's input in pixels; 0: the most common size."),
    ] = 0,
    plugins: Annotated[
        str, typer.Option(help="Modules to import first, which register a source.")
    ] = "",
    full: Annotated[
        bool, typer.Option("--full", help="Examine every image, without sampling.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Inspect a dataset: counts, sizes, damaged files, duplicates, contact sheets."""
    from vit_jax.commands.data_report import (
        lines,
        open_splits,
        preset_options,
        safe_name,
        tables,
        training_command,
        write,
    )
    from vit_jax.data import TableOptions
    from vit_jax.data.inspect.report import LIMIT, inspect_dataset
    from vit_jax.plugins import import_plugins, module_names

    import_plugins(module_names(plugins), "--plugins")
    # An unknown preset is reported before the work.
    preset = preset_options(augment) if augment else None
    options = {"data_dir": data_dir or None, **({"manual_dir": manual_dir} if manual_dir else {})}
    columns = TableOptions(path_column, label_column, image_dir, caption_column)
    if not labels:
        options["labels"] = False
    if columns != TableOptions():
        options["table"] = columns
    sources = open_splits(dataset, split, options)
    folder = Path(output or Path("data_report") / safe_name(dataset))
    folder.mkdir(parents=True, exist_ok=True)
    with progress_bars() as show:

        def progress(split: str, done: int, total: int) -> None:
            show(f"examining {split}", done, total)

        report = inspect_dataset(sources, limit=None if full else LIMIT, progress=progress)
    files = write(folder, dataset, report, next(iter(sources.values())), preset, size)
    if as_json:
        return print(to_json({"dataset": dataset, **report.to_dict()}))
    for table in tables(report):
        print_table(table)
    for line in lines(report, files):
        tell(line)
    keys = {"plugins": plugins, "data.dir": data_dir, "data.manual_dir": manual_dir}
    keys |= {f"data.{name}": value for name, value in dataclasses.asdict(columns).items()}
    command = training_command(dataset, report, keys) if split == "all" else None
    if command:
        tell(f"train: {command}")
