"""Makes the golden file of ViT-5, under the names of its authors' files.

    python -m tests.goldens.weights.modern.make_vit5

ViT-5's own repository is no package; the model here is written after its description (registers
behind the patches, both with rotary embeddings, RMS norms everywhere, of queries and keys too) with
torch's layers. `common.py` says what is in a file. The other size is square: theirs has no other.
"""

import torch
from torch import nn
from torch.nn import functional as F

from tests.goldens.weights.modern.common import (
    CLASSES,
    DEPTH,
    HEADS,
    PATCH,
    SIZE,
    WIDTH,
    randomise,
    save,
)

REGISTERS = 4  # two rows of two
OTHER = (24, 24)
EPSILON = 1e-6
HEAD = WIDTH // HEADS


class RMSNorm(nn.RMSNorm):
    def __init__(self, width):
        super().__init__(width, eps=EPSILON)


class Rotary(nn.Module):
    """The first half of the channels turns by the row, the second by the column, in pairs."""

    def __init__(self, theta):
        super().__init__()
        self.register_buffer("freqs", theta ** -(torch.arange(HEAD // 4) / (HEAD // 4)).float())

    def forward(self, x):
        side = round(x.shape[1] ** 0.5)
        rows, columns = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
        turns = torch.stack([rows, columns], -1).reshape(-1, 2, 1) * self.freqs
        turn = torch.polar(torch.ones_like(turns), turns).reshape(-1, 1, HEAD // 2)
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], HEAD // 2, 2))
        return torch.view_as_real(pairs * turn).reshape(x.shape)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.rope = Rotary(10_000.0)
        self.rope_reg = Rotary(100.0)
        self.q_norm = RMSNorm(HEAD)
        self.k_norm = RMSNorm(HEAD)

    def turned(self, x):
        front, patches, registers = x[:, :1], x[:, 1:-REGISTERS], x[:, -REGISTERS:]
        return torch.cat([front, self.rope(patches), self.rope_reg(registers)], 1)

    def forward(self, x):
        q, k, v = self.qkv(x).reshape(*x.shape[:2], 3, HEADS, HEAD).unbind(2)
        q, k = self.turned(self.q_norm(q)), self.turned(self.k_norm(k))
        mixed = F.scaled_dot_product_attention(*(y.transpose(1, 2) for y in (q, k, v)))
        return self.proj(mixed.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(WIDTH), RMSNorm(WIDTH)
        self.attn, self.mlp = Attention(), Mlp()
        self.gamma_1, self.gamma_2 = (nn.Parameter(torch.empty(WIDTH)) for _ in range(2))

    def forward(self, x):
        x = x + self.gamma_1 * self.attn(self.norm1(x))
        return x + self.gamma_2 * self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, WIDTH, PATCH, PATCH)


class ViT5(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = PatchEmbed()
        self.cls_token = nn.Parameter(torch.empty(1, 1, WIDTH))
        self.reg_token = nn.Parameter(torch.empty(1, REGISTERS, WIDTH))
        self.pos_embed = nn.Parameter(torch.empty(1, (SIZE // PATCH) ** 2, WIDTH))
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def positions(self, grid):
        """Resized by the call of torch that stands in the authors' main.py."""
        side = SIZE // PATCH
        if grid == (side, side):
            return self.pos_embed
        table = self.pos_embed.reshape(1, side, side, -1).permute(0, 3, 1, 2)
        table = F.interpolate(table, size=grid, mode="bicubic", align_corners=False)
        return table.permute(0, 2, 3, 1).flatten(1, 2)

    def forward(self, images):
        patches = self.patch_embed.proj(images)
        x = patches.flatten(2).transpose(1, 2) + self.positions(tuple(patches.shape[2:]))
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)
        x = torch.cat([x, self.reg_token.expand(len(x), -1, -1)], 1)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return {"tokens": x, "pooled": x[:, 0], "logits": self.head(x[:, 0])}


def main():
    torch.manual_seed(0)
    model = randomise(ViT5().eval()).double()
    own = (model.blocks, model)
    save("vit5/original", model.state_dict(), own, own, other_size=OTHER, asked={"heads": HEADS})


if __name__ == "__main__":
    main()
