"""The samples in a tar file: their parts and places, and files that are damaged."""

import gzip
import os
import tarfile

import numpy as np
import pytest

from tests.support.shards import png, write_shard
from vit_jax.data.sources.webdataset.shard import read_shard
from vit_jax.errors import UserError

MEMBERS = {
    "a/0.png": png(10),
    "a/0.txt": " a first one\n",
    "a/0.json": '{"caption": "not this"}',
    "a/1.JSON": '{"captions": ["two", "second"], "width": 4}',
    "a/1.PNG": png(20),
    "a/1.seg.png": png(1),
    "b.1/2.caption": "three",
    "b.1/2.png": png(30),
    "b.1/2.cls": "7\n",
    "3.txt": "no image",
    "__meta__.txt": "of the library",
    ".hidden": "",
}


def test_a_sample_is_all_members_of_one_key(tmp_path):
    path = write_shard(tmp_path / "x.tar", MEMBERS)
    found = read_shard(str(path))
    assert [(s.name, s.captions, s.label) for s in found.samples] == [
        ("a/0.png", ("a first one",), None),
        ("a/1.PNG", ("two", "second"), None),
        ("b.1/2.png", ("three",), "7"),
    ]
    assert found.imageless == ("3",) and found.notes == ()
    content = path.read_bytes()
    for sample in found.samples:
        assert content[sample.offset : sample.offset + sample.size] == MEMBERS[sample.name]


def test_names_are_only_names(tmp_path):
    names = ["../../up.png", "/etc/root.png", "n" * 300 + ".png", "é\udcff.png"]
    shard = write_shard(tmp_path / "x.tar", dict.fromkeys(names, png(1)))
    assert [sample.name for sample in read_shard(str(shard)).samples] == names
    assert sorted(os.listdir(tmp_path)) == ["x.tar"]


def test_a_shard_that_was_written_again_is_read_again(tmp_path):
    path = write_shard(tmp_path / "x.tar", {"0.png": png(1)})
    before = read_shard(str(path))
    assert read_shard(str(path)) is before
    write_shard(path, {"0.png": png(1), "1.png": png(2), "1.txt": "t"})
    os.utime(path, ns=(1, 1))
    assert len(read_shard(str(path)).samples) == 2


def changed(content, start, new):
    return content[:start] + new + content[start + len(new) :]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda c: c[:700], "is (damaged or )?cut off"),
        (lambda c: c[:1300], "is cut off: at byte 1,024 a member begins"),
        (lambda c: changed(c, 1024, b"\xff" * 100), "is damaged: at byte 1,024 there is neither"),
        (lambda c: changed(c, 0, b"\xff" * 100), "is damaged or cut off .*copy or download it"),
        (lambda c: b"", "is empty; copy or download it again"),
        (gzip.compress, r"is compressed \(gzip\); unpack it"),
    ],
)
def test_damaged_shards_are_one_sentence(tmp_path, change, said):
    path = write_shard(tmp_path / "x.tar", {"0.png": png(1), "1.png": png(2)})
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=rf"x\.tar {said}"):
        read_shard(str(path))


def test_a_shard_that_ends_behind_a_member_is_told(tmp_path):
    path = write_shard(tmp_path / "x.tar", {"0.png": png(1), "1.png": png(2)})
    path.write_bytes(path.read_bytes()[:1024])
    found = read_shard(str(path))
    assert len(found.samples) == 1 and "no mark of its end" in found.notes[0]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"0.png": png(1), "0.jpg": png(2)}, "has 1 samples with several images, '0'; keep one"),
        ({"0.png": png(1), "0.json": "{"}, r"0\.json is not JSON"),
        ({"0.png": png(1), "0.txt": "a" * 2**21}, r"0\.txt has 2,097,152 bytes, more than a text"),
    ],
)
def test_wrong_samples_are_one_sentence(tmp_path, members, said):
    with pytest.raises(UserError, match=said):
        read_shard(str(write_shard(tmp_path / "x.tar", members)))


def test_names_that_are_there_twice_are_counted(tmp_path):
    path = write_shard(tmp_path / "x.tar", {"0.png": png(1)})
    other = write_shard(tmp_path / "y.tar", {})
    with tarfile.open(path, "a") as tar:
        tar.add(other, "0.png")
    with pytest.raises(UserError, match=r"has 1 members whose name an earlier one has too, '0\.p"):
        read_shard(str(path))


def test_no_mutation_of_a_shard_ends_in_anything_but_a_sentence(tmp_path):
    content = write_shard(tmp_path / "x.tar", MEMBERS).read_bytes()[:8192]
    rng = np.random.default_rng(0)
    refused = 0
    for number in range(150):
        mutated = bytearray(content)
        start = int(rng.integers(len(mutated)))
        if number % 3 == 0:
            del mutated[start : start + int(rng.integers(1, 600))]
        else:
            mutated[start : start + 8] = rng.bytes(8)
        path = tmp_path / f"{number}.tar"
        path.write_bytes(mutated)
        try:
            read_shard(str(path))
        except UserError:
            refused += 1
    assert refused > 30
