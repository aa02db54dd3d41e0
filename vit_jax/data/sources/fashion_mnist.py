"""Fashion-MNIST, real and without TensorFlow: 60,000 + 10,000 images of clothes, 28x28, grey.

    make data-fashion-mnist         # or any command that opens tfds:fashion_mnist

Xiao, Rasul and Vollgraf (2017), arXiv:1708.07747. The dataset is that of TensorFlow Datasets, with
its addresses, checksums and features; only the four files are read here, because TFDS unpacks them
with TensorFlow. Debian's package `dataset-fashion-mnist` has the same files and is preferred if apt
is available, since the original address is slow and plain HTTP. Debian packs them with `gzip -n`,
which removes the name and the time from the header and thereby changes the checksum. `restore`
inserts them again, and TFDS verifies that the results equal the originals, byte for byte.
"""

import contextlib
import gzip
import io
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from tensorflow_datasets.image_classification.mnist import FashionMNIST

from vit_jax.errors import UserError, is_disk_full

PACKAGE = "dataset-fashion-mnist"
_PACKAGE_FILES = Path("usr/share/datasets/fashion-mnist")
# Seconds since 1970 in the gzip headers of the original files.
_MODIFIED = {"train": 1504176606, "t10k": 1504176627}
_KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")
_EXAMPLES = {"train": 60_000, "t10k": 10_000}

# TFDS has registered the name already; this class replaces TFDS's own only while preparing.
with tfds.core.registered.skip_registration():

    class _FashionMnist(FashionMNIST):
        """TFDS's builder of the same name, reading its files without TensorFlow."""

        name = "fashion_mnist"

        def _split_generators(self, dl_manager):
            def examples(part: str):
                urls = {kind: f"{self.URL}{part}-{kind}.gz" for kind in _KINDS}
                # not download_and_extract, which needs TensorFlow
                files = dl_manager.download(urls)
                return self._generate_examples(_EXAMPLES[part], *(files[kind] for kind in _KINDS))

            return {"train": examples("train"), "test": examples("t10k")}

        def _generate_examples(self, num_examples, data_path, label_path):
            images = _idx(data_path, header=16).reshape(num_examples, 28, 28)
            labels = _idx(label_path, header=8)
            for index in range(num_examples):
                yield (
                    index,
                    {
                        "image": Image.fromarray(images[index]),
                        "label": int(labels[index]),
                    },
                )


def prepare(
    data_dir: str | os.PathLike | None = None,
    manual_dir: str | os.PathLike | None = None,
    say=lambda sentence: print(sentence, file=sys.stderr),
) -> Path:
    """Write the dataset as ArrayRecord if it is missing, and return its directory.

    Args:
      data_dir: root of the prepared TFDS datasets; `None` is TFDS's own (`~/tensorflow_datasets`,
        or `$TFDS_DATA_DIR`).
      manual_dir: a directory with the four original files; `None` downloads them, from the Debian
        package if apt is available and has it, else from the address in TFDS.
      say: called with a sentence before every long task.

    Raises:
      UserError: the files cannot be downloaded, differ from the originals, or cannot be written.
    """
    root = Path(data_dir or tfds.core.constants.DATA_DIR).expanduser()
    builder = _FashionMnist(data_dir=str(root), file_format="array_record")
    directory = Path(builder.data_dir)
    if builder.is_prepared():
        return directory
    try:
        with contextlib.ExitStack() as stack:
            if manual_dir is None:
                manual_dir = stack.enter_context(_files_of_debian(say))
            say(f"preparing fashion_mnist in {root}: 70,000 images, about a minute")
            options = {"manual_dir": os.fspath(manual_dir)} if manual_dir else {}
            tfds.disable_progress_bar()
            with contextlib.redirect_stdout(io.StringIO()):  # TFDS reports downloads
                builder.download_and_prepare(
                    file_format="array_record",
                    download_config=tfds.download.DownloadConfig(try_download_gcs=False, **options),
                )
    except Exception as error:  # network, checksums, disk: each library raises its own
        if is_disk_full(error):
            raise UserError(
                f"fashion_mnist could not be prepared in {root}: the disk is full; free some space"
                " there, or set another directory with data.dir, then run the same command again"
            ) from error
        reason = str(error).strip().partition("\n")[0].rstrip(":.")
        reason = reason or type(error).__name__
        raise UserError(
            f"fashion_mnist could not be prepared in {root}: {reason}; download the four files"
            " train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz"
            " and t10k-labels-idx1-ubyte.gz of github.com/zalandoresearch/fashion-mnist and set"
            " data.manual_dir to their directory"
        ) from error
    return directory


def restore(package_files: str | os.PathLike, originals: str | os.PathLike) -> None:
    """Write the four original files from those of the Debian package.

    Args:
      package_files: directory with Debian's four `.gz` files.
      originals: output directory; created if missing.

    Raises:
      UserError: a file is missing, or does not begin with the header of `gzip -n`.
    """
    originals = Path(originals)
    originals.mkdir(parents=True, exist_ok=True)
    for part, modified in _MODIFIED.items():
        for kind in _KINDS:
            name = f"{part}-{kind}"
            try:
                packed = (Path(package_files) / f"{name}.gz").read_bytes()
            except FileNotFoundError as error:
                raise UserError(f"there is no {name}.gz in {package_files}") from error
            if packed[:4] != b"\x1f\x8b\x08\x00":  # gzip, deflate, no optional fields
                raise UserError(f"{name}.gz in {package_files} has another header than Debian's")
            # RFC 1952: flags with FNAME, time, extra flags, operating system Unix, the name.
            header = b"\x1f\x8b\x08\x08" + struct.pack("<I", modified) + b"\x00\x03"
            (originals / f"{name}.gz").write_bytes(header + name.encode() + b"\0" + packed[10:])


@contextlib.contextmanager
def _files_of_debian(say) -> Iterator[Path | None]:
    """Yield a directory with the original files from the Debian package; None without a package."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        yield None
        return
    with tempfile.TemporaryDirectory() as folder:
        say(f"downloading the Debian package {PACKAGE} (31 MB)")
        try:
            _run(["apt-get", "download", PACKAGE], folder)
            [package] = Path(folder).glob(f"{PACKAGE}_*.deb")
            _run(["dpkg-deb", "-x", package.name, "unpacked"], folder)
            restore(Path(folder) / "unpacked" / _PACKAGE_FILES, Path(folder) / "originals")
        except (subprocess.CalledProcessError, OSError, ValueError) as error:
            output = getattr(error, "stderr", None) or str(error)
            reason = output.strip().splitlines()[-1] if output.strip() else type(error).__name__
            say(f"apt could not download {PACKAGE} ({reason}); downloading the files instead")
            yield None
            return
        yield Path(folder) / "originals"


def _run(command: list[str], folder: str) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)


def _idx(path: str | os.PathLike, header: int) -> np.ndarray:
    """Return the bytes of a compressed IDX file after its header."""
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), np.uint8, offset=header)
