"""Orbax handler that writes the checksums of a state; importing the module registers it."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.future import CommitFutureAwaitingContractedSignals

from vit_jax.runs.checkpoint_files import Leaf, LocalPieces, local_pieces
from vit_jax.runs.checksums import sealed


class ChecksumHandler(ocp.AsyncCheckpointHandler):
    """Handler that writes the checksums of a state in the background, in parallel with Orbax."""

    async def async_save(self, directory, args: "ChecksumSave"):
        """Copy the state to the host, where Orbax needs it too, and start a background thread."""
        pieces = local_pieces(args.state)
        write = _write_checksums(directory, pieces)
        return [CommitFutureAwaitingContractedSignals(write, name="checksums")]

    def save(self, directory, args: "ChecksumSave"):
        """Write the checksums synchronously; not supported."""
        raise NotImplementedError  # a CheckpointManager saves asynchronously

    def restore(self, directory, args=None):
        """Read the checksums; not supported, use `read_checksums`."""
        raise NotImplementedError


@ocp.args.register_with_handler(ChecksumHandler, for_save=True, for_restore=True)
@dataclass
class ChecksumSave(ocp.args.CheckpointArgs):
    """State whose checksums are to be written."""

    state: Any


async def _write_checksums(directory, pieces: dict[str, LocalPieces]) -> None:
    found = {path: Leaf(of.shape, of.dtype, of.checksum())._asdict() for path, of in pieces.items()}
    content = sealed({"processes": jax.process_count(), "leaves": found})
    path = Path(directory) / f"process_{jax.process_index()}.json"
    path.write_text(json.dumps(content), encoding="utf-8")
