"""Download of one file over https: resumable, verified, and renamed only when complete."""

import hashlib
import http.client
import os
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import filelock
import rich.console
import rich.progress

from vit_jax.errors import UserError, is_disk_full

CHUNK = 2**20
TIMEOUT_SECONDS = 30
# Seconds of the waits before each retry of a broken connection.
WAITS_SECONDS = (1, 4)


def download(address: str, folder: Path) -> Path:
    """Download the file of an address, unless it is in `folder` already.

    An interrupted download is stored as `NAME.part` and resumed from there, automatically and in
    the next call, as long as the server still has the same file.

    Args:
      address: `https://host/path[#sha256=HEX]`; `http` only from this machine or with a checksum.
      folder: the file is stored in it under host and path.

    Raises:
      UserError: no network, no such file, a wrong checksum, or no space.
    """
    try:
        url, checksum = _split(address)
        target = folder / _place(url)
    except UserError:
        raise
    except ValueError as error:  # such as a port that is not a number
        raise UserError(f"{address} is not the address of a file ({error})") from error
    if not target.is_file():
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(target.with_name(target.name + ".lock")):
                if not target.is_file():  # another process may have been faster
                    _fetch(Download(address, url, target), checksum)
        except OSError as error:
            remedy = "make room on the disk" if is_disk_full(error) else "set VIT_JAX_CACHE"
            raise UserError(
                f"{address} cannot be stored in {target.parent} ({error.strerror or error}); "
                f"{remedy}"
            ) from error
    elif checksum:
        _check_sum(address, target, checksum, f"delete {target} to download it again")
    return target


@dataclass(frozen=True)
class Download:
    """Download in progress: the address with and without the checksum, and the target path."""

    address: str
    url: str
    target: Path

    @property
    def draft(self) -> Path:
        """Number of bytes received so far."""
        return self.target.with_name(self.target.name + ".part")

    @property
    def note(self) -> Path:
        """Path of the file with the server's version of the draft, for resuming the same file."""
        return self.target.with_name(self.target.name + ".part.version")


def _split(address: str) -> tuple[str, str | None]:
    """Return the address without its checksum, and the checksum in lower case."""
    url, mark, fragment = address.partition("#")
    checksum = re.fullmatch(r"sha256=([0-9a-fA-F]{64})", fragment)
    if mark and not checksum:
        raise UserError(
            f"{address}: use a checksum after #, as in #sha256=0123..., 64 digits from 0 to f"
        )
    url = urllib.parse.quote(url, safe=":/?[]@!$&'()*+,;=%~")
    parts = urllib.parse.urlsplit(url)
    here = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme == "http" and not checksum and not here:
        raise UserError(f"{address}: http:// is not secure; use https://, or add #sha256=...")
    return url, checksum[1].lower() if checksum else None


def _place(url: str) -> Path:
    """Return host and path of an address as a relative path that every file system accepts."""
    parts = urllib.parse.urlsplit(url)
    names = [urllib.parse.unquote(name) for name in parts.path.split("/") if name]
    if not parts.hostname or not names or any(name in (".", "..") for name in names):
        raise ValueError("it must be like https://host/path/file.npz")
    if parts.query:  # two queries are two files
        names[-1] = hashlib.sha256(parts.query.encode()).hexdigest()[:8] + "-" + names[-1]
    host = parts.hostname if parts.port is None else f"{parts.hostname}:{parts.port}"
    return Path(*(urllib.parse.quote(name, safe=" ") for name in (host, *names)))


def _fetch(file: Download, checksum: str | None) -> None:
    for wait in (*WAITS_SECONDS, None):
        try:
            cause = _fetch_rest(file, has_checksum=checksum is not None)
            if cause is None:
                break
        except (ConnectionError, TimeoutError, http.client.HTTPException) as error:
            cause = f"the connection broke ({error or type(error).__name__})"
        if wait is None:
            raise UserError(f"{file.address}: {cause}; run the same command again to resume")
        time.sleep(wait)
    if checksum:
        try:
            _check_sum(file.address, file.draft, checksum, "the download was deleted, try again")
        except UserError:
            file.draft.unlink()
            file.note.unlink(missing_ok=True)
            raise
    os.replace(file.draft, file.target)
    file.note.unlink(missing_ok=True)


def _fetch_rest(file: Download, has_checksum: bool) -> str | None:
    """Download the rest of the draft; return why it is still incomplete, or None."""
    had = file.draft.stat().st_size if file.draft.exists() else 0
    version = file.note.read_text(encoding="utf-8") if file.note.exists() else ""
    request = urllib.request.Request(file.url, headers={"User-Agent": "vit_jax"})
    if had and (version or has_checksum):
        request.add_header("Range", f"bytes={had}-")
        if version:
            request.add_header("If-Range", version)
    try:
        response = _OPENER.open(request, timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        with error:
            return _explain_status(file, error.code, error.reason)
    except urllib.error.URLError as error:
        raise UserError(
            f"{file.address} cannot be reached ({error.reason}); without a network, put the file at"
            f" {file.target}, and the same command works"
        ) from error
    with response:
        length = response.headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        if response.status == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
            if not span or int(span[1]) != had:
                file.draft.unlink()
                return "the server resumed at another position than requested"
            total = int(span[2])
        else:  # the server sends the whole file: it has no ranges, or a newer version
            had = 0
            file.note.write_text(_version(response), encoding="utf-8")
        with file.draft.open("ab" if had else "wb") as draft:
            had = _copy(file, response, draft, had, total)
            draft.flush()
            os.fsync(draft.fileno())  # or a power failure could leave the new name without content
    if total is not None and had < total:
        return f"the connection broke after {had} of {total} bytes"
    if total is not None and had > total:
        file.draft.unlink()
        return f"the server sent {had} bytes of a file of {total}"
    return None


def _explain_status(file: Download, code: int, reason: str) -> str:
    """Return the reason for another try; raise UserError if a retry is pointless."""
    if code == 416:  # the draft is longer than the file, so it belongs to another version
        file.draft.unlink()
        return "the server has another version of the file now"
    if code == 429 or code >= 500:
        return f"the server answers {code} {reason}"
    raise UserError(
        f"{file.address}: the server answers {code} {reason}; check the address, or put the file at"
        f" {file.target}"
    )


def _version(response: http.client.HTTPResponse) -> str:
    """Return the value of If-Range: a strong ETag, or else the date."""
    tag = response.headers.get("ETag", "")
    return tag if tag.startswith('"') else response.headers.get("Last-Modified", "")


def _copy(
    file: Download,
    response: http.client.HTTPResponse,
    draft: BinaryIO,
    had: int,
    total: int | None,
) -> int:
    """Copy until the response ends; return the size of the draft."""
    console = rich.console.Console(stderr=True)
    if not console.is_terminal:
        console.print(f"downloading {file.url}", soft_wrap=True, highlight=False, markup=False)
    columns = (
        rich.progress.TextColumn("{task.description}", markup=False),
        rich.progress.BarColumn(),
        rich.progress.DownloadColumn(),
        rich.progress.TransferSpeedColumn(),
        rich.progress.TimeRemainingColumn(),
    )
    with rich.progress.Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task(file.target.name, completed=had, total=total)
        while chunk := _read(response):
            draft.write(chunk)
            had += len(chunk)
            bar.update(task, completed=had)
    return had


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read(CHUNK)
    except OSError as error:  # errors of the network, unlike those of the disk, allow a retry
        raise ConnectionError(str(error) or type(error).__name__) from error


def _check_sum(address: str, path: Path, expected: str, remedy: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != expected:
        raise UserError(f"{address}: the SHA-256 of the download is {found}; {remedy}")


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    """Handler that follows redirections, but never from https to an insecure protocol."""

    def redirect_request(self, req, fp, code, msg, headers, newurl):
        if req.type == "https" and not newurl.startswith("https:"):
            raise urllib.error.URLError(f"it redirects to {newurl}, which is not https")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_SecureRedirects)
