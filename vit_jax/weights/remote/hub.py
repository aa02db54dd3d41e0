"""Locations of weights: a local path, `https://...`, or `hf://owner/name`.

    fetch("downloads/vit.npz")                                  # unchanged
    fetch("hf://google/vit-base-patch16-224")                   # its weights
    fetch("hf://owner/name@revision/file.safetensors")          # this file of the repository
    fetch("https://host/ViT-B_16.npz#sha256=0123...")           # verified by the checksum

Downloads are cached. `https` downloads are in the cache folder under the host and path of their
address; without a network, a file put there manually is used. `hf` downloads are in the cache of
huggingface_hub, which transformers and timm share; files put manually under `hf/owner/name` of the
cache folder take precedence.
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

# Preference among several types of weights files in a repository.
_PREFERRED = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "open_clip_model.safetensors",
)
_BESIDE = ("config.json", "open_clip_config.json")  # what the weights do not tell


def fetch(name: str | os.PathLike) -> Path:
    """Return the local path of weights by name; download them if necessary.

    Args:
      name: a path, `https://...[#sha256=HEX]`, or `hf://owner/name[@revision][/file]`. Plain
        `http://` is accepted only from this machine, or with a checksum.

    Returns:
      The path of the file, or of the index of its shards, with its `config.json`, if any, beside
      it.

    Raises:
      UserError: there is no such file, the checksum is wrong, or there is no network; the message
        has the path at which the file can be put manually.
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
        f"{text}: {scheme}:// is not supported; use a path, https:// or hf://"
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
    """Parts of `hf://owner/name[@revision][/file]`; file is "" if none is given."""

    owner: str
    repository: str
    revision: str | None
    file: str

    @classmethod
    def parse(cls, text: str) -> "HubName":
        """Parse a name; raise UserError if the text has another form."""
        word = r"[A-Za-z0-9][\w.-]*"
        match = re.fullmatch(rf"hf://({word})/({word})(?:@([\w.-]+))?(?:/(.+))?", text, re.ASCII)
        parts = (match[4] or "").split("/") if match else []
        if not match or any(part in (".", "..") or "\\" in part for part in parts):
            raise UserError(
                f"{text} is not a name on the Hugging Face hub; use"
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
    # Imported here: it takes a second, and local files do not need it.
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
        raise UserError(f"{name} is not a name on the hub: {_first_line(error)}") from error
    except errors.RevisionNotFoundError as error:
        raise UserError(f"{name}: the repository has no revision {name.revision!r}") from error
    except errors.GatedRepoError as error:
        raise UserError(
            f"{name} requires that its conditions are accepted on its page; accept them"
            " and log in (hf auth login)"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UserError(
            f"{name}: the hub has no such repository; check the name, or log in (hf auth login)"
            " if it is private"
        ) from error
    except (errors.HTTPError, OSError) as error:  # any network error, and offline mode
        try:
            kept = snapshot(local_files_only=True, allow_patterns=[*_BESIDE])
        except errors.LocalEntryNotFoundError:
            kept = None
        if kept and (found := _find(name, Path(kept))):
            return found
        wanted = name.file or "model.safetensors and config.json"
        raise UserError(
            f"{name} cannot be downloaded ({_first_line(error)}); without a network, put {wanted}"
            f" of that repository into {by_hand}, and the same command works"
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
                f"{name}: the repository has no weights file at its top level; it has"
                f" {', '.join(there[:20]) or 'nothing'}"
            )
        chosen = preferred[0]
        if chosen not in _PREFERRED and len(candidates) > 1:
            raise UserError(
                f"{name}: the repository has several weights files: {', '.join(candidates)}; use"
                f" one, as in {name}/{chosen}"
            )
    elif name.file not in there:
        raise UserError(f"{name}: the repository has no such file" + nearest(name.file, there))
    prefix = f"{folder}/" if folder else ""
    files = [prefix + chosen]
    files += [prefix + file for file in _BESIDE if prefix + file in there]
    if chosen.endswith(".index.json"):
        shard = re.compile(re.escape(prefix + chosen.split(".", 1)[0]) + r"-\d+-of-\d+\.\w+")
        files += [file for file in beside if shard.fullmatch(file)]
    return files


def _find(name: HubName, folder: Path) -> Path | None:
    """Return the weights file in a local copy of a repository; None if it is missing."""
    there = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    if name.file in there if name.file else choose_weights([f for f in there if "/" not in f]):
        return folder / _choose_files(name, there)[0]
    return None


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0]
