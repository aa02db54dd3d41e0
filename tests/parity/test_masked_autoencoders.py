"""Masked autoencoders against transformers, with the published decoder, in both directions.

make test-parity     installs torch, timm, transformers and torchvision, and runs these
"""

import jax
import numpy as np
import pytest

from vit_jax.tasks.masked.masked_autoencoding import MaskedAutoencoding
from vit_jax.weights.of_tasks.masked_autoencoders import (
    read_masked_autoencoder,
    write_masked_autoencoder,
)

pytestmark = pytest.mark.parity

TOLERANCE = 2e-5
SIZES = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
SIZES |= {"image_size": 64, "patch_size": 16, "norm_pix_loss": True, "layer_norm_eps": 1e-6}


@pytest.fixture(scope="module")
def theirs(torch):
    import transformers

    from tests.goldens.weights.make_masked_autoencoders import positions

    model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**SIZES)).eval()
    for table in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        table.data = positions(table.shape[-1])  # of 4 x 4 patches
    return model


def answers(torch, model, images, noise):
    out = model(torch.from_numpy(images).permute(0, 3, 1, 2), noise=torch.from_numpy(noise))
    return float(out.loss), out.logits.numpy()


def test_loss_and_predictions_agree_and_what_is_written_is_read(torch, theirs, tmp_path):
    import transformers

    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 64, 64, 3)).astype(np.float32)
    noise = rng.random((2, 16)).astype(np.float32)
    loss, predictions = answers(torch, theirs, images, noise)

    theirs.save_pretrained(tmp_path / "theirs")
    found = read_masked_autoencoder(tmp_path / "theirs")
    task, batch = MaskedAutoencoding(found.model, **found.fields), {"image": images, "noise": noise}
    ours, _ = task.predict(found.variables, batch, jax.random.key(0))
    np.testing.assert_allclose(ours, predictions, atol=TOLERANCE * np.abs(predictions).max())
    sums = task.loss(found.variables, batch, jax.random.key(0), train=False)
    np.testing.assert_allclose(sums.total / sums.weight, loss, rtol=TOLERANCE)

    write_masked_autoencoder(tmp_path / "ours", "huggingface", found)
    again, report = transformers.ViTMAEForPreTraining.from_pretrained(
        tmp_path / "ours", output_loading_info=True
    )
    assert not report["missing_keys"] and not report["unexpected_keys"]
    again_loss, again_predictions = answers(torch, again.eval(), images, noise)
    np.testing.assert_allclose(again_loss, loss, rtol=1e-6)
    np.testing.assert_allclose(again_predictions, predictions, atol=1e-6)
