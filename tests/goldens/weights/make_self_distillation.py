"""Makes the golden files of self-distillation: formulas of DINO in torch, and a tiny checkpoint.

    python -m tests.goldens.weights.make_self_distillation

needs torch and timm, which neither the package nor its tests need. DINO's repository is no package:
heads and loss are written here from its formulas, with torch's own weight normalisation and
cross-entropy, in float64; encoders are timm's, with positions resized as in the repository.

- `dino_full_checkpoint.pth`: what `main_dino.py` saves, a student wrapped by
  DistributedDataParallel, its teacher, the state of the loss, and more.
- `self_distillation.npz`: normalised crops, the logits of both networks, the loss, its gradient at
  some of the student's weights, and the centre after the step. `momentum`: of the teacher at each
  of 8 updates, from 0.996.

Every weight is a random multiple of 1/64.
"""

import argparse
import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.goldens.weights.make_golden import (
    GRID,
    HERE,
    PATCH,
    SIZE,
    WIDTH,
    by_scale,
    coarse,
    randomise,
    timm_vit,
)

IMAGES, LOCAL_CROPS, LOCAL_SIZE = 3, 3, 8
HIDDEN, BOTTLENECK, OUTPUTS = 12, 6, 10
STUDENT_TEMPERATURE, TEACHER_TEMPERATURE = 0.1, 0.05
UPDATES = 8


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, HIDDEN),
            nn.GELU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.GELU(),
            nn.Linear(HIDDEN, BOTTLENECK),
        )
        self.last_layer = nn.utils.weight_norm(nn.Linear(BOTTLENECK, OUTPUTS, bias=False))

    def forward(self, x):
        return self.last_layer(functional.normalize(self.mlp(x)))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = timm_vit(num_classes=0)
        self.head = Head()
        randomise(self)
        self.head.last_layer.weight_g.data = coarse(0.5 + torch.rand(OUTPUTS, 1))
        self.double()

    def forward(self, groups):
        features = [self.of_size(images) for images in groups]
        return self.head(torch.cat(features))

    def of_size(self, images):
        side = images.shape[-1] // PATCH
        if side == GRID:
            return self.backbone(images)
        table = self.backbone.pos_embed
        grid = table[:, 1:].reshape(1, GRID, GRID, -1).permute(0, 3, 1, 2)
        grid = by_scale(grid, (side, side)).permute(0, 2, 3, 1).flatten(1, 2)
        other = timm_vit(num_classes=0, img_size=side * PATCH)
        weights = dict(self.backbone.named_parameters())
        weights["pos_embed"] = torch.cat([table[:, :1], grid], 1)
        return torch.func.functional_call(other, weights, images)


def loss_of(student, teacher, center):
    """Student (all crops, images, outputs), teacher (large crops, images, outputs)."""
    losses = []
    for t, taught in enumerate(teacher):
        target = functional.softmax((taught - center) / TEACHER_TEMPERATURE, dim=-1)
        for s, given in enumerate(student):
            if s != t:
                losses.append(functional.cross_entropy(given / STUDENT_TEMPERATURE, target))
    assert len(losses) == 2 * (2 + LOCAL_CROPS) - 2
    return sum(losses) / len(losses)


def main():
    torch.manual_seed(0)
    student, teacher = Network(), Network()
    center = coarse(0.3 * torch.randn(1, OUTPUTS)).double()
    large = coarse(torch.randn(2, IMAGES, 3, SIZE, SIZE)).double()
    small = coarse(torch.randn(LOCAL_CROPS, IMAGES, 3, LOCAL_SIZE, LOCAL_SIZE)).double()

    given = student([large.flatten(0, 1), small.flatten(0, 1)]).unflatten(0, (-1, IMAGES))
    with torch.no_grad():
        taught = teacher([large.flatten(0, 1)]).unflatten(0, (-1, IMAGES))
    loss = loss_of(given, taught, center)
    loss.backward()
    after = 0.9 * center + 0.1 * taught.mean((0, 1))

    def channels_last(crops):
        return crops.permute(1, 0, 3, 4, 2).numpy().astype(np.float16)

    arrays = {
        "student": given.detach().transpose(0, 1),
        "teacher": taught.transpose(0, 1),
        "loss": loss.detach(),
        "center": after[0],
        "gradient/fc1": student.head.mlp[0].weight.grad.T,
        "gradient/last_layer": student.head.last_layer.weight_v.grad.T,
        "gradient/scale": student.head.last_layer.weight_g.grad[:, 0],
        "gradient/patch_bias": student.backbone.patch_embed.proj.bias.grad,
    }
    cosines = [(1 + math.cos(math.pi * i / UPDATES)) / 2 for i in range(UPDATES)]
    np.savez_compressed(
        HERE / "self_distillation.npz",
        global_crops=channels_last(large),
        local_crops=channels_last(small),
        momentum=np.array([1 - 0.004 * cosine for cosine in cosines]),
        **{name: array.numpy().astype(np.float32) for name, array in arrays.items()},
    )
    of_student = {f"module.{name}": x.float() for name, x in student.state_dict().items()}
    checkpoint = {
        "student": of_student,
        "teacher": {name: x.float() for name, x in teacher.state_dict().items()},
        "optimizer": {"state": {}, "param_groups": [{"lr": 1e-3}]},
        "epoch": 1,
        "args": argparse.Namespace(arch="vit_small", out_dim=OUTPUTS),
        "dino_loss": {"center": center.float()},
    }
    torch.save(checkpoint, HERE / "dino_full_checkpoint.pth")
    print(loss.item(), *sorted(checkpoint["teacher"]), sep="\n")


if __name__ == "__main__":
    main()
