"""Makes the golden files of SigLIP 2 NaFlex that `make_towers.py` has not.

    python -m tests.goldens.weights.modern.make_siglip2

`siglip2/two_towers.npz` has both towers as published files have them, and of sequences of patches
(`patches`, `grid`) the `tokens` and what the image tower calls its pooled output. `sizes.json` has
height and width of images, the patch, the budget, and the height and width to which transformers'
processor resizes; `processed.npz` images of random pixels, and what that processor makes of them.
"""

import json
import random
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.peers import import_torchvision
from tests.goldens.weights.modern.common import (
    DEPTH,
    GRID,
    HEADS,
    HERE,
    PATCH,
    WIDTH,
    coarse,
    halves,
    randomise,
)

BUDGET = 15
GRIDS = ((3, 4), (2, 7), (1, 15))  # the last has no padding
VISION = {
    "hidden_size": WIDTH,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": HEADS,
    "intermediate_size": 40,
    "patch_size": PATCH,
    "num_patches": GRID * GRID,
}
TEXT = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "intermediate_size": 8,
    "vocab_size": 8,
    "max_position_embeddings": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def main():
    import_torchvision()
    for number, make in enumerate((two_towers, sizes, processed)):
        torch.manual_seed(number)
        make()


def two_towers():
    from safetensors.torch import load_file
    from transformers import Siglip2Config, Siglip2Model

    config = Siglip2Config(vision_config=VISION, text_config=TEXT)
    model = randomise(Siglip2Model(config).double().eval())
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text("utf-8"))
        tensors = load_file(Path(folder) / "model.safetensors")
    patches = coarse(torch.randn(len(GRIDS), BUDGET, PATCH * PATCH * 3)).double()
    grid = torch.tensor(GRIDS)
    mask = torch.arange(BUDGET) < grid.prod(-1, keepdim=True)
    with torch.no_grad():
        found = model.vision_model(patches, mask, grid)
    arrays = {f"tensors/{key}": halves(value) for key, value in tensors.items()}
    arrays |= {"patches": patches.numpy().astype(np.float16), "grid": grid.numpy()}
    arrays["tokens"] = found.last_hidden_state.numpy().astype(np.float32)
    arrays["pooled"] = found.pooler_output.numpy().astype(np.float32)
    path = HERE / "siglip2" / "two_towers.npz"
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, config=json.dumps(config), asked="{}", **arrays)
    print(path, f"{path.stat().st_size / 1000:.0f} kB")


def sizes():
    """Random sizes, and extreme ones."""
    from transformers.models.siglip2.image_processing_siglip2 import (
        get_image_size_for_max_num_patches as target_size,
    )

    random.seed(0)
    cases = [(1, 1), (1, 5000), (5000, 1), (256, 256), (255, 257), (16, 16), (640, 480), (4096, 16)]
    cases += [(random.randint(1, 3000), random.randint(1, 3000)) for _ in range(150)]
    cases += [(random.randint(1, 64), random.randint(1, 64)) for _ in range(50)]
    rows = []
    for height, width in cases:
        for patch, budget in ((16, 256), random.choice(((14, 729), (32, 49), (16, 1), (4, 20)))):
            rows.append((height, width, patch, budget, *target_size(height, width, patch, budget)))
    (HERE / "siglip2" / "sizes.json").write_text(json.dumps(rows) + "\n", "utf-8")


def processed():
    """By the processor that resizes with Pillow."""
    from PIL import Image
    from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

    process = Siglip2ImageProcessorPil(patch_size=PATCH, max_num_patches=BUDGET)
    rng = np.random.default_rng(0)
    arrays = {}
    for number, size in enumerate(((9, 31), (40, 23), (4, 60))):
        image = rng.integers(0, 256, (*size, 3), np.uint8)
        found = process(Image.fromarray(image), return_tensors="np")
        arrays[f"image_{number}"] = image
        arrays[f"patches_{number}"] = found["pixel_values"][0].astype(np.float32)
        arrays[f"grid_{number}"] = np.asarray(found["spatial_shapes"][0])
    np.savez_compressed(HERE / "siglip2" / "processed.npz", **arrays)


if __name__ == "__main__":
    main()
