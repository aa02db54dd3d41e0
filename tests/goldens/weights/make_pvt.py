"""Makes the golden files of PVT: tiny models of transformers and what they answer.

    python -m tests.goldens.weights.make_pvt

needs torch and transformers. The format is that of `make_golden.py`, with `stage_0`, ... for the
maps that the stages give, before any norm, and no blocks.

- `pvt_hf`: transformers' own, which has 1e-6 in all norms (written here as 1e-3, to be noticed)
  and cannot resize its positions: it reshapes the table to the grid that is wanted.
- `pvt_original`: the authors' repository is no package. Its model is transformers' here with the
  epsilon of torch in the norms after convolutions, positions resized by the call of torch that
  stands in its `pvt.py`, and tensors under its names. `mean/logits`: without the class token and
  its position, the mean of the last map.
"""

import json
import re
import tempfile
import types
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from tests.goldens.weights.make_golden import (
    HERE,
    NAMES,
    SQUASHED,
    exact_halves,
    import_torchvision,
    randomise,
)

SIZE, OTHER = 64, (96, 32)
SIZES = {
    "image_size": SIZE,
    "hidden_sizes": [4, 8, 8, 8],
    "depths": [1, 2, 1, 1],
    "num_attention_heads": [1, 2, 2, 2],
    "mlp_ratios": [3, 2, 2, 1],
    "sequence_reduction_ratios": [4, 4, 2, 1],
}


def main():
    for number, make in enumerate((of_transformers, of_authors)):
        torch.manual_seed(200 + number)
        make()


def pvt(**settings):
    import_torchvision()
    import transformers

    names = {"id2label": dict(enumerate(NAMES)), "num_labels": len(NAMES)}
    config = transformers.PvtConfig(**SIZES, **names, **settings)
    model = transformers.PvtForImageClassification(config).double().eval()
    randomise(model)
    # What norms see in the first stage is small, so that their epsilons show.
    for parameter in model.pvt.encoder.patch_embeddings[0].projection.parameters():
        parameter.data *= 2**-4
    return model


def of_transformers():
    model = pvt(layer_norm_eps=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        from safetensors.torch import load_file

        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        state = load_file(Path(folder) / "model.safetensors")
    assert state.keys() == model.state_dict().keys()  # in memory it has the same names
    processor = {
        **SQUASHED,
        "image_processor_type": "PvtImageProcessor",
        "size": {"height": SIZE, "width": SIZE},
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
    }
    save("pvt_hf", state, answers(model, (SIZE, SIZE)), config=config, preprocessor=processor)


def of_authors():
    model = pvt(layer_norm_eps=1e-6)
    for name, module in model.named_modules():
        if re.search(r"patch_embeddings\.\d\.layer_norm$|attention\.self\.layer_norm$", name):
            module.eps = 1e-5
    for embedding in model.pvt.encoder.patch_embeddings:
        embedding.interpolate_pos_encoding = types.MethodType(resized, embedding)
    state = renamed(model.state_dict())
    arrays = answers(model, (SIZE, SIZE))
    arrays |= {f"other/{name}": array for name, array in answers(model, OTHER).items()}

    last = model.pvt.encoder.patch_embeddings[-1]
    last.cls_token = None
    last.position_embeddings = torch.nn.Parameter(last.position_embeddings[:, 1:])
    images = torch.from_numpy(arrays["images"].astype(np.float64)).permute(0, 3, 1, 2)
    with torch.no_grad():
        tokens = model.pvt(images).last_hidden_state
        arrays["mean/logits"] = model.classifier(tokens.mean(1)).numpy().astype(np.float32)
    save("pvt_original", state, arrays, asked={"heads": 1})


def resized(embedding, table, height, width):
    """The authors' `_get_pos_embed`."""
    side = round(table.shape[1] ** 0.5)
    if (height, width) == (side, side):
        return table
    grid = table.reshape(1, side, side, -1).permute(0, 3, 1, 2)
    grid = interpolate(grid, size=(height, width), mode="bilinear")
    return grid.reshape(1, -1, height * width).permute(0, 2, 1)


def renamed(state):
    """The authors' names of the same numbers: stages from 1 on, keys and values in one matrix."""
    names = (
        (r"^pvt\.encoder\.", ""),
        (r"^classifier\.", "head."),
        (r"^layer_norm\.", "norm."),
        (r"^patch_embeddings\.\d\.cls_token", "cls_token"),
        (r"^patch_embeddings\.(\d)\.position_embeddings", r"pos_embed\1"),
        (r"^patch_embeddings\.(\d)\.projection", r"patch_embed\1.proj"),
        (r"^patch_embeddings\.(\d)\.layer_norm", r"patch_embed\1.norm"),
        (r"^block\.(\d)\.(\d)\.", r"block\1.\2."),
        (r"layer_norm_(\d)", r"norm\1"),
        (r"attention\.self\.query", "attn.q"),
        (r"attention\.self\.sequence_reduction", "attn.sr"),
        (r"attention\.self\.layer_norm", "attn.norm"),
        (r"attention\.output\.dense", "attn.proj"),
        (r"mlp\.dense(\d)", r"mlp.fc\1"),
    )
    theirs = {}
    for name, tensor in state.items():
        for old, new in names:
            name = re.sub(old, new, name)
        name = re.sub(
            r"^(patch_embed|pos_embed|block)(\d)", lambda m: m[1] + str(int(m[2]) + 1), name
        )
        theirs[name] = tensor
    for key in [name for name in theirs if ".attention.self.key." in name]:
        pair = theirs.pop(key), theirs.pop(key.replace(".key.", ".value."))
        theirs[key.replace("attention.self.key", "attn.kv")] = torch.cat(pair)
    return theirs


def answers(model, size):
    images = (torch.randn(1, model.config.num_channels, *size)).round().double()
    ends = np.cumsum(SIZES["depths"]) - 1
    with torch.no_grad():
        out = model(images, output_hidden_states=True)
    arrays, stride = {}, 2
    for i, end in enumerate(ends):
        stride *= 2
        grid = [side // stride for side in size]
        tokens = out.hidden_states[end][:, int(i == 3) :]
        arrays[f"stage_{i}"] = tokens.reshape(1, *grid, -1).numpy().astype(np.float32)
    arrays["images"] = images.permute(0, 2, 3, 1).numpy().astype(np.float16)
    arrays["logits"] = out.logits.numpy().astype(np.float32)
    return arrays


def save(name, tensors, arrays, **texts):
    texts = {key: json.dumps(value) for key, value in {"asked": {}, **texts}.items()}
    arrays = {f"tensors/{key}": exact_halves(value) for key, value in tensors.items()} | arrays
    np.savez_compressed(HERE / f"{name}.npz", **texts, **arrays)


if __name__ == "__main__":
    main()
