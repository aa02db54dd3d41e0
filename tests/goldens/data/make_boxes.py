"""Make boxes.json: where torchvision moves a box and a mask; needs torch and torchvision.

    python -m tests.goldens.data.make_boxes

The outline and the box are those of the quokka in imgaug's wheel (`quokka_annotations.json`, MIT),
at a tenth of their size; the picture itself is not here.
"""

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from benchmarks.peers import import_torchvision

import_torchvision()
import torch  # noqa: E402
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import InterpolationMode  # noqa: E402
from torchvision.transforms.v2 import functional as F  # noqa: E402

SIZE = (64, 96)
BOX = [14.8, 5.0, 55.0, 64.0]
X = (
    "422 435 435 422 451 468 474 474 515 541 548 547 532 235 208 188 177 159 151 154 155 147 143"
    " 145 170 181 182 163 154 155 172 205 244 279 307 345 375 403"
)
Y = (
    "56 66 111 158 233 298 355 374 395 467 499 559 641 641 608 574 535 493 466 432 389 363 329 289"
    " 237 186 168 144 115 84 69 60 62 66 71 61 60 50"
)
OUTLINE = [(int(x) / 10, int(y) / 10) for x, y in zip(X.split(), Y.split(), strict=True)]
CASES = {
    "flip": lambda it: F.horizontal_flip(it),
    "flip_vertical": lambda it: F.vertical_flip(it),
    "crop": lambda it: F.resized_crop(
        it, 20, 30, 40, 48, [32, 32], interpolation=InterpolationMode.NEAREST, antialias=False
    ),
    "turn": lambda it: F.affine(it, angle=20.0, translate=[5, -3], scale=0.8, shear=[0.0, 0.0]),
}


def main() -> None:
    drawn = Image.new("L", SIZE[::-1])
    ImageDraw.Draw(drawn).polygon(OUTLINE, fill=1)
    mask = np.array(drawn)
    found = {"mask": packed(mask), "box": BOX, "cases": {}}
    for name, change in CASES.items():
        boxes = tv_tensors.BoundingBoxes([BOX], format="XYXY", canvas_size=SIZE)
        moved = change(tv_tensors.Mask(torch.from_numpy(mask))).numpy()
        found["cases"][name] = {
            "box": [round(side, 4) for side in F.clamp_bounding_boxes(change(boxes))[0].tolist()],
            "mask": packed(moved),
        }
    text = json.dumps(found, indent=1)
    Path(__file__).with_name("boxes.json").write_text(text + "\n", encoding="utf-8")


def packed(mask: np.ndarray) -> list[str]:
    """Return the rows of a mask as hexadecimal numbers."""
    return [np.packbits(row).tobytes().hex() for row in mask]


if __name__ == "__main__":
    main()
