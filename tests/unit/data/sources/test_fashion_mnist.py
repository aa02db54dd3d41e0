"""Fashion-MNIST: the originals out of Debian's package, and their reading without TensorFlow."""

import errno
import gzip
import struct
import subprocess
import zlib

import numpy as np
import pytest

from vit_jax.data.sources import fashion_mnist
from vit_jax.errors import UserError

NAMES = [f"{part}-{kind}.gz" for part in ("train", "t10k")
         for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")]  # fmt: skip


def gzip_n(content: bytes) -> bytes:
    """Content as `gzip -n` writes it: RFC 1952, no name, no time."""
    packed = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packed.compress(content) + packed.flush()
    tail = struct.pack("<II", zlib.crc32(content), len(content))
    return b"\x1f\x8b\x08\x00" + bytes(4) + b"\x02\x03" + body + tail


@pytest.fixture
def package(tmp_path):
    (tmp_path / "package").mkdir()
    for name in NAMES:
        (tmp_path / "package" / name).write_bytes(gzip_n(name.encode() * 10))
    return tmp_path / "package"


def test_the_originals_have_name_and_time_in_their_headers_and_the_same_content(package, tmp_path):
    fashion_mnist.restore(package, tmp_path / "originals")
    for name in NAMES:
        restored = (tmp_path / "originals" / name).read_bytes()
        assert gzip.decompress(restored) == name.encode() * 10
        # RFC 1952, section 2.3: flag 8 is FNAME, then four bytes of time, then XFL and OS.
        assert restored[3] == 8
        [time] = struct.unpack("<I", restored[4:8])
        assert time == {"train": 1504176606, "t10k": 1504176627}[name.split("-")[0]]
        assert restored[10:].startswith(name.removesuffix(".gz").encode() + b"\0")
        # The originals are longer than Debian's by that name and its end.
        assert len(restored) - (package / name).stat().st_size == len(name.removesuffix(".gz")) + 1


def test_a_package_that_lacks_a_file_or_has_another_header_is_refused(package, tmp_path):
    (package / NAMES[3]).write_bytes(b"\x1f\x8b\x08\x08 with a name")
    with pytest.raises(UserError, match="another header"):
        fashion_mnist.restore(package, tmp_path / "originals")
    (package / NAMES[3]).unlink()
    with pytest.raises(UserError, match=NAMES[3]):
        fashion_mnist.restore(package, tmp_path / "originals")


def test_images_and_labels_are_read_from_the_idx_files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    header = struct.pack(">4i", 2051, 3, 28, 28)
    with gzip.open(tmp_path / "images.gz", "wb") as file:
        file.write(header + images.tobytes())
    with gzip.open(tmp_path / "labels.gz", "wb") as file:
        file.write(struct.pack(">2i", 2049, 3) + bytes([9, 0, 4]))
    builder = fashion_mnist._FashionMnist(data_dir=str(tmp_path))
    examples = list(builder._generate_examples(3, tmp_path / "images.gz", tmp_path / "labels.gz"))
    assert [number for number, _ in examples] == [0, 1, 2]
    assert [example["label"] for _, example in examples] == [9, 0, 4]
    for (_, example), image in zip(examples, images, strict=True):
        np.testing.assert_array_equal(np.asarray(example["image"]), image)


def test_it_is_the_dataset_that_tensorflow_datasets_knows_by_this_name(tmp_path):
    builder = fashion_mnist._FashionMnist(data_dir=str(tmp_path))
    assert (builder.name, str(builder.version)) == ("fashion_mnist", "3.0.1")
    assert builder.info.features["label"].names[9] == "Ankle boot"


def test_without_the_package_the_files_are_downloaded_and_a_failure_is_one_sentence(
    tmp_path, monkeypatch
):
    def no_package(command, folder):
        raise subprocess.CalledProcessError(100, command, stderr="E: Unable to locate package\n")

    asked = []

    def no_network(self, *, download_config, **options):
        asked.append(download_config.manual_dir)
        raise ConnectionError("no route to host\nand so on")

    monkeypatch.setattr(fashion_mnist.shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(fashion_mnist, "_run", no_package)
    monkeypatch.setattr(fashion_mnist._FashionMnist, "download_and_prepare", no_network)
    said = []
    with pytest.raises(UserError, match="no route to host; download the four files .*manual_dir"):
        fashion_mnist.prepare(tmp_path, say=said.append)
    assert asked == [None]
    assert any("Unable to locate package" in sentence for sentence in said)


def test_files_that_are_not_the_originals_leave_nothing_behind(package, tmp_path):
    """TFDS compares what it finds with its checksums."""
    with pytest.raises(UserError, match="has wrong checksum; download the four files"):
        fashion_mnist.prepare(tmp_path / "data", manual_dir=package, say=lambda sentence: None)
    assert not list((tmp_path / "data").glob("fashion_mnist/*/dataset_info.json"))


def test_a_full_disk_asks_for_room_and_not_for_files(tmp_path, monkeypatch):
    def no_space(self, file_format, download_config):
        raise RuntimeError("could not write") from OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fashion_mnist._FashionMnist, "download_and_prepare", no_space)
    with pytest.raises(UserError, match="disk is full; free some space there.*data.dir") as caught:
        fashion_mnist.prepare(tmp_path, manual_dir=tmp_path, say=lambda sentence: None)
    assert "download the four files" not in str(caught.value)
