"""TensorBoard's event file."""

import resource

import pytest

from tests.unit.training.logging.test_reporter import tensorboard_scalars
from vit_jax.training.logging import tensorboard
from vit_jax.training.logging.tensorboard import TensorBoardFile


def test_values_can_be_seen_before_the_file_is_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorboard, "FLUSH_SECONDS", 0.0)
    file = TensorBoardFile(tmp_path / "tensorboard")
    file.add_scalar("train/loss", 0.5, 3)
    assert tensorboard_scalars(tmp_path / "tensorboard") == [("train/loss", 3, 0.5)]
    file.close()


def test_a_full_disk_is_an_error_and_not_a_dead_thread(tmp_path):
    """A limit on the size of files stops the writer as a full disk does."""
    file = TensorBoardFile(tmp_path)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, usual[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            for step in range(1_000):
                file.add_scalar("train/loss", 0.5, step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    file.close()
