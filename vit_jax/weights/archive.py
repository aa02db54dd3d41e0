"""A zip archive from elsewhere, as `.npz` and torch files are: only what is checked is read."""

import zipfile
from pathlib import Path

from vit_jax.errors import UserError
from vit_jax.weights.limits import refuse_damage, refuse_duplicates, show

# numpy and torch write no others; lzma would allot what the file declares.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Archive:
    """An open archive.

    sizes: bytes of each member by its name; no reading gives more.

    Raises:
      UserError: the archive is damaged, holds a name twice, or a compression that is not used.
    """

    def __init__(self, path: Path):
        self.path = path
        with refuse_damage(path):
            self._file = zipfile.ZipFile(path)
        self._members = {member.filename: member for member in self._file.infolist()}
        self.sizes = {name: member.file_size for name, member in self._members.items()}
        refuse_duplicates(path, [member.filename for member in self._file.infolist()])
        for name, member in self._members.items():
            if member.compress_type not in _METHODS:
                raise UserError(
                    f"{path}: its member {show(name)} is compressed by method"
                    f" {member.compress_type}; numpy and torch do not write that"
                )

    def __enter__(self) -> "Archive":
        return self

    def __exit__(self, *_) -> None:
        self._file.close()

    def is_compressed(self, name: str) -> bool:
        """Whether a member takes other space in the file than in memory."""
        return self._members[name].compress_type != zipfile.ZIP_STORED

    def read(self, name: str) -> bytes:
        """The bytes of a member; UserError where its checksum is wrong."""
        with refuse_damage(self.path):
            return self._file.read(self._members[name])
