"""Execute notebooks and store them with their outputs, without local paths.

    python notebooks/execute.py                  # all notebooks, one after the other
    python notebooks/execute.py 04_positions     # this one

`make notebooks` trains `runs/digits` first, which two of them open. A notebook runs in the folder
`notebooks`, as in Jupyter, and imports the package of this checkout.
"""

import base64
import io
import os
import re
import socket
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from PIL import Image

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SECONDS = 1800  # for one cell


def execute(path: Path) -> NotebookNode:
    """Return a notebook with the outputs of a fresh kernel, cleaned for storage.

    Raises:
        CellExecutionError: of the first cell that fails.
        ValueError: an output names a folder or the name of this machine.
    """
    notebook = nbformat.read(path, as_version=4)
    metadata = notebook.metadata.copy()
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(TMPDIR=folder, PYTHONPATH=str(ROOT))
        os.environ.pop("VIT_JAX_RUN", None)
        os.environ.pop("MPLBACKEND", None)  # figures go where the kernel shows them
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            record_timing=False,
            resources={"metadata": {"path": str(HERE)}},
        )
        client.execute()
    notebook.metadata = metadata
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = _merged([_cleaned(output, folder) for output in cell.outputs])
            _check(cell, folder)
    return notebook


def _cleaned(output: NotebookNode, folder: str) -> NotebookNode:
    """Return an output with small images, without HTML where text says the same, and no paths."""
    data = output.get("data", {})
    if "image/png" in data:
        data["image/png"] = _small(data["image/png"])
    if "text/html" in data and "text/plain" in data:  # a line of the training log
        output = nbformat.v4.new_output("stream", name="stderr", text=data["text/plain"])
        data = {}
    if "text" in output:
        output.text = _without_paths(output.text, folder)
    for kind, text in data.items():
        if kind.startswith("text/"):
            data[kind] = _without_paths(text, folder)
    return output


def _small(png: str) -> str:
    """Return a base64 PNG without alpha channel and with at most 256 colours."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    # A third of the size; colours change by a few of 255 steps.
    palette = {"method": Image.Quantize.MAXCOVERAGE, "kmeans": 3}
    image = image.quantize(256, dither=Image.Dither.NONE, **palette)
    small = io.BytesIO()
    image.save(small, "PNG", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def _without_paths(text: str, folder: str) -> str:
    """Return a text with temporary folders as `temp` and files of the checkout by relative path."""
    text = re.sub(re.escape(folder) + r"(/tmp\w+)?", "temp", text)
    return text.replace(f"{ROOT}/", "")


def _merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Return the outputs, consecutive pieces of the same stream as one."""
    merged: list[NotebookNode] = []
    for output in outputs:
        last = merged[-1] if merged else None
        if last and output.get("name") and last.get("name") == output.name:
            last.text += output.text
        else:
            merged.append(output)
    return merged


def _check(cell: NotebookNode, folder: str) -> None:
    """Raise ValueError if an output names a folder or the name of this machine."""
    private = (folder, str(ROOT), str(Path.home()), socket.gethostname())
    for output in cell.outputs:
        texts = [output.get("text", "")]
        texts += [x for kind, x in output.get("data", {}).items() if kind.startswith("text/")]
        for name in private:
            if any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) for text in texts):
                raise ValueError(f"an output of the cell {cell.id!r} contains {name!r}")


def main(names: list[str]) -> None:
    known = {path.stem: path for path in sorted(HERE.glob("*.ipynb"))}
    unknown = sorted(set(names) - set(known))
    if unknown:
        sys.exit(f"no notebook {', '.join(unknown)}; there are {', '.join(known)}")
    for name in names or known:
        print(f"{name} ...", flush=True)
        nbformat.write(execute(known[name]), known[name])
        print(f"{name}: {known[name].stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(sys.argv[1:])
