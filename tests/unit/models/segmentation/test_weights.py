"""SegFormer of transformers and its authors, and Segmenter of its authors: read and written."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.shapes import largest_difference
from tests.support.stored import loaded, stored, write_files
from vit_jax.errors import UserError
from vit_jax.models.registry import list_models, model_fields
from vit_jax.models.segmentation.weights.segformer import backbone_name
from vit_jax.weights.convert import model_name, read_pretrained, write_pretrained

TOLERANCE = 2e-5  # of the largest number, in float32
FILES = ("segformer", "segformer_original", "segmenter", "segmenter_linear")
EPSILONS = {"segformer": (1e-5, 1e-5), "segformer_original": (1e-6, 1e-5)}


def read(name):
    return loaded(f"modern/segmentation/{name}")


def golden(name):
    return stored(f"modern/segmentation/{name}")


def largest_error(model, variables, *answers):
    """Of the logits, and of the output of every block of the backbone."""

    def ask(images):
        asked = {"mutable": "intermediates"}
        logits, kept = model.apply(variables, images, **asked)
        kept = kept["intermediates"]
        found = {}
        for i, block in enumerate(model.block_infos()):
            part = kept
            for name in block.path.split("/"):
                part = part[name]
            found[f"block_{i}"] = part["out"][0]
        return {**found, "logits": logits}

    run = jax.jit(lambda several: [ask(images) for images in several])
    return largest_difference(run([one["images"] for one in answers]), answers)


@pytest.mark.parametrize("name", FILES)
def test_every_block_and_the_logits_are_the_librarys(name):
    record, variables = read(name)
    case = golden(name)
    more = (case.others,) if case.others else ()
    assert largest_error(record.create_model(), variables, case.answers, *more) <= TOLERANCE
    assert (record.task, record.activation) == ("segmentation", "none")


@pytest.mark.parametrize("name", EPSILONS)
def test_the_model_of_a_segformer_is_told_by_shapes_and_origin(name):
    record, _ = read(name)
    fields = {**model_fields("PVTv2"), **record.fields["backbone_fields"]}
    fields |= model_fields(record.fields["backbone_name"]) | record.fields["backbone_fields"]
    assert (fields["norm_eps"], fields["embed_norm_eps"]) == EPSILONS[name]
    assert (fields["widths"], fields["depths"]) == ((4, 8, 8), (1, 2, 1))
    assert (record.fields["decoder"], record.fields["decoder_width"]) == ("mlp", 6)
    assert (record.fields["num_classes"], len(record.class_names)) == (5, 5)


@pytest.mark.slow
def test_an_epsilon_of_another_origin_is_noticed():
    record, variables = read("segformer")
    fields = {**record.fields["backbone_fields"], "norm_eps": 1e-6}
    model = record.create_model().clone(backbone_fields=fields)
    assert largest_error(model, variables, golden("segformer").answers) > 10 * TOLERANCE


def test_the_model_of_a_segmenter_is_told_by_its_names():
    mask, linear = (read(name)[0] for name in ("segmenter", "segmenter_linear"))
    assert (mask.fields["decoder"], mask.fields["decoder_depth"]) == ("mask", 1)
    assert linear.fields["decoder"] == "linear"
    assert linear.fields["backbone_fields"]["distilled"] is True
    assert (mask.preprocessing.mean, linear.preprocessing.mean[0]) == ((0.5, 0.5, 0.5), 0.485)


@pytest.mark.parametrize("name", [*list_models("SegFormer-*"), *list_models("Segmenter-*")])
def test_a_published_size_has_its_name_whatever_the_epsilons(name):
    fields = model_fields(name)
    kept = ("num_classes", "image_size", "in_channels", "decoder", "decoder_width")
    fields = {key: fields[key] for key in (*kept, "backbone_name", "backbone_fields")}
    if name.startswith("SegFormer"):
        fields["backbone_fields"] = {"norm_eps": 1e-5}
        assert backbone_name(model_fields(fields["backbone_name"])) == fields["backbone_name"]
    assert model_name(fields, "Segmentation") == name


def test_written_back_the_tensors_are_those_of_transformers_bit_for_bit(tmp_path):
    record, variables = read("segformer")
    folder = write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    written, expected = load_file(folder / "model.safetensors"), golden("segformer").tensors
    assert written.keys() == expected.keys()
    for key, array in written.items():
        if not key.endswith("num_batches_tracked"):
            assert array.tobytes() == np.ascontiguousarray(expected[key]).tobytes(), key
    config = json.loads((folder / "config.json").read_text("utf-8"))
    for key in ("model_type", "architectures", "decoder_hidden_size", "hidden_sizes", "id2label"):
        assert config[key] == golden("segformer").config[key], key
    again, same = read_pretrained(folder)
    assert again.fields == record.fields and again.class_names == record.class_names
    for one, other in zip(jax.tree.leaves(same), jax.tree.leaves(variables), strict=True):
        assert one.tobytes() == np.asarray(other).tobytes()


def test_names_in_memory_are_read_too(tmp_path):
    case = golden("segformer")
    assert set(case.memory) != set(case.tensors)
    write_files(tmp_path, case.memory, case.config)
    jax.tree.map(np.testing.assert_array_equal, read_pretrained(tmp_path)[1], read("segformer")[1])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("segformer_original", "an epsilon of 1e-5 in all norms"),
        ("segmenter", "does not support decoder = 'mask' of a SegFormer, only 'mlp'"),
    ],
)
def test_what_transformers_has_not_is_one_sentence(name, said, tmp_path):
    record, variables = read(name)
    with pytest.raises(UserError, match=said):
        write_pretrained(tmp_path / "ours", "huggingface", record, variables)
