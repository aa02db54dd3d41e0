"""Makes `attentions.npz`: what transformers says its small models attend to.

    python -m tests.goldens.analysis.make_attentions

The models are those of `tests/goldens/weights`, whose files hold tensors, configuration and
images. Needs torch and transformers, which the group `parity` of `pyproject.toml` names.
`attentions.npz` holds `NAME/LAYER`, float32 `(batch, heads, queries, keys)`; of Swin, whose windows
stand in the batch, `(batch * windows, heads, tokens, tokens)`.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).parent

from tests.goldens.weights.make_golden import import_torchvision  # noqa: E402
from tests.support.stored import stored, write_files  # noqa: E402

NAMES = ("hf_vit", "hf_deit_distilled", "hf_dinov2_registers", "swin_hf", "pvt_hf")


def main():
    import_torchvision()
    import transformers

    arrays = {}
    for name in NAMES:
        case = stored(name)
        with tempfile.TemporaryDirectory() as folder:
            write_files(Path(folder), case.tensors, case.config, case.preprocessor)
            [architecture] = case.config["architectures"]
            kind = getattr(transformers, architecture)
            model = kind.from_pretrained(folder, attn_implementation="eager")
            model = model.double().eval()
        # The channels come last in the golden files.
        images = torch.from_numpy(case.answers["images"]).permute(0, 3, 1, 2).double()
        with torch.no_grad():
            answer = model(pixel_values=images, output_attentions=True)
        headless = "logits" not in answer  # then the class token is what it answers
        theirs = answer.last_hidden_state[:, 0] if headless else answer.logits
        assert np.allclose(theirs.numpy(), case.answers["logits"], atol=1e-5), name
        for layer, weights in enumerate(answer.attentions):
            arrays[f"{name}/{layer}"] = weights.numpy().astype(np.float32)
    np.savez_compressed(HERE / "attentions.npz", **arrays)
    for name, array in arrays.items():
        print(name, array.shape)


if __name__ == "__main__":
    main()
