"""TorchScript programs: their tensors by name, without their code, and what is refused."""

import numpy as np
import pytest

from tests.support.hostile import float_tensor, pickle_as_torch, write_torch_zip
from vit_jax.errors import UserError
from vit_jax.weights.io.files import read_tensors

MODULE = b"c__torch__.some.module Model\n".replace(b" ", b"\n") + b")\x81"  # an object of a class


def instructions(value):
    return pickle_as_torch(value)[2:-1]


def module(**attributes):
    """An object with attributes; bytes are instructions themselves."""
    items = [
        instructions(name) + (x if isinstance(x, bytes) else instructions(x))
        for name, x in attributes.items()
    ]
    return MODULE + b"}(" + b"".join(items) + b"ub"


def program(path, outermost, storages=None):
    pickle = b"\x80\x02" + outermost + b"."
    more = {"constants.pkl": b"", "code/__torch__/some.py": b"raise SystemExit"}
    return write_torch_zip(path, pickle, storages, **more)


def test_tensors_have_the_names_of_a_state_dict(tmp_path):
    weight = float_tensor("0", 2, 0, (2,), (1,))
    inner = module(weight=weight, training=True, empty=None)
    path = program(tmp_path / "a.pt", module(visual=inner), {"0": np.float32([1, 2]).tobytes()})
    assert {name: x.tolist() for name, x in read_tensors(path).items()} == {
        "visual.weight": [1.0, 2.0]
    }


def test_the_class_of_a_module_is_never_looked_up(tmp_path):
    """A global that only looks like one of torch's own, and one that is called with arguments."""
    other = module(weight=b"cos\nsystem\n" + instructions(("ls",)) + b"R")
    with pytest.raises(UserError, match=r"'os.system', which is not allowed"):
        read_tensors(program(tmp_path / "a.pt", other))
    called = module(weight=b"c__torch__.os\nsystem\n" + instructions(("ls",)) + b"R")
    with pytest.raises(UserError, match="a module is declared in an unknown way"):
        read_tensors(program(tmp_path / "b.pt", called))


def test_modules_that_hold_themselves_end(tmp_path):
    """The object is put into the memo, and is an attribute of its own."""
    itself = MODULE + b"q\x00}(" + instructions("again") + b"h\x00ub"
    with pytest.raises(UserError, match="too many modules in each other"):
        read_tensors(program(tmp_path / "a.pt", itself))
    shared = MODULE + b"q\x00" + b"}(" + instructions("w") + instructions(1) + b"ub"
    for number in range(1, 30):  # 2 ** 29 paths to the first
        again = b"h" + bytes([number - 1])
        items = instructions("a") + shared + instructions("b") + again
        shared = MODULE + b"q" + bytes([number]) + b"}(" + items + b"ub"
    with pytest.raises(UserError, match="too many modules in each other"):
        read_tensors(program(tmp_path / "b.pt", shared))


def test_attributes_without_names_are_refused(tmp_path):
    with pytest.raises(UserError, match="an object without names of its attributes"):
        read_tensors(program(tmp_path / "a.pt", MODULE + instructions(3) + b"b"))
    with pytest.raises(UserError, match="TorchScript program without a module"):
        read_tensors(program(tmp_path / "b.pt", instructions({"w": 1})))
