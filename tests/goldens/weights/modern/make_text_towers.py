"""Makes the golden files of text towers of transformers: CLIP and SigLIP.

    python -m tests.goldens.weights.modern.make_text_towers

A file has `tensors/...` and `config` as `save_pretrained` writes them, `ids`, and what the model
makes of them: `block_0`, ..., `tokens` past the last norm, `pooled`, and `projected`, which is
`pooled` where a model has no projection. `short/...` is the same for texts of a single token.
Tables of tokens and positions are so small that the epsilon of the first norm shows.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from tests.goldens.weights.modern.common import HERE, halves, import_torchvision, randomise

VOCABULARY, LENGTH, START, END, PAD = 24, 8, 22, 23, 1
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LENGTH,
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": PAD,
}
# A text that was cut, two that end earlier, and an empty one; what follows the end is padding.
IDS = np.array(
    [
        [START, 3, 14, 15, 9, 2, 6, END],
        [START, 5, 20, 7, END, PAD, PAD, PAD],
        [START, 11, END, END, END, END, END, END],
        [START, END, 0, 0, 0, 0, 0, 0],
    ]
)


def main():
    for number, make in enumerate((clip, clip_of_old_config, siglip)):
        torch.manual_seed(number)
        make()


def clip():
    library = transformers()
    config = library.CLIPTextConfig(**SIZES, projection_dim=24)
    model = library.CLIPTextModelWithProjection(config)
    save("hf_clip", model, model.text_model, lambda out: model.text_projection(out.pooler_output))


def clip_of_old_config():
    """As open_clip's models: exact GELU; the end is the largest id, as an old config says."""
    library = transformers()
    config = library.CLIPTextConfig(**{**SIZES, "eos_token_id": 2}, hidden_act="gelu")
    model = library.CLIPTextModel(config)
    save("hf_clip_largest", model, model, lambda out: out.pooler_output)


def siglip():
    library = transformers()
    model = library.SiglipTextModel(library.SiglipTextConfig(**SIZES, projection_size=24))
    save("hf_siglip", model, model, lambda out: out.pooler_output)


def save(name, model, tower, project):
    from safetensors.torch import load_file

    randomise(model.double().eval())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        tensors = load_file(Path(folder) / "model.safetensors")
    config["dtype"] = "float32"  # here it computes in float64
    arrays = {f"tensors/{key}": halves(value) for key, value in tensors.items()}
    arrays |= {"ids": IDS, **answers(tower, project, IDS)}
    short = np.array([[START], [END], [4]])
    arrays |= {f"short/{key}": value for key, value in answers(tower, project, short).items()}
    arrays["short/ids"] = short
    path = HERE / "text_towers" / f"{name}.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, config=json.dumps(config), asked=json.dumps({}), **arrays)
    print(name, f"{path.stat().st_size / 1000:.0f} kB")
    for key, value in tensors.items():
        print("   ", key, tuple(value.shape))


def answers(tower, project, ids):
    outputs = []
    hooks = [
        layer.register_forward_hook(lambda _, __, out: outputs.append(out))
        for layer in tower.encoder.layers
    ]
    with torch.no_grad():
        out = tower(torch.from_numpy(ids))
        found = {"tokens": out.last_hidden_state, "projected": project(out)}
    for hook in hooks:
        hook.remove()
    outputs = [one[0] if isinstance(one, tuple) else one for one in outputs]
    found |= {f"block_{i}": one for i, one in enumerate(outputs)}
    assert len(outputs) == SIZES["num_hidden_layers"]
    if not hasattr(tower, "head"):  # SigLIP's pooled output is projected
        found["pooled"] = out.pooler_output
    else:
        found["pooled"] = out.last_hidden_state[:, -1]
    return {key: value.numpy().astype(np.float32) for key, value in found.items()}


def transformers():
    import_torchvision()
    import transformers

    return transformers


if __name__ == "__main__":
    main()
