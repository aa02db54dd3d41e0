"""Command `serve`: a trained model over HTTP."""

import importlib.util
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vit_jax.commands.language import class_names, templates_of
from vit_jax.commands.options import Checkpoint, Raw, parse_checkpoint
from vit_jax.errors import UserError
from vit_jax.text import tell

if TYPE_CHECKING:
    from vit_jax.inference import Predictor

_NEEDS = ("fastapi", "uvicorn", "python_multipart")
_LOOPBACK = ("127.", "::1", "localhost")


def serve(
    run: Annotated[str, typer.Argument(help="Run folder, or the folder of an exported model.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any that is free.")] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen at; 0.0.0.0: all networks of this machine.")
    ] = "127.0.0.1",
    classes: Annotated[
        str,
        typer.Option(
            help="Classes of a model of images and texts, CAT,DOG, or @FILE with one on each line."
        ),
    ] = "",
    template: Annotated[
        list[str] | None,
        typer.Option(help="Sentence with {} in the place of a class, or @FILE; may be repeated."),
    ] = None,
    checkpoint: Checkpoint = "last",
    raw: Raw = False,
    max_batch: Annotated[int, typer.Option(min=1, max=1024, help="Images computed at once.")] = 16,
    max_wait: Annotated[
        float, typer.Option(min=0, help="Milliseconds that an image waits for others.")
    ] = 5.0,
    max_mb: Annotated[float, typer.Option(min=0.001, help="Size of a request in MiB.")] = 32.0,
    max_megapixels: Annotated[
        float, typer.Option(min=0.001, help="Pixels of an image, in millions.")
    ] = 50.0,
    max_images: Annotated[int, typer.Option(min=1, help="Images of a request.")] = 64,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Requests at once; further ones are refused.")
    ] = 64,
) -> None:
    """Serve a trained model over HTTP: POST images to /predict, or open the page in a browser."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"serve needs {', '.join(missing)}: pip install 'vit_jax[serve]'")
    from vit_jax.serving.server import address_of, open_socket, run_server

    with open_socket(host, port) as listening:  # before the model, which takes longer
        from vit_jax.progress import progress_bars
        from vit_jax.serving.limits import Limits
        from vit_jax.serving.service import Service

        limits = Limits(
            body_bytes=round(max_mb * 2**20),
            pixels=round(max_megapixels * 1e6),
            images=max_images,
            requests=max_waiting,
        )
        predictor, about = _load(run, checkpoint, raw, classes, template)
        service = Service(predictor, about, limits, max_batch, max_wait / 1000)
        with progress_bars("programs") as show:
            service.start(lambda done, total: show("compiling", done, total))
        address = address_of(listening)
        if not host.startswith(_LOOPBACK):
            tell("note: anybody who reaches this address can use the model", error=True)
        ready = f"{run} is served at {address}; stop with Ctrl-C"
        run_server(service, listening, lambda: print(ready, flush=True))
        print("stopped; all requests that had arrived are answered", flush=True)


def _load(
    run: str, checkpoint: str, raw: bool, classes: str, template: list[str] | None
) -> tuple["Predictor", dict[str, Any]]:
    """Return a predictor and what its card says of it.

    With classes it is the classifier of a model with two towers. `run` may be an exported folder.
    """
    from vit_jax.export.files import DESCRIPTION
    from vit_jax.runs import RunDir

    if template and not classes:
        raise UserError("--template needs --classes=CAT,DOG")
    if os.path.isfile(os.path.join(run, DESCRIPTION)):
        if classes or raw or checkpoint != "last":
            raise UserError(
                f"{run} is an exported model, which has one checkpoint and its own classes; omit "
                "--classes, --checkpoint and --raw, or serve the run"
            )
        from vit_jax.export.exported import load_exported

        exported = load_exported(run)
        return exported, {**exported.description, "name": exported.description["model"]}
    about = RunDir(run).read_model().to_json()
    if not classes:
        from vit_jax.inference.loading import load
        from vit_jax.inference.programs import keep_programs

        keep_programs()
        return load(run, parse_checkpoint(checkpoint), raw=raw), about
    from vit_jax.inference.two_towers import load_two_towers

    names, templates = class_names(classes), templates_of(template)
    towers = load_two_towers(run, checkpoint=parse_checkpoint(checkpoint), raw=raw)
    return towers.classifier(names, templates), about
