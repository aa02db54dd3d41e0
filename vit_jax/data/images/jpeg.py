"""Fast decoding of plain JPEG files by OpenCV for training."""

import re

import numpy as np
from jaxtyping import UInt8

# Markers of ITU-T T.81, table B.1: every segment of a JPEG file begins with byte 255 and a code.
JPEG_START = b"\xff\xd8"
JPEG_END, JPEG_SCAN, JPEG_CODES = 0xD9, 0xDA, 0xC4
# Within the data of a scan, 255 is followed by 0 (a data byte 255) or by a restart code.
JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")


def read_jpeg(
    cv2, content: bytes, size: tuple[int, int], reduced: int = 1
) -> UInt8[np.ndarray, "h w 3"] | None:
    """Decode a complete JPEG file; return None if OpenCV cannot read it.

    OpenCV fills missing parts of a file with grey without an error, so it gets only files with all
    segments. (Pillow, too, decodes wrong bytes within a segment without an error.)

    Args:
      cv2: the library.
      content: of the file.
      size: (height, width) in its header.
      reduced: 1, 2, 4 or 8: divisor of the sides, rounded up. The decoder then computes only that
        fraction of the rows and columns of each block.
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
    """Return whether the segments of a JPEG file are valid and complete up to its end."""
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
        at += int.from_bytes(content[at : at + 2])  # length of the segment, or of its header
    return False
