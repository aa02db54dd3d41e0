"""Locations of weights: a local path, `https://...`, or `hf://owner/name`.

    fetch("downloads/vit.npz")                                  # as it is
    fetch("hf://google/vit-base-patch16-224")                   # its weights
    fetch("hf://owner/name@revision/file.safetensors")          # this file of them
    fetch("https://host/ViT-B_16.npz#sha256=0123...")           # checked against the checksum

What came once is not fetched again. `https` downloads lie in the cache folder under the host and
path of their address; without a network, a file put there by hand is taken. Those of `hf` lie in
the cache of huggingface_hub, which transformers and timm share; what is put by hand under
`hf/owner/name` of the cache folder goes before it.
"""

import functools
import glob
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from vit_jax.errors import UserError, nearest
from vit_jax.weights.io.files import choose_weights
from vit_jax.weights.remote.download import download

# Of several weights files in a repository, the first kind that is there.
_PREFERRED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


def fetch(name: str | os.PathLike) -> Path:
    """The local path of weights by name, downloaded where they are not yet here.

    Args:
      name: a path, `https://...[#sha256=HEX]`, or `hf://owner/name[@revision][/file]`. Plain
        `http://` is taken from this machine only, or with a checksum.

    Returns:
      The path of the file, or of the index of its shards. A `config.json` that belongs to it is
      beside it.

    Raises:
      UserError: there is no such thing, the checksum is wrong, or no network; the sentence says
        which file to put where so that the same call works.
    """
    text = os.fspath(name)
    scheme, colon, _ = text.partition("://")
    if not colon:
        return Path(text).expanduser()
    if scheme == "hf":
        return _fetch_from_hub(HubName.parse(text))
    if scheme in ("https", "http"):
        return download(text, cache_folder() / "https")
    raise UserError(
        f"{text}: weights come from a path, https:// or hf://, not from {scheme}://"
        + nearest(scheme, ("https", "hf"))
    )


def cache_folder() -> Path:
    """Return the download cache: `VIT_JAX_CACHE`, or a folder in the platform's cache folder."""
    if folder := os.environ.get("VIT_JAX_CACHE"):
        return Path(folder).expanduser()
    if sys.platform == "win32":
        place = Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local"))
    elif sys.platform == "darwin":
        place = Path("~/Library/Caches")
    else:
        place = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return place.expanduser() / "vit_jax"


@dataclass(frozen=True)
class HubName:
    """`hf://owner/name[@revision][/file]` in its parts; file is "" where none is named."""

    owner: str
    repository: str
    revision: str | None
    file: str

    @classmethod
    def parse(cls, text: str) -> "HubName":
        """Raise UserError where the text has another form."""
        word = r"[A-Za-z0-9][\w.-]*"
        match = re.fullmatch(rf"hf://({word})/({word})(?:@([\w.-]+))?(?:/(.+))?", text, re.ASCII)
        parts = (match[4] or "").split("/") if match else []
        if not match or any(part in (".", "..") or "\\" in part for part in parts):
            raise UserError(
                f"{text} is no name on the Hugging Face hub; it must be"
                " hf://owner/name, hf://owner/name@revision or hf://owner/name/file"
            )
        return cls(match[1], match[2], match[3], match[4] or "")

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.owner}/{self.repository}{revision}" + (self.file and f"/{self.file}")


def _fetch_from_hub(name: HubName) -> Path:
    revision = f"@{name.revision}" if name.revision else ""
    by_hand = cache_folder() / "hf" / name.owner / (name.repository + revision)
    if found := _find(name, by_hand):
        return found
    # Imported here: it takes a second, and who reads local files does not need it.
    from huggingface_hub import HfApi, errors, snapshot_download

    repository = f"{name.owner}/{name.repository}"
    endpoint = os.environ.get("HF_ENDPOINT") or None
    snapshot = functools.partial(
        snapshot_download, repository, revision=name.revision, endpoint=endpoint
    )
    try:
        info = HfApi(endpoint=endpoint).model_info(repository, revision=name.revision)
        files = _choose_files(name, [sibling.rfilename for sibling in info.siblings or []])
        folder = snapshot(allow_patterns=[glob.escape(file) for file in files])
        return Path(folder) / files[0]
    except errors.HFValidationError as error:
        raise UserError(f"{name} is no name on the hub: {_first_line(error)}") from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{name}: the repository has no revision {name.revision!r}") from error
    except errors.GatedRepoError as error:
        raise UserError(
            f"{name} is given only to those who accepted its conditions on its page; accept them"
            " and log in (hf auth login)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{name}: the hub shows no such repository; check the name, or log in (hf auth login)"
            " where it is private"
        ) from error
    except (errors.HTTPError, OSError) as error:  # whatever a network does, and offline mode
        try:
            kept = snapshot(local_files_only=True, allow_patterns=["config.json"])
        except errors.LocalEntryNotFoundError:
            kept = None
        if kept and (found := _find(name, Path(kept))):
            return found
        wanted = name.file or "model.safetensors and config.json"
        raise UserError(
            f"{name} cannot be fetched ({_first_line(error)}); without a network, put {wanted} of"
            f" that repository into {by_hand}, and the same command works"
        ) from error


def _choose_files(name: HubName, there: list[str]) -> list[str]:
    """Select the files of one set of weights in a repository; the file to open comes first."""
    folder, _, chosen = name.file.rpartition("/")
    beside = [file for file in there if file.rpartition("/")[0] == folder]
    if not name.file:
        candidates = choose_weights(beside)
        preferred = [file for file in _PREFERRED if file in candidates] or candidates
        if not preferred:
            raise UserError(
                f"{name}: the repository has no weights file at its top; it holds"
                f" {', '.join(there[:20]) or 'nothing'}"
            )
        chosen = preferred[0]
        if chosen not in _PREFERRED and len(candidates) > 1:
            raise UserError(
                f"{name}: the repository has several weights files: {', '.join(candidates)}; name"
                f" one, as in {name}/{chosen}"
            )
    elif name.file not in there:
        raise UserError(f"{name}: the repository has no such file" + nearest(name.file, there))
    prefix = f"{folder}/" if folder else ""
    files = [prefix + chosen]
    if prefix + "config.json" in there:
        files.append(prefix + "config.json")
    if chosen.endswith(".index.json"):
        shard = re.compile(re.escape(prefix + chosen.split(".", 1)[0]) + r"-\d+-of-\d+\.\w+")
        files += [file for file in beside if shard.fullmatch(file)]
    return files


def _find(name: HubName, folder: Path) -> Path | None:
    """The weights file in a local copy of a repository; None where it is not there."""
    there = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    if name.file in there if name.file else choose_weights([f for f in there if "/" not in f]):
        return folder / _choose_files(name, there)[0]
    return None


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
