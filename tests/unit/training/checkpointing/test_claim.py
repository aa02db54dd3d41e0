"""Run folders that are moved aside, and those that cannot be."""

import errno
import os

import pytest

from vit_jax.errors import UserError
from vit_jax.runs.lock import make_folder
from vit_jax.training.checkpointing import claim
from vit_jax.training.checkpointing.claim import archive


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    return tmp_path / "run"


def test_an_empty_folder_takes_the_place_of_one_that_is_moved_aside(run, tmp_path):
    assert archive(run) == tmp_path / "run.1"
    assert (tmp_path / "run.1" / "config.json").exists() and not list(run.iterdir())


def test_the_folder_behind_a_link_is_moved_and_the_link_leads_to_the_new_one(run, tmp_path):
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "latest"
    link.symlink_to(run)
    assert archive(link) == tmp_path / "run.1"
    assert link.resolve() == run and link.is_dir() and not list(link.iterdir())
    assert os.listdir(tmp_path / "links") == ["latest"]


@pytest.mark.parametrize("there", ["folder", "file", "dangling link"])
def test_no_name_is_taken_twice(run, tmp_path, there):
    taken = tmp_path / "run.1"
    if there == "folder":
        taken.mkdir()
    elif there == "file":
        taken.write_text("mine")
    else:
        taken.symlink_to(tmp_path / "nowhere")
    before = os.path.islink(taken), os.path.isdir(taken)
    assert archive(run) == tmp_path / "run.2"
    assert (os.path.islink(taken), os.path.isdir(taken)) == before


@pytest.mark.parametrize("inside", [".", "figures"])
def test_the_current_folder_is_not_moved_from_under_its_user(run, monkeypatch, inside):
    (run / "figures").mkdir()
    monkeypatch.chdir(run / inside)
    with pytest.raises(UserError, match="current folder"):
        archive(run)
    assert (run / "config.json").exists()


def test_a_folder_that_cannot_be_renamed_is_one_sentence(run, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EBUSY, "Device or resource busy")  # the root of a mounted disk

    monkeypatch.setattr(claim.os, "rename", refuse)
    with pytest.raises(UserError, match="cannot be renamed .*resource busy.*another --workdir"):
        archive(run)


def test_a_link_that_leads_nowhere_gets_its_folder(tmp_path):
    link = tmp_path / "latest"
    link.symlink_to(tmp_path / "run")
    make_folder(link)
    assert (tmp_path / "run").is_dir()


def test_a_link_to_a_disk_that_is_not_there_is_one_sentence(tmp_path):
    link = tmp_path / "latest"
    link.symlink_to(tmp_path / "disk" / "run")
    with pytest.raises(UserError, match="is a link to .*no folder .*disk; restore it"):
        make_folder(link)
    assert not (tmp_path / "disk").exists()


def test_a_file_is_no_run_folder(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UserError, match="run is a file; move it away"):
        make_folder(tmp_path / "run")
