"""Makes the golden file of masked autoencoding: transformers' ViTMAEForPreTraining, tiny.

    python -m tests.goldens.weights.make_masked_autoencoders

needs torch and transformers, which neither the package nor its tests need. In `hf_mae_whole.npz`:

- `tensors/...`: what transformers writes to disk; `memory/...`: the names that it has in memory.
- `config`: JSON, the file beside.
- `images`, `noise`: the input; `loss`, `predictions`: what it answers; `raw_loss`: the loss of
  pixels that are not normalised.

Every learned parameter is a random multiple of 1/64. The tables of positions, which transformers
5.24 leaves at zero in a new model, are those of the authors' `util/pos_embed.py`: the first half of
the channels is the column's.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers import import_torchvision
from tests.goldens.weights.make_golden import DEPTH, HEADS, HERE, PATCH, SIZE, WIDTH, coarse

SETTINGS = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": 40,
    "image_size": SIZE,
    "patch_size": PATCH,
    "decoder_hidden_size": 8,
    "decoder_num_hidden_layers": 2,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 32,
    "norm_pix_loss": True,
}


def main():
    import_torchvision()
    import transformers
    from safetensors.torch import load_file

    torch.manual_seed(0)
    model = transformers.ViTMAEForPreTraining(transformers.ViTMAEConfig(**SETTINGS)).eval()
    randomise(model)
    for table in (model.vit.embeddings.position_embeddings, model.decoder.decoder_pos_embed):
        table.data = positions(table.shape[-1])
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        tensors = load_file(Path(folder) / "model.safetensors")
    images = coarse(torch.randn(3, 3, SIZE, SIZE))
    noise = torch.rand(3, (SIZE // PATCH) ** 2)
    model = model.double()
    with torch.no_grad():
        out = model(images.double(), noise=noise.double())
        model.config.norm_pix_loss = False
        raw = model(images.double(), noise=noise.double())
    arrays = {f"tensors/{name}": x.numpy().astype(np.float32) for name, x in tensors.items()}
    memory = {name: x.numpy().astype(np.float32) for name, x in model.state_dict().items()}
    arrays |= {f"memory/{name}": x for name, x in memory.items()}
    np.savez_compressed(
        HERE / "hf_mae_whole.npz",
        config=json.dumps(config),
        asked=json.dumps({}),
        images=images.permute(0, 2, 3, 1).numpy(),
        noise=noise.numpy(),
        loss=out.loss.numpy().astype(np.float32),
        raw_loss=raw.loss.numpy().astype(np.float32),
        predictions=out.logits.numpy().astype(np.float32),
        **arrays,
    )
    print(*sorted(tensors), "", *sorted(memory), sep="\n")


def positions(width):
    side = SIZE // PATCH
    omega = 10_000.0 ** -(np.arange(width // 4) / (width / 4))

    def of_axis(numbers):
        angles = numbers.reshape(-1, 1) * omega
        return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)

    columns, rows = np.meshgrid(np.arange(side), np.arange(side))
    table = np.concatenate([of_axis(columns), of_axis(rows)], axis=1)
    table = np.concatenate([np.zeros((1, width)), table])
    return torch.from_numpy(table[None].astype(np.float32))


def randomise(model):
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if "norm" in name and name.endswith("weight"):
            drawn = 0.5 + torch.rand(parameter.shape)
        elif parameter.ndim == 1:
            drawn = 0.3 * torch.randn(parameter.shape)
        elif "token" in name:
            drawn = 0.7 * torch.randn(parameter.shape)
        else:
            drawn = 1.5 * torch.randn(parameter.shape) / parameter[0].numel() ** 0.5
        parameter.data = coarse(drawn)


if __name__ == "__main__":
    main()
