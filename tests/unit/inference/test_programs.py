"""Programs that are kept on disk."""

import jax
import numpy as np
import pytest

import vit_jax
from vit_jax.inference import programs


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where programs are kept during a test."""
    monkeypatch.setattr(programs, "_folder", tmp_path)
    return tmp_path


def double(x):
    return 2 * x


def never():
    raise AssertionError("traced again")


ONES = (np.ones(3, np.float32),)


def test_a_program_is_traced_once(folder):
    assert programs.program({"name": "a"}, lambda: double, ONES)(*ONES).tolist() == [2, 2, 2]
    assert programs.program({"name": "a"}, never, ONES)(*ONES).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("description", "arguments"),
    [({"name": "b"}, ONES), ({"name": "a"}, (np.ones(4, np.float32),)), ({"name": "a"}, ([1.0],))],
)
def test_another_program_is_another_one(folder, description, arguments):
    programs.program({"name": "a"}, lambda: double, ONES)
    with pytest.raises(AssertionError, match="traced again"):
        programs.program(description, never, jax.tree.map(np.asarray, arguments))


def test_a_program_is_stored_although_jax_has_cached_it(folder, tmp_path, monkeypatch):
    """As on a machine where the cache of JAX is warm: what comes from it cannot be serialised."""
    for name in ("first", "second"):
        monkeypatch.setattr(programs, "_folder", tmp_path / name)
        (tmp_path / name).mkdir()
        jax.clear_caches()  # those in memory
        programs.program({"name": "a"}, lambda: double, ONES)
        assert list((tmp_path / name).iterdir())
    assert jax.config.jax_enable_compilation_cache


def test_all_code_that_programs_depend_on_is_there():
    for pattern in programs._CODE:
        assert list(programs._PACKAGE.glob(pattern)), pattern


def test_an_edit_of_the_code_makes_a_new_program(folder, monkeypatch):
    programs.program({"name": "a"}, lambda: double, ONES)
    monkeypatch.setattr(programs, "_code_digest", lambda: "edited")
    with pytest.raises(AssertionError, match="traced again"):
        programs.program({"name": "a"}, never, ONES)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:40] + b"\0" + b[41:]])
def test_a_damaged_file_is_traced_again(folder, damage):
    programs.program({"name": "a"}, lambda: double, ONES)
    [file] = folder.iterdir()
    file.write_bytes(damage(file.read_bytes()))
    assert programs.program({"name": "a"}, lambda: double, ONES)(*ONES).tolist() == [2, 2, 2]


def test_what_others_can_write_is_not_run(folder):
    programs.program({"name": "a"}, lambda: double, ONES)
    [file] = folder.iterdir()
    file.chmod(0o666)
    with pytest.raises(AssertionError, match="traced again"):
        programs.program({"name": "a"}, never, ONES)


def test_nothing_is_kept_where_that_is_asked_for(folder, monkeypatch):
    monkeypatch.setattr(programs, "_folder", None)
    monkeypatch.setenv("VIT_JAX_CACHE", "none")
    programs.keep_programs()
    assert programs._folder is None
    monkeypatch.setenv("VIT_JAX_CACHE", str(folder / "new"))
    programs.keep_programs()
    assert programs._folder == folder / "new" / "programs"


def test_what_may_not_be_kept_is_not(folder):
    programs.program({"name": "a"}, lambda: double, ONES, may_keep=lambda: False)
    assert not list(folder.iterdir())


def test_a_kept_program_of_a_model_gives_its_logits(folder, finished_run):
    fresh = vit_jax.load(finished_run.path)
    shape = (2, *fresh.preprocessing.size, fresh.preprocessing.channels)
    images = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    expected = fresh._compiled(fresh.variables, images)
    for _ in range(2):
        kept = vit_jax.load(finished_run.path)
        np.testing.assert_allclose(kept.logits(images), expected, atol=1e-6)
    # It was not even made, unless JAX had the program from a cache of its own.
    assert "model" not in vars(kept) or not list(folder.iterdir())
