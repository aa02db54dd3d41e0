"""Makes the golden files of MLP-Mixer: tiny models of timm and what they answer.

    python -m tests.goldens.weights.make_mixer

needs torch and timm. The format is that of `make_golden.py`. Google's own code is no package: its
model is timm's here with the GELU of flax, its tensors under the names and in the layout of
`models_mixer.py`, and its image oblong, which the number of patches does not tell.
"""

import json
import re

import numpy as np
import torch
from torch import nn

from tests.goldens.weights.make_golden import (
    HERE,
    NAMES,
    answers,
    exact_halves,
    import_timm,
    randomise,
)

WIDTH, DEPTH, PATCH, CLASSES = 16, 2, 4, 5


def main():
    for number, make in enumerate((of_timm, of_google)):
        torch.manual_seed(100 + number)
        make()


def mixer(size, **arguments):
    timm = import_timm()
    model = timm.models.mlp_mixer.MlpMixer(
        img_size=size,
        patch_size=PATCH,
        num_classes=CLASSES,
        embed_dim=WIDTH,
        num_blocks=DEPTH,
        mlp_ratio=(0.75, 2.0),
        **arguments,
    )
    model = model.double().eval()
    randomise(model)
    # What the first norm sees is small, so that its epsilon shows.
    model.stem.proj.weight.data *= 2**-6
    model.stem.proj.bias.data *= 2**-6
    return model


def of_timm():
    model = mixer((16, 16))
    config = {
        "architecture": "mixer_b16_224",
        "num_classes": CLASSES,
        "model_args": {"img_size": 16, "mlp_ratio": [0.75, 2.0]},
        "pretrained_cfg": {
            "input_size": [3, 16, 16],
            "mean": [0.1, 0.2, 0.3],
            "std": [0.4, 0.5, 0.6],
            "crop_pct": 0.75,
            "interpolation": "bilinear",
            "label_names": NAMES,
        },
    }
    save("mixer_timm", model.state_dict(), model, (16, 16), config=config)


def of_google():
    size = (16, 24)
    model = mixer(size, act_layer=lambda: nn.GELU(approximate="tanh"))
    state = {}
    for name, tensor in model.state_dict().items():
        for old, new in _GOOGLE:
            name = name.replace(old, new)
        name = re.sub(r"^norm\.", "pre_head_layer_norm.", name)
        parts = name.replace(".", "/").split("/")
        if parts[-1] == "weight":
            parts[-1] = "scale" if tensor.ndim == 1 else "kernel"
            tensor = tensor.permute({4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[tensor.ndim])
        state["/".join(parts)] = tensor
    save("mixer_google", state, model, size, asked={"image_size": size})


# From names of timm to those of Google; what begins with "norm." is the last norm.
_GOOGLE = (
    ("stem.proj", "stem"),
    ("blocks.", "MixerBlock_"),
    (".norm1", ".LayerNorm_0"),
    (".norm2", ".LayerNorm_1"),
    ("mlp_tokens", "token_mixing"),
    ("mlp_channels", "channel_mixing"),
    ("fc1", "Dense_0"),
    ("fc2", "Dense_1"),
)


def save(name, tensors, model, size, *, config=None, asked=None):
    arrays = {f"tensors/{key}": exact_halves(value) for key, value in tensors.items()}
    arrays |= answers(model, model.blocks, 2, size)
    texts = {"config": config, "asked": asked or {}}
    texts = {key: json.dumps(value) for key, value in texts.items() if value is not None}
    np.savez_compressed(HERE / f"{name}.npz", **texts, **arrays)


if __name__ == "__main__":
    main()
