"""Makes the golden files of ViTs with a stem of convolutions, by torchvision.

    python -m tests.goldens.weights.make_conv_stem

What needs to be installed, and what is in a file, stands in `make_golden.py`. Running means and
variances are random as well. `stem` is the output of the last convolution; `other/...` is the
answer and the new running statistics of one batch with `train()`.
"""

import json

import numpy as np
import torch

from tests.goldens.weights.make_golden import (
    CLASSES,
    DEPTH,
    HEADS,
    HERE,
    WIDTH,
    coarse,
    exact_halves,
    import_torchvision,
    randomise,
)

SIZE, PATCH = 16, 4


def main():
    import_torchvision()
    from torchvision.models.vision_transformer import ConvStemConfig, VisionTransformer

    torch.manual_seed(0)
    layers = ((6, 2), (6, 1), (8, 2))  # channels and stride
    model = VisionTransformer(
        image_size=SIZE,
        patch_size=PATCH,
        num_layers=DEPTH,
        num_heads=HEADS,
        hidden_dim=WIDTH,
        mlp_dim=40,
        num_classes=CLASSES,
        conv_stem_configs=[ConvStemConfig(channels, 3, stride) for channels, stride in layers],
    )
    model = model.double().eval()
    randomise(model)
    for name, parameter in model.named_parameters():
        if ".1." in name and "conv_bn_relu" in name and name.endswith("weight"):
            parameter.data = coarse(0.5 + torch.rand(parameter.shape)).double()
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.copy_(coarse(0.3 * torch.randn(buffer.shape)))
        elif name.endswith("running_var"):  # so small that the epsilon shows
            buffer.copy_(coarse(1 + 3 * torch.rand(buffer.shape)) / 64)

    arrays = {
        f"tensors/{name}": exact_halves(tensor)
        for name, tensor in model.state_dict().items()
        if tensor.ndim
    }
    arrays["tensors/conv_proj.conv_bn_relu_0.1.num_batches_tracked"] = np.float16(0)
    images = coarse(torch.randn(3, 3, SIZE, SIZE)).double()
    arrays["images"] = images.permute(0, 2, 3, 1).numpy().astype(np.float16)

    seen = {}
    model.conv_proj.register_forward_hook(lambda *call: seen.update(stem=call[2]))
    for i, layer in enumerate(model.encoder.layers):
        layer.register_forward_hook(lambda *call, i=i: seen.update({f"block_{i}": call[2]}))
    with torch.no_grad():
        logits = model(images)
        seen["stem"] = seen["stem"].permute(0, 2, 3, 1)
        arrays |= {name: out.numpy().astype(np.float32) for name, out in seen.items()}
        arrays["logits"] = logits.numpy().astype(np.float32)
        trained = model.train()(images)
    arrays["other/logits"] = trained.numpy().astype(np.float32)
    for name, buffer in model.named_buffers():
        if name.endswith(("mean", "var")):
            arrays[f"other/{name}"] = buffer.numpy().astype(np.float32)
    asked = json.dumps({"origin": "torchvision", "heads": HEADS})
    np.savez_compressed(HERE / "conv_stem.npz", asked=asked, **arrays)


if __name__ == "__main__":
    main()
