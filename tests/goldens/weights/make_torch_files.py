"""Makes the torch files of test_torch_file.py: small ones, of every form that torch writes.

    python -m tests.goldens.weights.make_torch_files

needs torch, which neither the package nor its tests need. The values are counted out (0, 1, 2,
...), so that the tests say by hand what must come back.

- windows.pt: tensors of every dtype, and those that are windows on a storage: transposed, strided,
  shared, expanded, of no axis and of no element.
- training.pth: what a training script saves around two sets of weights.
- legacy.pth: the windows, and a part of the training, in the format before torch 1.6.
- subclass.pt: parameters with attributes of their own.
"""

import argparse
import collections
import io
import pickle
import pickletools
from pathlib import Path

import numpy as np
import torch
from torch import nn

HERE = Path(__file__).parent

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "uint16": torch.uint16,
    "bool": torch.bool,
    "complex64": torch.complex64,
}


def main():
    torch.save({**dtypes(), **windows()}, HERE / "windows.pt")
    torch.save(training(), HERE / "training.pth")
    save_legacy({"model": windows(), "args": argparse.Namespace(lr=1e-3)}, HERE / "legacy.pth")
    parameter = nn.Parameter(torch.arange(3.0))
    parameter.comment = "an attribute"
    torch.save({"weight": parameter}, HERE / "subclass.pt")


def dtypes():
    return {name: torch.arange(4).to(dtype) for name, dtype in DTYPES.items()}


def windows():
    table = torch.arange(12.0).reshape(3, 4)
    return {
        "whole": table,
        "transposed": table.t(),
        "second_row": table[1],
        "every_other": table[:, ::2],
        "expanded": torch.arange(3.0)[:, None].expand(3, 2),
        "channels_last": torch.arange(24.0)
        .reshape(1, 2, 3, 4)
        .contiguous(memory_format=torch.channels_last),
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 3),
        "parameter": nn.Parameter(torch.arange(3.0)),
    }


def training():
    """As the training scripts of DeiT, MAE and DINO save: weights, and whatever was at hand."""
    layer = nn.Linear(2, 1)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(3.0)
    wrapped = nn.DataParallel(layer)
    optimizer = torch.optim.AdamW(wrapped.parameters())
    wrapped(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 2.0]]))
        layer.bias.fill_(3.0)
    averaged = torch.optim.swa_utils.AveragedModel(layer)
    return {
        "model": wrapped.state_dict(),
        "model_ema": averaged.state_dict(),
        "optimizer": optimizer.state_dict(),
        "epoch": 3,
        "args": argparse.Namespace(
            model="deit_tiny_patch16_224",
            output_dir=Path("out"),
            device=torch.device("cpu"),
            betas=(0.9, 0.999),
            milestones=collections.Counter([30, 60]),
            tags={"a"},
        ),
        "best": np.float64(71.5),
        "history": np.arange(3),
        "rng_state": torch.arange(4, dtype=torch.uint8),
        "dino_loss": {"center": torch.zeros(1, 2)},
    }


def save_legacy(tree, path):
    """Storages of the older format are named by their place in memory; here they are counted.

    The file is three short pickles, the description of the tree, the list of the names in their
    order, and the storages in the same order: the number of elements, and the elements (all are
    float32 here).
    """
    file = io.BytesIO()
    torch.save(tree, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    for _ in range(4):
        list(pickletools.genops(file))
    description = file.getvalue()[: file.tell()]
    storages = {}
    for name in pickle.load(file):
        count = file.read(8)
        storages[name] = count + file.read(4 * int.from_bytes(count, "little"))
    order = sorted(storages, key=lambda name: description.index(name.encode()))
    for place, name in enumerate(order):
        counted = str(place).zfill(len(name))
        description = description.replace(name.encode(), counted.encode())
    names = [str(place).zfill(len(name)) for place, name in enumerate(order)]
    rest = b"".join(storages[name] for name in order)
    path.write_bytes(description + pickle.dumps(names, protocol=2) + rest)


if __name__ == "__main__":
    main()
