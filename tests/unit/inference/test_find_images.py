"""Images by the names that a person gives."""

import io
import os

import pytest

from vit_jax.errors import DecodeError, UserError
from vit_jax.inference.find_images import find_images, read_lists


def make(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def test_a_folder_is_its_images_by_name_and_then_those_of_its_folders(tmp_path):
    make(tmp_path, "b.png", "a.JPG", "z/c.webp", "m/n/d.tif", "notes.txt", ".x.png", ".git/e.png")
    found = [os.path.relpath(path, tmp_path) for path in find_images([tmp_path])]
    assert found == ["a.JPG", "b.png", "m/n/d.tif", "z/c.webp"]


def test_a_file_is_taken_whatever_it_is_called_and_whether_or_not_it_is_there(tmp_path):
    make(tmp_path, "scan.dat")
    names = [str(tmp_path / "scan.dat"), str(tmp_path / "gone.png")]
    assert list(find_images(names)) == names


@pytest.mark.parametrize("inside", [[], ["notes.txt", "deeper/notes.txt"]])
def test_a_folder_without_images_is_named(tmp_path, inside):
    make(tmp_path, *inside)
    [error] = find_images([tmp_path])
    assert isinstance(error, DecodeError) and error.name == str(tmp_path)
    assert "folder without images" in str(error)


def test_links_that_lead_in_a_circle_end(tmp_path):
    make(tmp_path, "a/1.png")
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert len(list(find_images([tmp_path]))) == 1


def test_a_folder_is_listed_when_its_turn_comes(tmp_path):
    make(tmp_path, "a/1.png")
    found = find_images([tmp_path / "a", tmp_path / "b"])
    assert next(found).endswith("1.png")
    make(tmp_path, "b/2.png")  # made only now
    assert next(found).endswith("2.png")


def test_a_list_has_one_path_a_line(tmp_path, monkeypatch):
    lines = "\ufeffa b.png\r\n\n #c.png\né.png".encode() + b"\n\xff.png\n"
    (tmp_path / "list.txt").write_bytes(lines)
    expected = ["a b.png", " #c.png", "é.png", os.fsdecode(b"\xff.png")]
    assert list(read_lists(["x.png", f"@{tmp_path}/list.txt"])) == ["x.png", *expected]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines)))
    assert list(read_lists(["-"])) == expected


def test_a_file_whose_name_begins_like_a_list_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path, "@me.png")
    assert list(read_lists(["@me.png"])) == ["@me.png"]


def test_a_list_that_is_not_there_is_told_before_the_first_name(tmp_path):
    with pytest.raises(UserError, match="the list of images .*none.txt cannot be read: No such"):
        read_lists(["a.png", f"@{tmp_path}/none.txt"])
