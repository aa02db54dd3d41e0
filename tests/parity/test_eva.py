"""DINOv3, EVA-02 and BEiT of timm at full width, in both directions.

Weights are random; every block and the answer are compared, and timm opens what is written here:
under the architecture of the file, and under the one that a model of no file gets.
"""

import dataclasses

import pytest

from benchmarks.peers import import_timm
from tests.parity.test_vit import answers_of, assert_equal, images_of, our_answers, randomise
from tests.support.written import assert_timm_reads_the_same, save_timm
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints

pytestmark = pytest.mark.parity

# Architecture, arguments, image size; few blocks, all of the same kind.
MODELS = {
    "vit_small_patch16_dinov3": ({"img_size": 160}, 160),
    "vit_small_patch16_dinov3_qkvb": ({"num_classes": 7, "global_pool": "token"}, 256),
    "vit_small_plus_patch16_dinov3": ({}, 256),
    "vit_small_patch16_lingbot": ({"img_size": 160}, 160),
    "eva02_tiny_patch14_224": ({}, 224),
    "eva02_small_patch14_336": ({"num_classes": 0}, 336),
    "eva02_base_patch14_224": ({}, 224),
    "eva02_base_patch16_clip_224": ({"num_classes": 512}, 224),
    "beit_base_patch16_224": ({}, 224),
    "beitv2_base_patch16_224": ({"img_size": 160, "global_pool": "token"}, 160),
}


@pytest.mark.parametrize("name", MODELS)
def test_timm_computes_the_same_and_reads_what_is_written(torch, name, tmp_path):
    timm = import_timm()
    arguments, size = MODELS[name]
    arguments = {**arguments, "depth": 2}
    model = randomise(torch, timm.create_model(name, **arguments))
    config = {"architecture": name, "model_args": arguments, "pretrained_cfg": {}}
    config["pretrained_cfg"] = {"input_size": [3, size, size]}
    save_timm(tmp_path / "theirs", model, config | {"num_classes": model.num_classes})
    hints = Hints("dinov3") if "dinov3" in name or "lingbot" in name else Hints()
    record, variables = read_pretrained(tmp_path / "theirs", hints)
    images = images_of(size)
    theirs = answers_of(torch, model, model.blocks, images)
    assert_equal(our_answers(record, variables, images), theirs)

    assert_timm_reads_the_same(torch, timm, tmp_path / "ours", record, variables, model)
    alone = dataclasses.replace(record, source_config={})
    folder = write_pretrained(tmp_path / "alone", "timm", alone, variables)
    again = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    assert_equal(answers_of(torch, again, again.blocks, images), theirs)
