"""A zip archive from elsewhere, as `.npz` and torch files are: only what is checked is read."""

import os
import struct
import zipfile
from pathlib import Path

from vit_jax.errors import UserError
from vit_jax.weights.io.safety import refuse_damage, refuse_duplicates, show

# numpy and torch write no others; lzma would allot what the file declares.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


# The record that ends an archive; numpy and torch write no comment behind it.
_END = struct.Struct("<4s6xH10x")


class Archive:
    """An open archive.

    sizes: bytes of each member by its name; no reading gives more.

    Raises:
      UserError: the archive is damaged, holds a name twice, or declares more than it holds.
    """

    def __init__(self, path: Path):
        self.path = path
        with refuse_damage(path):
            self._file = zipfile.ZipFile(path)
            members = self._file.infolist()
            _check_end(path, len(members))
        refuse_duplicates(path, [member.filename for member in members])
        _check_members(path, members)
        self._members = {member.filename: member for member in members}
        self.sizes = {member.filename: member.file_size for member in members}

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def is_compressed(self, name: str) -> bool:
        """Return whether a member's size in the file differs from that in memory."""
        return self._members[name].compress_type != zipfile.ZIP_STORED

    def read(self, name: str) -> bytes:
        """The bytes of a member; UserError where its checksum is wrong."""
        size = self.sizes[name]
        with refuse_damage(self.path), self._file.open(self._members[name]) as member:
            # Not read(): that unpacks up to two gigabytes, and cuts to the declared size after.
            content = member.read(size)
            if len(content) != size:
                raise ValueError(f"{show(name)} has {len(content)} bytes, {size} are declared")
            return content


def _check_end(path: Path, found: int) -> None:
    """An entry whose length is damaged swallows those behind it; zipfile does not count them."""
    with path.open("rb") as file:
        file.seek(-_END.size, os.SEEK_END)
        signature, count = _END.unpack(file.read())
    if signature != b"PK\x05\x06":
        raise ValueError("something stands behind the end of the archive")
    if count not in (found, 0xFFFF):  # 0xFFFF: more than fit in here
        raise ValueError(f"it lists {found} members, {count} are declared")


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    for member in members:
        if member.compress_type not in _METHODS:
            raise UserError(
                f"{path}: its member {show(member.filename)} is compressed by method"
                f" {member.compress_type}; numpy and torch do not write that"
            )
        stored = member.compress_type == zipfile.ZIP_STORED
        if stored and member.compress_size != member.file_size:
            raise UserError(
                f"{path}: its member {show(member.filename)} declares {member.file_size} bytes and"
                f" {member.compress_size} in the file; the file is damaged: fetch it again"
            )
    held, declared = path.stat().st_size, sum(member.compress_size for member in members)
    if declared > held:
        raise UserError(
            f"{path} has {held} bytes, but declares {declared} bytes of content; the file is"
            " damaged or hostile"
        )
