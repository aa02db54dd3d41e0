"""torch's files against values counted out in golden/make_torch_files.py, and hostile ones."""

import functools
import pickle
import time
import zipfile

import ml_dtypes
import numpy as np
import pytest

from tests.folders import GOLDENS
from tests.support.hostile import (
    MEGABYTE,
    Call,
    Name,
    Storage,
    broken_copies,
    equal,
    float_tensor,
    outcome,
    pickle_as_torch,
    write_torch_zip,
)
from vit_jax.errors import UserError
from vit_jax.weights.io.files import read_tensors
from vit_jax.weights.io.torch_file import LEGACY_MAGIC

GOLDEN = GOLDENS / "weights"

TABLE = np.arange(12, dtype=np.float32).reshape(3, 4)
WINDOWS = {
    "whole": TABLE,
    "transposed": TABLE.T,
    "second_row": TABLE[1],
    "every_other": TABLE[:, ::2],
    "expanded": np.float32([[0, 0], [1, 1], [2, 2]]),
    "channels_last": np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4),
    "scalar": np.float32(7).reshape(()),
    "empty": np.zeros((0, 3), np.float32),
    "parameter": np.float32([0, 1, 2]),
}


@pytest.mark.parametrize(("file", "part"), [("windows.pt", None), ("legacy.pth", None)])
def test_windows_on_storages_hold_what_torch_shows(file, part):
    tensors = read_tensors(GOLDEN / file, part)
    for name, expected in WINDOWS.items():
        assert tensors[name].dtype == expected.dtype
        np.testing.assert_array_equal(tensors[name], expected, strict=True, err_msg=name)


@pytest.mark.parametrize(
    "dtype",
    [
        *("float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "uint16"),
        *("complex64", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn),
    ],
)
def test_every_dtype_comes_back_as_itself(dtype):
    array = read_tensors(GOLDEN / "windows.pt")[np.dtype(dtype).name]
    np.testing.assert_array_equal(array, np.arange(4).astype(dtype), strict=True)


def test_truth_values_come_back_as_such():
    array = read_tensors(GOLDEN / "windows.pt")["bool"]
    np.testing.assert_array_equal(array, [False, True, True, True])
    assert array.dtype == bool


@pytest.mark.parametrize("part", ["model", "model_ema"])
def test_one_of_two_sets_of_weights_without_the_prefix_of_its_wrapper(part):
    tensors = read_tensors(GOLDEN / "training.pth", part)
    np.testing.assert_array_equal(tensors.pop("weight"), np.float32([[1, 2]]), strict=True)
    np.testing.assert_array_equal(tensors.pop("bias"), np.float32([3]), strict=True)
    assert not tensors


def test_two_sets_of_weights_are_listed_and_asked_for():
    with pytest.raises(UserError, match=r"'model' \(2 tensors\), 'model_ema' .*--part") as refused:
        read_tensors(GOLDEN / "training.pth")
    assert "optimizer" not in str(refused.value) and "loss" not in str(refused.value)


def test_a_parameter_with_attributes_is_its_tensor():
    tensors = read_tensors(GOLDEN / "subclass.pt")
    np.testing.assert_array_equal(tensors["weight"], np.float32([0, 1, 2]), strict=True)


def test_big_endian_storages_are_turned_round(tmp_path):
    half = Call(
        "torch._utils _rebuild_tensor_v3",
        (Storage("UntypedStorage", "1", 4), 0, (2,), (1,), False, {}, Name("torch bfloat16"), {}),
    )
    pair = Call(
        "torch._utils _rebuild_tensor_v2",
        (Storage("ComplexFloatStorage", "2", 1), 0, (1,), (1,), False, {}),
    )
    tree = {"a": float_tensor("0", 3, 1, (2,), (1,)), "half": half, "pair": pair}
    stored = {
        "0": np.array([1, 2, 3], ">f4").tobytes(),
        "1": np.array([1.5, -2], ml_dtypes.bfloat16).view(np.uint16).astype(">u2").tobytes(),
        "2": np.array([1 + 2j], ">c8").tobytes(),
    }
    path = write_torch_zip(tmp_path / "big.pt", tree, stored, byteorder=b"big")
    tensors = read_tensors(path)
    np.testing.assert_array_equal(tensors["a"], np.float32([2, 3]), strict=True)
    np.testing.assert_array_equal(tensors["half"], np.array([1.5, -2], ml_dtypes.bfloat16))
    np.testing.assert_array_equal(tensors["pair"], np.complex64([1 + 2j]), strict=True)
    with pytest.raises(UserError, match=r"byte order b'middle'"):
        read_tensors(write_torch_zip(path, tree, stored, byteorder=b"middle"))


@pytest.mark.parametrize(
    ("tensor", "numbers"),
    [
        (("0", 4, 1, (4,), (1,)), r"offset 1 ends at element 5 of a storage of 4"),
        (("0", 4, 0, (2, 2), (3, 1)), r"strides \(3, 1\).* element 5 of a storage of 4"),
        (("0", 4, -1, (2,), (1,)), r"offset -1"),
        (("0", 4, 0, (2,), (-1,)), r"strides \(-1,\)"),
        (("0", 4, 0, (2, 2), (1,)), r"strides \(1,\)"),
        (("0", 4, 0, (-2,), (1,)), r"shape \(-2,\)"),
        (("0", 4, 0, (2.0,), (1,)), r"shape \(2.0,\)"),
        (("0", 4, 0, (2**70,), (0,)), r"impossible shape"),
        (("0", 4, 0, (0, 2**70), (1, 1)), r"impossible shape"),
        (("0", 4, 0, (2**40,), (0,)), r"would take 4398046511104 bytes"),
        (("0", 4, 0, (1,) * 40, (1,) * 40), r"which no tensor can have"),
        (("0", 2**40, 0, (4,), (1,)), r"declares 4398046511104 bytes, but the file has 16"),
        (("0", 3, 0, (3,), (1,)), r"declares 12 bytes, but the file has 16"),
        (("9", 4, 0, (4,), (1,)), r"storage '9' of 'weight' is missing"),
        (("0", -4, 0, (4,), (1,)), r"declared in an unknown way"),
        (("0", "4", 0, (4,), (1,)), r"declared in an unknown way"),
        (("0", 4, "0", (4,), (1,)), r"declared in an unknown way"),
    ],
)
def test_windows_that_do_not_fit_are_refused_with_their_numbers(tmp_path, tensor, numbers):
    path = write_torch_zip(tmp_path / "a.pt", {"weight": float_tensor(*tensor)}, {"0": bytes(16)})
    with pytest.raises(UserError, match=numbers):
        read_tensors(path)
    assert outcome(read_tensors, path) is None


def test_one_storage_blown_up_by_many_tensors_is_refused(tmp_path):
    tree = {f"w{i}": float_tensor("0", 2**18, i, (2**17, 2), (1, 0)) for i in range(200)}
    path = write_torch_zip(tmp_path / "a.pt", tree, {"0": bytes(MEGABYTE)})
    with pytest.raises(UserError, match=r"its tensors would take 209715200 bytes"):
        read_tensors(path)


def test_of_one_storage_that_many_share_no_copy_is_made(tmp_path):
    tree = {f"w{i}": float_tensor("0", 2**18, 0, (2**18,), (1,)) for i in range(60)}
    path = write_torch_zip(tmp_path / "a.pt", tree, {"0": bytes(MEGABYTE)})
    tensors = list(read_tensors(path).values())
    assert all(np.shares_memory(tensors[0], tensor) for tensor in tensors)


def test_a_compressed_member_is_refused(tmp_path):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        tree = {"weight": float_tensor("0", 2**25, 0, (2**25,), (1,))}
        archive.writestr("archive/data.pkl", pickle_as_torch(tree))
        archive.writestr("archive/data/0", bytes(2**27))
    with pytest.raises(UserError, match=r"is compressed, which torch never does"):
        read_tensors(path)
    assert outcome(read_tensors, path) is None


def test_members_that_lie_over_each_other_are_refused(tmp_path):
    tree = {f"w{i}": float_tensor(str(i), 2**18, 0, (2**18,), (1,)) for i in range(3)}
    path = write_torch_zip(tmp_path / "a.pt", tree, {"0": bytes(MEGABYTE), "1": b"", "2": b""})
    content = path.read_bytes()
    # In the list at the end of the archive, the other two become names of the first one's bytes.
    entries = content.index(b"PK\x01\x02")
    first = content.index(b"archive/data/0", entries) - 46
    for key in (b"1", b"2"):
        place = content.index(b"archive/data/" + key, entries) - 46
        content = content[: place + 16] + content[first + 16 : first + 28] + content[place + 28 :]
        content = content[: place + 42] + content[first + 42 : first + 46] + content[place + 46 :]
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"declares 3\d+ bytes of content|damaged"):
        read_tensors(path)


def test_a_name_that_comes_twice_in_the_archive_is_refused(tmp_path):
    path = write_torch_zip(tmp_path / "a.pt", {"w": float_tensor("0", 1, 0, (1,), (1,))})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("archive/data/0", bytes(4))
        archive.writestr("archive/data/0", bytes(4))
    with pytest.raises(UserError, match=r"'archive/data/0' twice"):
        read_tensors(path)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("torch.nn.modules.linear Linear", "a whole module"),
        ("timm.models.vision_transformer VisionTransformer", "a whole model"),
        ("torch._utils _rebuild_qtensor", "a quantised tensor"),
        ("torch.storage _load_from_bytes", "a way into torch.load"),
        ("os system", "a command"),
    ],
)
@pytest.mark.parametrize("legacy", [False, True])
def test_what_is_no_tensor_is_refused_by_its_name(tmp_path, name, where, legacy):
    tree = {"model": Call(name, ("x",))}
    path = tmp_path / "a.pth"
    write_legacy(path, tree) if legacy else write_torch_zip(path, tree)
    with pytest.raises(UserError, match=rf"'{name.replace(' ', '.')}', which is not allowed"):
        read_tensors(path)


def test_a_torchscript_program_without_a_module_is_called_that(tmp_path):
    path = write_torch_zip(tmp_path / "a.pt", {}, **{"constants.pkl": b"", "code/x.py": b""})
    with pytest.raises(UserError, match=r"TorchScript program without a module"):
        read_tensors(path)


def test_an_array_of_numpy_among_the_weights_is_not_dropped_in_silence(tmp_path):
    array = Call("numpy.core.multiarray _reconstruct", (Name("numpy ndarray"), (0,), "b"))
    tree = {"w": float_tensor("0", 1, 0, (1,), (1,)), "other": array}
    path = write_torch_zip(tmp_path / "a.pt", tree, {"0": bytes(4)})
    with pytest.raises(UserError, match=r"'other' is a numpy.core.multiarray._reconstruct"):
        read_tensors(path)


@pytest.mark.parametrize("tree", [{}, [], 3, {"epoch": 3}, {"a": {"b": {}}}])
def test_a_file_without_tensors_says_so(tmp_path, tree):
    with pytest.raises(UserError, match=r"has no tensors by name"):
        read_tensors(write_torch_zip(tmp_path / "a.pt", tree))


def write_legacy(path, tree, keys=(), storages=b"", little=True, magic=LEGACY_MAGIC):
    header = [pickle.dumps(value, protocol=2) for value in (magic, 1001, {"little_endian": little})]
    names = pickle_as_torch(list(keys))
    path.write_bytes(b"".join(header) + pickle_as_torch(tree) + names + storages)
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"little": False}, r"not written by a little-endian machine"),
        ({"magic": 7}, r"not one of torch"),
        ({"keys": ["0", "0"]}, r"'0' twice"),
        ({"keys": ["1"]}, r"storage '1' belongs to no tensor"),
        ({"keys": []}, r"storage '0' of 'w' is missing"),
        ({"keys": ["0"]}, r"has 0 elements, but 2 are declared"),
        ({"keys": ["0"], "storages": b"\x02" + bytes(7 + 4)}, r"needs 8 bytes.* ends after 4"),
    ],
)
def test_damage_in_the_older_format_is_one_sentence(tmp_path, arguments, message):
    tree = {
        "w": Call("torch._utils _rebuild_tensor_v2", (LEGACY_STORAGE, 0, (2,), (1,), False, {}))
    }
    with pytest.raises(UserError, match=message):
        read_tensors(write_legacy(tmp_path / "a.pth", tree, **arguments))


LEGACY_STORAGE = Storage("FloatStorage", "0", 2)
LEGACY_STORAGE.identifier = (*LEGACY_STORAGE.identifier, None)


def test_a_file_broken_anywhere_is_refused_or_read_right(tmp_path):
    read = functools.partial(read_tensors, part="model")
    whole = read(GOLDEN / "training.pth")
    results = [outcome(read, copy) for copy in broken_copies(GOLDEN / "training.pth", tmp_path)]
    assert all(result is None or equal(result, whole) for result in results)
    assert sum(result is None for result in results) > len(results) / 2


def test_the_older_format_broken_anywhere_is_refused_or_read(tmp_path):
    # It has no checksums: a bit turned in a number shows in nothing.
    results = [
        outcome(read_tensors, copy) for copy in broken_copies(GOLDEN / "legacy.pth", tmp_path)
    ]
    assert sum(result is None for result in results) > len(results) / 3


def test_a_stride_that_nothing_is_stepped_by_may_be_any_number(tmp_path):
    tree = {
        "w": float_tensor("0", 4, 1, (1, 2), (2**600, 1)),
        "none": float_tensor("0", 4, 0, (0, 2), (2**600, 1)),
    }
    path = write_torch_zip(tmp_path / "w.pt", tree, {"0": np.float32([1, 2, 3, 4]).tobytes()})
    tensors = read_tensors(path)
    np.testing.assert_array_equal(tensors["w"], np.float32([[2, 3]]), strict=True)
    assert tensors["none"].shape == (0, 2)


def test_many_small_tensors_of_one_large_storage_cost_what_they_hold(tmp_path):
    """Turning the whole storage round for each of them would take seconds."""
    numbers = np.arange(2**20, dtype=">f4")
    tree = {f"w{i}": float_tensor("0", 2**20, i, (1,), (1,)) for i in range(400)}
    stored = {"0": numbers.tobytes()}
    path = write_torch_zip(tmp_path / "big.pt", tree, stored, byteorder=b"big")
    start = time.process_time()
    tensors = read_tensors(path)
    assert time.process_time() - start < 1
    assert [tensors[f"w{i}"][0] for i in (0, 1, 399)] == [0, 1, 399]
