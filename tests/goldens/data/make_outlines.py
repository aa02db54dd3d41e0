"""Make outlines.json: what pycocotools makes of polygons and masks; needs pycocotools.

python tests/goldens/data/make_outlines.py
"""

import json
from pathlib import Path

import numpy as np
from pycocotools import mask as coco

SIZE = (40, 56)
POLYGONS = {
    "square": [[10, 5, 30, 5, 30, 25, 10, 25]],
    "slanted": [[3.5, 2.25, 50.75, 12.5, 44.0, 36.0, 8.25, 30.5]],
    "two parts": [[1, 1, 12, 1, 12, 9], [30, 20, 50, 20, 50, 38, 30, 38]],
}


def main() -> None:
    rng = np.random.RandomState(0)
    masks = {
        "noise": rng.uniform(size=SIZE) < 0.3,
        "blob": np.hypot(*np.meshgrid(np.arange(40) - 22, np.arange(56) - 30, indexing="ij")) < 15,
        "empty": np.zeros(SIZE, bool),
        "full": np.ones(SIZE, bool),
    }
    found = {"size": SIZE, "packed": {}, "polygons": {}}
    for name, mask in masks.items():
        packed = coco.encode(np.asfortranarray(mask.astype(np.uint8)))
        found["packed"][name] = {"counts": packed["counts"].decode(), "mask": bits(mask)}
    for name, polygons in POLYGONS.items():
        drawn = coco.decode(coco.merge(coco.frPyObjects(polygons, *SIZE)))
        found["polygons"][name] = {"polygons": polygons, "mask": bits(drawn)}
    Path(__file__).with_name("outlines.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


def bits(mask: np.ndarray) -> str:
    """Return the pixels of a mask, row by row, as a hexadecimal number."""
    return np.packbits(mask.astype(bool)).tobytes().hex()


if __name__ == "__main__":
    main()
