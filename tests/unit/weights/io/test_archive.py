"""Zip archives that declare one thing and hold another."""

import struct
import zipfile

import pytest

from tests.support.hostile import outcome
from vit_jax.errors import UserError
from vit_jax.weights.io.archive import Archive

LISTED, END = b"PK\x01\x02", b"PK\x05\x06"
# Where the numbers of an entry in the list at the end stand, after its signature.
COMPRESSED_SIZE, SIZE, COMMENT_LENGTH = 20, 24, 32


def write(path, method=zipfile.ZIP_STORED, **members: bytes):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def patch(path, place: int, number: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[place : place + len(number)] = number
    path.write_bytes(content)


def read_all(path) -> dict[str, bytes]:
    with Archive(path) as archive:
        return {name: archive.read(name) for name in archive.sizes}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_read_whole(tmp_path, method):
    members = {"first": b"one" * 100, "second": b""}
    path = write(tmp_path / "a.zip", method, **members)
    assert read_all(path) == members
    with Archive(path) as archive:
        assert archive.sizes == {"first": 300, "second": 0}
        assert archive.is_compressed("first") == (method == zipfile.ZIP_DEFLATED)


def test_a_compression_that_is_not_used_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"'a' is compressed by method 14"):
        Archive(write(tmp_path / "a.zip", zipfile.ZIP_LZMA, a=bytes(100)))


def test_a_bomb_that_declares_a_small_size_is_not_unpacked(tmp_path):
    path = write(tmp_path / "a.zip", zipfile.ZIP_DEFLATED, a=bytes(2**27))
    patch(path, path.read_bytes().index(LISTED) + SIZE, struct.pack("<I", 1000))
    assert outcome(read_all, path) is None


def test_a_member_shorter_than_declared_is_refused(tmp_path):
    path = write(tmp_path / "a.zip", zipfile.ZIP_DEFLATED, a=bytes(100))
    patch(path, path.read_bytes().index(LISTED) + SIZE, struct.pack("<I", 2**31 - 1))
    assert outcome(read_all, path) is None


def test_a_stored_size_that_the_file_does_not_have_is_not_allotted(tmp_path):
    path = write(tmp_path / "a.zip", a=bytes(100))
    entry = path.read_bytes().index(LISTED)
    patch(path, entry + COMPRESSED_SIZE, struct.pack("<I", 2**31 - 1))
    with pytest.raises(UserError, match=r"'a' declares 100 bytes and 2147483647 in the file"):
        Archive(path)
    patch(path, entry + SIZE, struct.pack("<I", 2**31 - 1))
    with pytest.raises(UserError, match=r"declares 2147483647 bytes of content"):
        Archive(path)


def test_entries_swallowed_by_a_damaged_one_are_missed(tmp_path):
    path = write(tmp_path / "a.zip", first=b"1", second=b"2")
    content = path.read_bytes()
    first = content.index(LISTED)
    second = content.index(LISTED, first + 4)
    comment = struct.pack("<H", content.index(END) - second)  # the second entry as a comment
    patch(path, first + COMMENT_LENGTH, comment)
    with pytest.raises(UserError, match=r"it lists 1 members, but declares 2"):
        Archive(path)


def test_a_wrong_checksum_is_refused(tmp_path):
    path = write(tmp_path / "a.zip", a=b"weights")
    patch(path, path.read_bytes().index(b"weights"), b"W")
    with pytest.raises(UserError, match=r"damaged or truncated .*CRC"):
        read_all(path)
