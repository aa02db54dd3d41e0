"""Mixer and PVT at full size against timm and transformers, in both directions.

    make test-parity     installs torch, timm, transformers and torchvision, and runs these

Weights are random, norms and biases too: nothing is fetched. Compared are the outputs of every
block or stage and the logits, in float32 on both sides, to 2e-5 of the largest number.
"""

import jax
import numpy as np
import pytest

from benchmarks.peers import import_timm
from tests.parity.test_vit import answers_of, assert_equal, images_of, our_answers, randomise
from tests.support.written import assert_timm_reads_the_same, save_timm
from vit_jax.weights.convert import read_pretrained, write_pretrained
from vit_jax.weights.formats import Hints

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("name", ["mixer_s16_224", "mixer_b32_224"])
def test_timm_computes_the_same_mixer_and_reads_what_is_written(torch, name, tmp_path):
    timm = import_timm()
    model = randomise(torch, timm.create_model(name))
    save_timm(tmp_path / "theirs", model, {"architecture": name, "pretrained_cfg": {}})
    record, variables = read_pretrained(tmp_path / "theirs", Hints(origin="timm"))
    assert record.name == {"mixer_s16_224": "Mixer-S/16", "mixer_b32_224": "Mixer-B/32"}[name]
    images = images_of(224)
    assert_equal(
        our_answers(record, variables, images), answers_of(torch, model, model.blocks, images)
    )
    assert_timm_reads_the_same(torch, timm, tmp_path / "ours", record, variables, model)


def test_transformers_computes_the_same_pvt_and_reads_what_is_written(torch, tmp_path):
    import transformers

    depths = [2, 2, 2, 2]
    model = transformers.PvtForImageClassification(transformers.PvtConfig(depths=depths))
    randomise(torch, model).save_pretrained(tmp_path / "theirs")
    record, variables = read_pretrained(tmp_path / "theirs")
    assert record.name == "PVT-Tiny"

    images = images_of(224)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    out = model(pixel_values=pixels, output_hidden_states=True)
    ends = [out.hidden_states[end].numpy() for end in np.cumsum(depths) - 1]
    ends[-1] = ends[-1][:, 1:]
    ours = record.create_model()
    with jax.default_matmul_precision("highest"):
        features = ours.apply(variables, images, method="features")
        logits = ours.apply(variables, images)
    maps = [stage.reshape(1, -1, stage.shape[-1]) for stage in features.stages]
    assert_equal((maps, logits), (ends, out.logits.numpy()))

    write_pretrained(tmp_path / "ours", "huggingface", record, variables)
    again = type(model).from_pretrained(tmp_path / "ours")
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name]), name
