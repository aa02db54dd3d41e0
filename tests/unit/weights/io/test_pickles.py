"""Pickles are read as data: what a file may not do, and what it may not make us do."""

import io
import os
import pickle
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.hostile import outcome
from vit_jax.errors import UserError
from vit_jax.weights.io import pickles
from vit_jax.weights.io.pickles import Builder, Opaque, read_pickle

FILE = Path("weights.pth")

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**600), 2**600)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(-(2**40), 2**40), inner)
    ),
    max_leaves=20,
)


def read(content: bytes, names=None, persistent=None):
    return read_pickle(io.BytesIO(content), FILE, names or {}, persistent)


@settings(max_examples=200, deadline=None)
@given(plain, st.sampled_from([4, 5]))
def test_plain_values_come_back_as_python_reads_them(value, protocol):
    assert read(pickle.dumps(value, protocol=protocol)) == value


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_one_sentence(content):
    try:
        read(b"\x80\x02" + content)
    except UserError as error:
        assert "weights.pth" in str(error)


class Harm:
    """Runs a command when Python unpickles it."""

    def __init__(self, how):
        self.how = how

    def __reduce__(self):
        return self.how


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("touch {}",), f"{os.name}.system"),
        (eval, ("open('{}', 'w')",), "eval"),
        (getattr, (os, "system"), "getattr"),
        (__import__, ("os",), "__import__"),
    ],
)
def test_code_is_refused_by_its_name_and_does_not_run(
    tmp_path, protocol, function, arguments, name
):
    marker = tmp_path / "marker"
    arguments = tuple(
        str(argument).format(marker) if isinstance(argument, str) else "x" for argument in arguments
    )
    content = pickle.dumps({"model": Harm((function, arguments))}, protocol=protocol)
    with pytest.raises(UserError, match=rf"{name}.*not allowed.*state_dict"):
        read(content)
    assert not marker.exists()


def test_a_name_with_dots_does_not_reach_into_an_allowed_one():
    content = b"\x80\x04\x8c\x0bcollections\x8c\x20OrderedDict.__init__.__globals__\x93."
    with pytest.raises(UserError, match=r"OrderedDict.__init__"):
        read(content, {"collections.OrderedDict": Builder("dictionary", dict)})


@pytest.mark.parametrize(
    ("instruction", "name"),
    [
        (b"(ios\nsystem\n", "INST"),
        (b"(cos\nsystem\no", "os.system"),
        (b"\x82\x01", "EXT1"),
        (b"Pdevice\n", "PERSID"),
        (b"I1\n", "INT"),
        (b"0", "POP"),
    ],
)
def test_instructions_that_tensors_do_not_need_are_refused(instruction, name):
    with pytest.raises(UserError, match=name):
        read(b"\x80\x02" + instruction + b".")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x02.",
        b"\x80\x02(.",
        b"\x80\x02}(K\x01u.",  # a key without a value
        b"\x80\x02K\x01K\x02.",  # two values
        b"\x80\x02}K\x01a.",  # an item for a dictionary
        b"\x80\x02h\x05.",  # a memory that nothing was put into
        b"\x80\x02(q\x00.",
        b"\x80\x02K\x01)R.",  # a number called
        b"\x80\x02K\x01}b.",  # attributes of a number
        b"\x80\x02K\x01Q.",  # a storage where none may be
        b"\x80\x02\x86.",
        b"\x80\x02X\xff\x00\x00\x00abc.",  # a text longer than the file
        b"\x80\x02X\x01\x00\x00\x00\xff.",  # no UTF-8
    ],
)
def test_a_damaged_pickle_is_one_sentence(content):
    with pytest.raises(UserError, match=r"weights.pth cannot be read, it is damaged"):
        read(content)


@pytest.mark.parametrize(
    "content",
    [
        b"r\xff\xff\xff\x7f",  # keep at place 2,147,483,647
        b"\x8d" + struct.pack("<Q", 2**62),  # a text of 4 exabytes
        b"\x8e" + struct.pack("<Q", 2**62),  # as many bytes
        b"X\xff\xff\xff\x7f",
        b"\x8b\xff\xff\xff\x7f",  # a number of two gigabytes
        b"\x95" + struct.pack("<Q", 2**62) + b"K\x01",  # a frame as long
    ],
)
def test_declared_lengths_are_not_allotted(tmp_path, content):
    path = tmp_path / "bomb.pkl"
    path.write_bytes(b"\x80\x04N" + content + b".")
    outcome(lambda path: {0: read_pickle(io.BytesIO(path.read_bytes()), path, {})}, path)


def test_an_endless_pickle_is_refused_early(monkeypatch):
    monkeypatch.setattr(pickles, "MAX_INSTRUCTIONS", 1000)
    with pytest.raises(UserError, match=r"more than 1000 pickle instructions"):
        read(b"\x80\x02" + b"]" * 1000 + b".")


def test_deep_nesting_is_read_without_recursion():
    depth = 100_000
    value = read(b"\x80\x02" + b"]" * depth + b"a" * (depth - 1) + b".")
    for _ in range(depth - 1):
        (value,) = value
    assert value == []


def test_keys_that_take_for_ever_to_hash_are_refused():
    # Tuples that hold the one before twice, 2^100 leaves, would be such a key.
    with pytest.raises(UserError, match=r"key that is neither a string nor a number"):
        read(pickle.dumps({(1, 2): 3}, protocol=4))
    colliding = 2**61 - 1
    with pytest.raises(UserError, match=r"key that is neither a string nor a number"):
        read(pickle.dumps({colliding**2: 1}, protocol=4))


def test_a_key_that_comes_twice_is_refused():
    with pytest.raises(UserError, match=r"'cls_token' twice"):
        read(b"\x80\x02}(X\x09\x00\x00\x00cls_tokenK\x01X\x09\x00\x00\x00cls_tokenK\x02u.")


def test_a_builder_gets_the_arguments_and_opaque_values_take_whatever_follows():
    names = {
        "fractions.Fraction": Builder("fraction", lambda text: ("fraction", text)),
        "argparse.Namespace": Builder("record", lambda *_: Opaque("record")),
    }
    assert read(b"\x80\x02cfractions\nFraction\nK\x07\x85R.", names) == ("fraction", 7)
    record = b"\x80\x02cargparse\nNamespace\n)\x81}X\x02\x00\x00\x00lrK\x01sb."
    assert read(record, names) == Opaque("record")
    with pytest.raises(UserError, match=r"NEWOBJ out of place|REDUCE out of place"):
        read(b"\x80\x02cfractions\nFraction\n)R.", names)


def test_persistent_identifiers_go_through_the_given_function():
    assert read(b"\x80\x02K\x05Q.", persistent=lambda number: number + 1) == 6


def test_the_position_is_left_behind_the_pickle():
    file = io.BytesIO(pickle.dumps(1, protocol=2) + pickle.dumps(2, protocol=2) + b"rest")
    assert [read_pickle(file, FILE, {}) for _ in range(2)] == [1, 2]
    assert file.read() == b"rest"


def test_a_name_as_long_as_the_file_is_refused():
    """It could be the key of many dictionaries, each of which is then walked letter by letter."""
    with pytest.raises(UserError, match=r"a key of 100000 letters"):
        read(pickle.dumps({"x" * 100_000: 1}, protocol=4))


def test_a_call_with_arguments_by_the_thousand_is_refused():
    """Many calls could share the tuple, and each copies it."""
    calls = []
    names = {"torch.Size": Builder("shape", lambda *arguments: calls.append(len(arguments)))}
    content = b"\x80\x02ctorch\nSize\n(" + b"N" * 5000 + b"tR."
    with pytest.raises(UserError, match=r"REDUCE out of place"):
        read(content, names)
    assert not calls
