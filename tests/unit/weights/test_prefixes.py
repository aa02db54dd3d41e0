"""What stands in front of names: taken away where it must be, and never from a model's own."""

import numpy as np
import pytest

from tests.support.stored import stored, write_files
from vit_jax.errors import UserError
from vit_jax.weights import prefixes
from vit_jax.weights.convert import read_pretrained
from vit_jax.weights.recognition import find_model

VIT = stored("timm_vit")
HUGGING_FACE = stored("hf_vit")
WEIGHT = np.ones(3, np.float32)


def in_front(prefix, tensors=VIT.tensors):
    return {prefix + name: array for name, array in tensors.items()}


def assert_found(tensors, expected, name="timm"):
    found, without = find_model(tensors)
    assert found.name == name
    assert without.keys() == expected.keys()
    assert all(without[name] is expected[name] for name in expected)


@pytest.mark.parametrize(
    "prefix",
    [
        *("model.", "net.vit.", "encoder.", "student.backbone.", "timm_model.", "a.b.c.d.e.f.g."),
        *("model/", "params/model/", "0."),
    ],
)
def test_any_part_that_all_names_have_is_taken_away(prefix):
    assert_found(in_front(prefix), VIT.tensors)


def test_parts_that_belong_to_a_library_stay_as_long_as_they_are_its():
    tensors = HUGGING_FACE.tensors
    assert {name.split(".")[0] for name in tensors} == {"vit", "classifier"}
    assert_found(tensors, tensors, "huggingface")
    assert_found(in_front("model.", tensors), tensors, "huggingface")
    headless = {n: x for n, x in tensors.items() if n.startswith("vit.")}
    assert_found(headless, headless, "huggingface")
    assert_found(in_front("vit.", tensors), tensors, "huggingface")


def test_all_names_of_a_pvt_without_head_begin_alike_and_are_its_own():
    tensors = {n: x for n, x in stored("pvt_hf").tensors.items() if not n.startswith("classifier")}
    bare = {name.removeprefix("pvt."): array for name, array in tensors.items()}
    assert {name.split(".")[0] for name in bare} == {"encoder"}
    assert_found(bare, bare, "huggingface")


def test_what_stands_beside_the_one_model_of_a_file_keeps_its_name():
    others = {"criterion.weight": WEIGHT, "neck.conv.weight": WEIGHT}
    assert_found(in_front("model.") | others, VIT.tensors | others)


def test_two_models_under_two_names_are_listed_and_asked_for():
    tensors = in_front("student.backbone.") | in_front("teacher.backbone.")
    with pytest.raises(UserError, match=r"begin with 'student', 'teacher', each .*--part=NAME"):
        find_model(tensors)


def test_a_loss_beside_the_model_is_left_out_with_a_word_and_a_neck_is_not(tmp_path, capsys):
    tensors = in_front("model.")
    folder = write_files(tmp_path / "a", tensors | {"criterion.weight": WEIGHT}, VIT.config)
    record, variables = read_pretrained(folder)
    assert "skipped: criterion.weight (the state of training)" in capsys.readouterr().err
    np.testing.assert_array_equal(variables["params"]["norm"]["scale"], VIT.tensors["norm.weight"])
    folder = write_files(tmp_path / "b", tensors | {"neck.conv.weight": WEIGHT}, VIT.config)
    with pytest.raises(
        UserError, match=r"no parameter for neck.conv.weight.*under 'model'.*--part=model"
    ):
        read_pretrained(folder)
    again, _ = read_pretrained(folder, part="model")
    assert again.fields == record.fields


def test_names_of_very_many_parts_are_looked_at_a_few_times():
    looked = []

    def is_model(tensors):
        looked.append(len(tensors))
        return False

    tensors = {f"{'a.' * 400}{i}": WEIGHT for i in range(3)}
    assert len(list(prefixes.levels(tensors, is_model))) < 20
    many = {f"part{i}.weight": WEIGHT for i in range(5000)}
    list(prefixes.levels(many, is_model))
    assert sum(looked) <= 2 * len(many)
