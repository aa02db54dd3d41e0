"""What the scripts of this folder share: tiny models, random numbers, and the files they fill.

A golden file here is one of `tests/goldens/weights/make_golden.py`, which says what is in it and
what the scripts need. Besides `images`, `block_0`, ... and `logits` it has

- `tokens`: what the model has of every token past its last norm;
- `pooled`: what the head gets, or what the model calls its pooled output;
- `projected`: the embedding that a tower of two shares with the other, where it has one.

`logits` of a model without a head are `pooled`. Patches, tokens and tables of positions are so
small that the epsilon of the first norm shows.
"""

import copy
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers import import_timm, import_torchvision
from tests.goldens.weights.make_golden import CLASSES, NAMES, coarse

HERE = Path(__file__).parent
WIDTH, DEPTH, HEADS, PATCH, GRID = 32, 2, 2, 4, 4
SIZE = PATCH * GRID
OTHER = (24, 12)  # 6 x 3 patches
TINY = {"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS, "patch_size": PATCH}
EMBEDDINGS = ("token", "pos", "patch", "latent", "probe", "embed", "conv1")


def timm_model(architecture, **arguments):
    """A tiny model of the given architecture of timm, whose own settings hold otherwise."""
    timm = import_timm()
    model = timm.create_model(architecture, **{"img_size": SIZE, **TINY, **arguments})
    return randomise(model.double().eval())


def randomise(model, embedding_scale=2**-6):
    """Every parameter random and a multiple of 1/64, embeddings times `embedding_scale`."""
    for name, parameter in model.named_parameters():
        owner, _, kind = name.rpartition(".")
        norm = "Norm" in type(model.get_submodule(owner)).__name__ and kind == "weight"
        shape = parameter.shape
        embeds = any(part in name for part in EMBEDDINGS) and "norm" not in name
        is_table = "table" in name or "position_embedding" in name
        if norm or kind.startswith(("gamma", "lambda")):
            drawn = 0.5 + torch.rand(shape)
        elif parameter.ndim < 2:
            drawn = 0.3 * torch.randn(shape)
        elif is_table or (embeds and parameter.ndim < 4 and kind != "weight"):
            drawn = 0.7 * torch.randn(shape)
        else:
            drawn = 1.5 * torch.randn(shape) / parameter[0].numel() ** 0.5
        scale = embedding_scale if embeds and "pool" not in name and "head" not in name else 1
        parameter.data = (coarse(drawn) * scale).to(parameter.dtype)
    return model


def timm_answer(model):
    """A function of images: tokens, what the head gets, and logits."""

    def answer(images):
        tokens = model.forward_features(images)
        pooled = model.forward_head(tokens, pre_logits=True)
        return {"tokens": tokens, "pooled": pooled, "logits": model.forward_head(tokens)}

    return answer


def timm_case(name, architecture, *, edit=lambda model: model, **arguments):
    """timm's model with the `config.json` that timm writes."""
    model = edit(timm_model(architecture, **arguments))
    other = copy.deepcopy(model)
    if not getattr(model, "dynamic_img_size", False):
        other.set_input_size(OTHER)
    save(
        name,
        model.state_dict(),
        (model.blocks, timm_answer(model)),
        (other.blocks, timm_answer(other)),
        config=timm_config(model),
    )


def timm_config(model):
    from timm.models._hub import save_config_for_hf

    names = {"pretrained_cfg": {"label_names": NAMES}} if model.num_classes == CLASSES else {}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "config.json")
        # timm drops names where it has others' number of classes: then they are given again.
        model.pretrained_cfg["num_classes"] = model.num_classes
        save_config_for_hf(model, path, names)
        return json.loads(Path(path).read_text("utf-8"))


def transformers_case(
    name,
    model,
    blocks,
    answer,
    *,
    preprocessor=None,
    in_memory=False,
    size=(SIZE, SIZE),
    other_size=OTHER,
    more=(),
):
    """A model of transformers, with what `save_pretrained` writes and the names in memory.

    other_size: None: no answers at another size. more: arrays of the file besides.
    """
    import_torchvision()
    from safetensors.torch import load_file

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        tensors = load_file(Path(folder) / "model.safetensors")
    config["dtype"] = "float32"  # here it computes in float64
    memory = dict(model.state_dict()) if in_memory else {}
    print("in memory:", *sorted(set(model.state_dict()) - set(tensors)), sep="\n    ")
    save(
        name,
        tensors,
        (blocks, answer),
        None if other_size is None else (blocks, answer),
        config=config,
        preprocessor=preprocessor,
        memory=memory,
        size=size,
        other_size=other_size,
        more=more,
    )


def save(
    name,
    tensors,
    own,
    other,
    *,
    config=None,
    preprocessor=None,
    asked=None,
    memory=(),
    size=(SIZE, SIZE),
    other_size=OTHER,
    more=(),
):
    """own, other: blocks and a function of images, at the model's own size and at another.

    more: arrays, or a model's blocks and function, whose logits of the own images are the array.
    """
    arrays = {f"tensors/{key}": halves(value) for key, value in tensors.items()}
    arrays |= {f"memory/{key}": halves(value) for key, value in dict(memory).items()}
    images = draw(size)
    arrays |= answers(*own, images)
    if other is not None:
        there = answers(*other, draw(other_size))
        arrays |= {f"other/{key}": value for key, value in there.items()}
    for key, value in dict(more).items():
        is_array = isinstance(value, np.ndarray)
        arrays[key] = value if is_array else answers(*value, images)["logits"]
    texts = {"config": config, "preprocessor": preprocessor, "asked": asked or {}}
    texts = {key: json.dumps(value) for key, value in texts.items() if value is not None}
    path = HERE / f"{name}.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **texts, **arrays)
    print(name, f"{path.stat().st_size / 1000:.0f} kB")
    for key, value in tensors.items():
        print("   ", key, tuple(value.shape))


def draw(size):
    """Images of (height, width), or clips of (frames, height, width)."""
    *frames, height, width = size
    return coarse(torch.randn(1, *frames, 3, height, width)).double()


def answers(blocks, answer, images):
    outputs = []
    hooks = [
        block.register_forward_hook(lambda _, __, out: outputs.append(out)) for block in blocks
    ]
    with torch.no_grad():
        found = answer(images)
    for hook in hooks:
        hook.remove()
    outputs = [out[0] if isinstance(out, tuple) else out for out in outputs]
    assert len(outputs) == len(blocks)
    found = {**{f"block_{i}": out for i, out in enumerate(outputs)}, **found}
    if "logits" not in found:
        found["logits"] = found["pooled"]
    arrays = {key: value.numpy().astype(np.float32) for key, value in found.items()}
    assert all(np.isfinite(array).all() for array in arrays.values())
    arrays["images"] = images.movedim(-3, -1).numpy().astype(np.float16)
    return arrays


def halves(tensor):
    """As float16, or as float32 where that does not hold the numbers: computed tables."""
    array = tensor.double().numpy()
    kinds = [kind for kind in (np.float16, np.float32) if np.array_equal(array.astype(kind), array)]
    return array.astype(kinds[0])
