"""Image files changed at random: an image or the one error, soon, and within bounded memory."""

import faulthandler
import io
import resource
import sys
import time
import warnings

import numpy as np
import pytest
from PIL import Image

from tests.folders import INPUTS
from vit_jax.data import decode
from vit_jax.errors import DecodeError

IMAGES = INPUTS / "images"
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM", "TGA", "PCX", "SGI", "DDS", "ICO")
FORMATS += ("QOI", "JPEG2000", "MPO", "AVIF", "ICNS")
MUTATIONS = 1500


def seeds(rng):
    """Small files of all formats that can be written here."""
    files = [path.read_bytes() for path in sorted(IMAGES.iterdir())]
    files = [content for content in files if 0 < len(content) < 10_000]
    noise = Image.fromarray(rng.integers(0, 256, (24, 33, 4), np.uint8))
    for kind in FORMATS:
        for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK"):
            file = io.BytesIO()
            try:
                noise.convert("RGB").convert(mode).save(file, kind)
            except (OSError, KeyError, ValueError):
                continue
            files.append(file.getvalue())
    for dtype in (np.uint8, np.uint16, np.float32):
        file = io.BytesIO()
        np.save(file, rng.integers(0, 256, (24, 33, 5)).astype(dtype))
        files.append(file.getvalue())
    return files


def mutated(content, rng):
    """The bytes of a file after one to three accidents."""
    content = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        at, size = int(rng.integers(len(content))), int(rng.integers(1, 64))
        match rng.integers(7):
            case 0:
                content[at] ^= 1 << int(rng.integers(8))
            case 1:
                del content[max(1, at) :]
            case 2:  # two parts change places
                other = int(rng.integers(len(content)))
                first, second = content[at : at + size], content[other : other + size]
                if len(first) == len(second) == size:
                    content[at : at + size], content[other : other + size] = second, first
            case 3:  # a number of the header
                place = at % min(len(content), 400)
                number = rng.choice([0, 1, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1])
                order = ("little", "big")[rng.integers(2)]
                content[place : place + 4] = int(number).to_bytes(4, order)
            case 4:
                content[at:at] = rng.bytes(size)
            case 5:
                content[at:] = bytes(len(content) - at)
            case 6:
                del content[at : at + size]
        content = content or bytearray(1)
    return bytes(content)


@pytest.mark.slow
def test_mutated_images_are_images_or_errors_soon_and_within_bounded_memory():
    rng = np.random.default_rng(0)
    files = seeds(rng)
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(MUTATIONS):
            content = mutated(files[rng.integers(len(files))], rng)
            channels = (3, 3, None, 1, 4, 5)[rng.integers(6)]
            options = {"channels": channels, "color_management": bool(rng.integers(2))}
            options["fast"] = bool(rng.integers(2))
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.perf_counter()
            try:
                pixels = decode(content, name="it", **options)
            except DecodeError as error:
                assert "it" in str(error) and error.cause
                refused += 1
            else:
                assert pixels.dtype == np.uint8 and pixels.ndim == 3 and 0 not in pixels.shape
                assert channels is None or pixels.shape[2] == (3 if channels == 1 else channels)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            assert time.perf_counter() - start < 2, number
            assert peak - before < 1_000_000, number  # kilobytes; below Pillow's limit of pixels
    faulthandler.cancel_dump_traceback_later()
    assert 0.2 * MUTATIONS < refused < MUTATIONS
