"""Where compiled programs are kept."""

import jax
import pytest

from vit_jax.training.compile_cache import use_compile_cache


@pytest.fixture
def used(monkeypatch):
    """Asks for a cache where the person has given none to JAX, and returns the one in use."""
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)

    def use(where, workdir):
        use_compile_cache(where, workdir)
        return jax.config.jax_compilation_cache_dir

    yield use
    jax.config.update("jax_compilation_cache_dir", before)


def test_runs_that_stand_side_by_side_share_one(used, tmp_path):
    assert used("auto", tmp_path / "runs" / "a") == str(tmp_path / "runs" / ".jax_cache")
    assert (tmp_path / "runs" / ".jax_cache").is_dir()


def test_a_folder_can_be_named_and_none_too(used, tmp_path):
    assert used("none", tmp_path / "run") is None
    assert used(str(tmp_path / "mine"), tmp_path / "run") == str(tmp_path / "mine")


def test_the_folder_that_was_given_to_jax_stays(used, tmp_path):
    jax.config.update("jax_compilation_cache_dir", "theirs")
    assert used("auto", tmp_path / "run") == "theirs"
    assert not (tmp_path / ".jax_cache").exists()


def test_a_folder_that_cannot_be_written_is_a_warning(used, tmp_path, capsys):
    (tmp_path / ".jax_cache").touch()
    assert used("auto", tmp_path / "run") is None
    assert ".jax_cache cannot be written" in capsys.readouterr().err
