"""Plain JPEG files read by OpenCV, as quickly as training wants them."""

import re

import numpy as np
from jaxtyping import UInt8

# Markers of ITU-T T.81, table B.1: every part of a JPEG file begins with the byte 255 and another.
JPEG_START = b"\xff\xd8"
JPEG_END, JPEG_SCAN, JPEG_CODES = 0xD9, 0xDA, 0xC4
# Within the pixels of a scan, 255 stands before 0 (a 255 of theirs) or before a restart marker.
JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def read_jpeg(
    cv2, content: bytes, size: tuple[int, int], reduced: int = 1
) -> UInt8[np.ndarray, "h w 3"] | None:
    """The pixels of a whole JPEG file, or None where OpenCV cannot read it.

    OpenCV fills what is missing of a file with grey and says so to nobody, so it gets only files
    whose parts are all there. (Of wrong bytes within a part Pillow, too, makes what it can.)

    Args:
      cv2: the library.
      content: of the file.
      size: (height, width) that its header announces.
      reduced: 1, 2, 4 or 8: sides become that many times smaller, rounded up. The decoder then
        computes that many times fewer rows and columns from each block of frequencies.
    """
    if not is_whole_jpeg(content):
        return None
    # OpenCV's flags IMREAD_REDUCED_COLOR_2, _4 and _8 are 16, 32 and 64 and colour.
    flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
    flags |= cv2.IMREAD_REDUCED_COLOR_2 // 2 * reduced if reduced > 1 else 0
    try:
        pixels = cv2.imdecode(np.frombuffer(content, np.uint8), flags)
    except cv2.error:
        return None
    shape = (-(-size[0] // reduced), -(-size[1] // reduced), 3)
    return pixels if pixels is not None and pixels.shape == shape else None


def is_whole_jpeg(content: bytes) -> bool:
    """Return whether the parts of a JPEG file follow each other as they must, up to its end."""
    if not content.startswith(JPEG_START):
        return False
    at, in_scans = len(JPEG_START), False
    while marker := JPEG_MARKER.search(content, at):
        at = marker.end()
        kind = content[at - 1]
        if kind == JPEG_END:
            return in_scans and at == len(content)
        if in_scans and kind not in (JPEG_SCAN, JPEG_CODES):
            return False  # a damaged byte that looks like a marker; OpenCV would stop there
        in_scans |= kind == JPEG_SCAN
        at += int.from_bytes(content[at : at + 2])  # the length of the part, or of its header
    return False
