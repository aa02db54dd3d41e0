"""Safe reading of zip archives, the container of `.npz` and torch files."""

import os
import struct
import zipfile
from pathlib import Path

from vit_jax.errors import UserError
from vit_jax.weights.io.safety import refuse_damage, refuse_duplicates, show

# numpy and torch write no others; lzma would allocate the declared size.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


# Record at the end of an archive; numpy and torch write no comment after it.
_END = struct.Struct("<4s6xH10x")


class Archive:
    """Open archive.

    sizes: bytes of each member by its name; no read returns more.

    Raises:
      UserError: the archive is damaged, has a name twice, or declares more bytes than it has.
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
        """Return the bytes of a member; UserError if its checksum is wrong."""
        size = self.sizes[name]
        with refuse_damage(self.path), self._file.open(self._members[name]) as member:
            # Not read(), which decompresses up to two gigabytes before cutting to this size.
            content = member.read(size)
            if len(content) != size:
                raise ValueError(f"{show(name)} has {len(content)} bytes, but declares {size}")
            return content


def _check_end(path: Path, found: int) -> None:
    """Compare the number of members with the end record, because zipfile does not.

    An entry with a damaged length hides the following ones.
    """
    with path.open("rb") as file:
        file.seek(-_END.size, os.SEEK_END)
        signature, count = _END.unpack(file.read())
    if signature != b"PK\x05\x06":
        raise ValueError("there are bytes after the end of the archive")
    if count not in (found, 0xFFFF):  # 0xFFFF: more than fit in this field
        raise ValueError(f"it lists {found} members, but declares {count}")


def _check_members(path: Path, members: list[zipfile.ZipInfo]) -> None:
    for member in members:
        if member.compress_type not in _METHODS:
            raise UserError(
                f"{path}: its member {show(member.filename)} is compressed by method"
                f" {member.compress_type}, which numpy and torch never write; save the file again"
            )
        stored = member.compress_type == zipfile.ZIP_STORED
        if stored and member.compress_size != member.file_size:
            raise UserError(
                f"{path}: its member {show(member.filename)} declares {member.file_size} bytes and"
                f" {member.compress_size} in the file; the file is damaged: download it again"
            )
    held, declared = path.stat().st_size, sum(member.compress_size for member in members)
    if declared > held:
        raise UserError(
            f"{path} has {held} bytes, but declares {declared} bytes of content; the file is"
            " damaged or hostile"
        )
