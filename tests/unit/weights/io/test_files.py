"""Weights files of every kind by one call: what kind, which file, shards, and clear refusals."""

import gzip
import json
import shutil
import zipfile

import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.hostile import equal, float_tensor, write_torch_zip
from vit_jax.errors import UserError
from vit_jax.weights.io.files import (
    choose_weights,
    read_config,
    read_tensors,
    weights_file,
    write_safetensors,
)

GOLDEN = GOLDENS / "weights"
TENSORS = {"cls_token": np.float32([[1, 2]]), "head.bias": np.float16([3])}


def write_npz(path):
    np.savez(path.with_suffix(".npz"), **TENSORS)
    path.with_suffix(".npz").rename(path)


def write_torch(path):
    tree = {"cls_token": float_tensor("0", 2, 0, (1, 2), (2, 1))}
    write_torch_zip(path, tree, {"0": TENSORS["cls_token"].tobytes()})


WRITERS = {
    "npz": write_npz,
    "safetensors": lambda path: write_safetensors(path, TENSORS, {}),
    "torch": write_torch,
    "legacy": lambda path: shutil.copy(GOLDEN / "legacy.pth", path),
}


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("name", ["vit.npz", "model.safetensors", "vit.pth", "checkpoint.bin", "x"])
def test_the_kind_is_told_by_the_content_and_not_by_the_name(tmp_path, kind, name):
    path = tmp_path / name
    WRITERS[kind](path)
    tensors = read_tensors(path)
    if kind == "legacy":
        np.testing.assert_array_equal(tensors["second_row"], np.float32([4, 5, 6, 7]))
    else:
        np.testing.assert_array_equal(tensors["cls_token"], TENSORS["cls_token"], strict=True)


@pytest.mark.parametrize("length", [0x280, 0x480, 0x4B50, 0x23C, 0x7B, 0x1F8, 0x8B1F, 0x4E93])
def test_safetensors_whose_length_looks_like_another_kind_are_still_that(tmp_path, length):
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    content = length.to_bytes(8, "little") + header.ljust(length) + np.float32(7).tobytes()
    (tmp_path / "a").write_bytes(content)
    assert equal(read_tensors(tmp_path / "a"), {"a": np.float32([7])})
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "a"}}))
    assert equal(read_tensors(index), {"a": np.float32([7])})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:12", r"Git LFS pointer.*git lfs"),
        (b"<!DOCTYPE html><html>404</html>", r"is a web page"),
        (b"\n  <?xml version='1.0'?><Error/>", r"is a web page"),
        (b"\x93NUMPY\x01\x00v\x00", r"a single array"),
        (b"\x89HDF\r\n\x1a\n", r"HDF5"),
        (gzip.compress(b"x", mtime=0), r"compressed with gzip"),
        (b"\x00" * 257 + b"ustar\x00" + b"\x00" * 300, r"is a tar archive"),
        (b"\x82\xa6params", r"not a supported weights file .*begins with b'\\x82"),
        (b"PK\x05\x06" + bytes(18), r"is a zip archive, but neither"),
        (b"PK\x03\x04" + bytes(100), r"damaged or truncated"),
        (b"\x80\x04\x95", r"damaged or truncated"),
        (b"\x80\x04K\x01.", r"is a pickle, but not one of torch"),
        (b'{"model_type": "vit"}', r"not an index of shards"),
        (b"{", r"damaged or truncated"),
    ],
)
def test_what_is_no_weights_file_is_called_what_it_is(tmp_path, content, message):
    path = tmp_path / "vit.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as refused:
        read_tensors(path)
    assert str(path) in str(refused.value)


def test_another_zip_is_named_by_what_it_holds(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(UserError, match=r"neither .npz nor of torch; it contains \['readme.txt'\]"):
        read_tensors(tmp_path / "a.zip")


def test_a_part_is_taken_of_any_kind(tmp_path):
    np.savez(
        tmp_path / "two_towers.npz", **{"params/img/cls": np.ones(1), "params/txt/cls": np.ones(2)}
    )
    assert equal(read_tensors(tmp_path / "two_towers.npz", "params/img"), {"cls": np.ones(1)})


def test_a_missing_path_and_what_is_no_file_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"there is no weights file .*nothing.npz"):
        read_tensors(tmp_path / "nothing.npz")
    with pytest.raises(UserError, match=r"there is no weights file in .*\.safetensors"):
        read_tensors(tmp_path)
    with pytest.raises(UserError, match=r"neither a file nor a folder"):
        read_tensors("/dev/null")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["model.safetensors", "config.json", "README.md"], ["model.safetensors"]),
        (
            ["pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt"],
            ["pytorch_model.bin"],
        ),
        (["a.npz", ".hidden.npz", "rng_state_0.pth"], ["a.npz"]),
        (["checkpoint.pth.tar"], ["checkpoint.pth.tar"]),
        (
            [
                "model.safetensors.index.json",
                "model-00001-of-00002.safetensors",
                "model-00002-of-00002.safetensors",
            ],
            ["model.safetensors.index.json"],
        ),
        (["model.safetensors", "pytorch_model.bin"], ["model.safetensors", "pytorch_model.bin"]),
        (["tf_model.h5", "flax_model.msgpack", "model.onnx"], []),
    ],
)
def test_of_a_folder_only_weights_count_and_of_shards_their_index(names, chosen):
    assert choose_weights(names) == chosen


def test_a_folder_with_one_weights_file_stands_for_it(tmp_path):
    write_safetensors(tmp_path / "model.safetensors", TENSORS, {})
    (tmp_path / "config.json").write_text("{}")
    assert weights_file(tmp_path) == tmp_path / "model.safetensors"
    assert equal(read_tensors(tmp_path), TENSORS)


def test_several_weights_files_in_a_folder_are_listed(tmp_path):
    for name in ("model.safetensors", "pytorch_model.bin"):
        write_safetensors(tmp_path / name, TENSORS, {})
    with pytest.raises(
        UserError,
        match=r"several weights files: model.safetensors, pytorch_model.bin; use the path of one",
    ):
        read_tensors(tmp_path)


def test_a_run_of_ours_is_sent_to_load(tmp_path):
    (tmp_path / "model.json").write_text("{}")
    with pytest.raises(UserError, match=r"vit_jax.load"):
        read_tensors(tmp_path)


# Shards


def shard(folder, weight_map, **shards):
    for name, tensors in shards.items():
        write_safetensors(folder / f"{name}.safetensors", tensors, {})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 10}, "weight_map": weight_map}))
    return index


MAP = {"cls_token": "a.safetensors", "head.bias": "b.safetensors"}
SHARDS = {"a": {"cls_token": TENSORS["cls_token"]}, "b": {"head.bias": TENSORS["head.bias"]}}


def test_shards_of_an_index_are_one_set_of_tensors(tmp_path):
    index = shard(tmp_path, MAP, **SHARDS)
    assert equal(read_tensors(index), TENSORS)
    assert list(read_tensors(index)) == list(MAP)


def test_shards_of_torch_are_read_too(tmp_path):
    write_torch(tmp_path / "pytorch_model-00001-of-00001.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"cls_token": "pytorch_model-00001-of-00001.bin"}}))
    np.testing.assert_array_equal(read_tensors(tmp_path)["cls_token"], TENSORS["cls_token"])


@pytest.mark.parametrize(
    "name",
    [
        *("../a.safetensors", "/etc/passwd", "sub/a.safetensors", "..", ".", "", "a\\b", "C:a"),
        "a\0b",
    ],
)
def test_a_shard_out_of_the_folder_is_refused(tmp_path, name):
    (tmp_path / "model").mkdir()
    write_safetensors(tmp_path / "a.safetensors", TENSORS, {})
    index = shard(tmp_path / "model", {"cls_token": name})
    with pytest.raises(UserError, match=r"a shard must be a file in the same folder"):
        read_tensors(index)


def test_a_missing_shard_is_named(tmp_path):
    index = shard(tmp_path, MAP, a=SHARDS["a"])
    with pytest.raises(UserError, match=r"names the shard 'b.safetensors', which is missing"):
        read_tensors(index)


def test_a_tensor_missing_in_its_shard_is_named(tmp_path):
    index = shard(tmp_path, {**MAP, "norm.bias": "a.safetensors"}, **SHARDS)
    with pytest.raises(UserError, match=r"a.safetensors has no 'norm.bias', which .*index.json"):
        read_tensors(index)


def test_a_tensor_in_another_shard_than_the_index_says_is_named(tmp_path):
    index = shard(tmp_path, MAP, a=TENSORS, b=SHARDS["b"])
    with pytest.raises(UserError, match=r"a.safetensors has 'head.bias', which .* 'b.safetens"):
        read_tensors(index)


def test_an_index_as_its_own_shard_is_refused(tmp_path):
    index = shard(tmp_path, {"cls_token": "model.safetensors.index.json"})
    with pytest.raises(UserError, match=r"which is an index itself"):
        read_tensors(index)


@pytest.mark.parametrize(
    "text", ["[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {}}']
)
def test_an_index_without_a_map_is_refused(tmp_path, text):
    (tmp_path / "model.safetensors.index.json").write_text("{}" if text == "[]" else text)
    with pytest.raises(UserError, match=r"not an index of shards|has no tensors"):
        read_tensors(tmp_path)


# config.json


def test_the_configuration_beside_weights_is_read_from_file_or_folder(tmp_path):
    assert read_config(tmp_path) is None
    (tmp_path / "config.json").write_text('{"model_type": "vit", "num_attention_heads": 3}')
    expected = {"model_type": "vit", "num_attention_heads": 3}
    assert read_config(tmp_path) == expected
    assert read_config(tmp_path / "model.safetensors") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"not an object"),
        ("{", r"damaged or truncated"),
        ('{"a": 1, "a": 2}', r"'a' twice"),
        ('{"a":' * 100_000, r"damaged or truncated"),
        (" " * (16 * 2**20 + 1), r"config.json has 16777217 bytes"),
    ],
)
def test_a_configuration_that_is_none_is_one_sentence(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=message):
        read_config(tmp_path)
