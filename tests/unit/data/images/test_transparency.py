"""Transparency of files written byte by byte, against the rules of their formats."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import decode

RED, GREEN = (200, 30, 40), (20, 180, 60)
COLOURS = [RED, GREEN]  # of the two pixels of most files here


def pixels_of(content):
    """The pixels of an image of one row, as tuples; also read from a Pillow image, and again."""
    opened = Image.open(io.BytesIO(content))
    for image in (opened, opened):
        np.testing.assert_array_equal(decode(image), decode(content))
    return list(map(tuple, decode(content)[0].tolist()))


def bgra(colours, alphas):
    return b"".join(bytes((*colour[::-1], a)) for colour, a in zip(colours, alphas, strict=True))


def on_white(colour, alpha):
    return tuple(round((level * alpha + 255 * (255 - alpha)) / 255) for level in colour)


def assert_near(found, expected, levels=1):
    assert np.abs(np.subtract(found, expected)).max() <= levels, (found, expected)


# ------------------------------------------------------------------------------------------- TGA


def tga(pixels, alpha_bits, *, kind=2, depth=32, colour_map=b"", attributes=None):
    """A TGA of 2 x 1 pixels; `attributes` is the type of alpha in the extension area."""
    entries = len(colour_map) // 4
    header = struct.pack("<BBBHHBHHHHBB", 0, bool(entries), kind, 0, entries, 32, 0, 0, 2, 1,
                         depth, 0x20 | alpha_bits)  # fmt: skip
    content = header + colour_map + pixels
    if attributes is not None:
        end = struct.pack("<II18s", len(content), 0, b"TRUEVISION-XFILE.\0")
        content += struct.pack("<H", 495) + bytes(492) + bytes([attributes]) + end
    return content


@pytest.mark.parametrize("alphas", [(0, 0), (0, 255), (7, 130)])
def test_a_tga_without_alpha_bits_shows_all_colours(alphas):
    assert pixels_of(tga(bgra(COLOURS, alphas), 0)) == COLOURS


def test_a_run_length_coded_tga_without_alpha_bits_shows_all_colours():
    packets = b"\x01" + bgra(COLOURS, (0, 0))  # two pixels as they are
    assert pixels_of(tga(packets, 0, kind=10)) == COLOURS


def test_a_tga_with_alpha_bits_is_transparent_where_it_says_so():
    assert pixels_of(tga(bgra(COLOURS, (0, 255)), 8)) == [(255, 255, 255), GREEN]


def test_a_tga_whose_alpha_is_zero_everywhere_was_never_given_one():
    assert pixels_of(tga(bgra(COLOURS, (0, 0)), 8)) == COLOURS


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_a_tga_whose_alpha_is_said_to_be_undefined_shows_all_colours(kind):
    assert pixels_of(tga(bgra(COLOURS, (0, 255)), 8, attributes=kind)) == COLOURS


def test_a_tga_of_premultiplied_alpha_is_laid_on_white_as_such():
    half = tuple(round(level * 128 / 255) for level in RED)
    found = pixels_of(tga(bgra([half, GREEN], (128, 255)), 8, attributes=4))
    assert_near(found[0], [level + 127 for level in half], 2)
    assert found[1] == GREEN


def test_a_grey_or_palette_tga_without_alpha_bits_shows_all_colours():
    assert pixels_of(tga(bytes([70, 0, 90, 0]), 0, kind=3, depth=16)) == [(70,) * 3, (90,) * 3]
    colour_map = bgra(COLOURS, (0, 0))
    for bits in (0, 8):
        found = pixels_of(tga(bytes([0, 1]), bits, kind=1, depth=8, colour_map=colour_map))
        assert found == COLOURS


def test_a_tga_of_15_bits_without_alpha_bits_shows_all_colours():
    red, green = 31 << 10, 31 << 5  # with and without the bit of alpha, which means nothing
    found = pixels_of(tga(struct.pack("<HH", red, green | 1 << 15), 0, depth=16))
    assert found == [(255, 0, 0), (0, 255, 0)]


# ------------------------------------------------------------------------------- BMP, ICO and DDS


def bmp(pixels, masks=None):
    """A BMP of 2 x 1 pixels of 32 bits: version 3, or version 5 with masks of red to alpha."""
    size = 124 if masks else 40
    header = struct.pack("<IiiHHIIiiII", size, 2, 1, 1, 32, 3 if masks else 0, 8, 0, 0, 0, 0)
    header += struct.pack("<4I", *masks) + bytes(size - 56) if masks else b""
    return b"BM" + struct.pack("<III", 22 + size, 0, 14 + size) + header + pixels


MASKS = (0xFF0000, 0xFF00, 0xFF, 0xFF000000)


def test_the_fourth_byte_of_a_plain_bmp_means_nothing():
    for alphas in ((0, 0), (0, 255), (128, 3)):
        assert pixels_of(bmp(bgra(COLOURS, alphas))) == COLOURS


def test_a_bmp_with_a_mask_for_alpha_has_one_unless_it_is_zero_everywhere():
    assert pixels_of(bmp(bgra(COLOURS, (0, 255)), MASKS)) == [(255, 255, 255), GREEN]
    assert_near(pixels_of(bmp(bgra(COLOURS, (128, 255)), MASKS))[0], on_white(RED, 128))
    assert pixels_of(bmp(bgra(COLOURS, (0, 0)), MASKS)) == COLOURS
    assert pixels_of(bmp(bgra(COLOURS, (0, 255)), (*MASKS[:3], 0))) == COLOURS


def test_an_icon_whose_alpha_is_zero_everywhere_shows_its_colours():
    def icon(alphas):
        header = struct.pack("<IiiHHIIiiII", 40, 2, 2, 1, 32, 0, 0, 0, 0, 0, 0)
        image = header + bgra(COLOURS, alphas) + bytes(4)  # and a mask that hides nothing
        entry = struct.pack("<BBBBHHII", 2, 1, 0, 0, 1, 32, len(image), 22)
        return struct.pack("<HHH", 0, 1, 1) + entry + image

    assert pixels_of(icon((0, 0))) == COLOURS
    assert pixels_of(icon((0, 255))) == [(255, 255, 255), GREEN]


def dds(pixels, flags, alpha_mask=0xFF000000, mode=None):
    """A DDS of 2 x 1 pixels of 32 bits; `mode` is the alpha mode of the header of DirectX 10."""
    form = (32, flags, b"\0" * 4, 32, 0xFF0000, 0xFF00, 0xFF, alpha_mask)
    extra = b""
    if mode is not None:
        form = (32, 4, b"DX10", 0, 0, 0, 0, 0)
        extra = struct.pack("<5I", 28, 3, 0, 1, mode)  # R8G8B8A8_UNORM
    header = struct.pack("<7I44x", 124, 0x1007, 1, 2, 8, 0, 0)
    return (
        b"DDS "
        + header
        + struct.pack("<II4s5I", *form)
        + struct.pack("<5I", 0x1000, 0, 0, 0, 0)
        + extra
        + pixels
    )


def test_a_dds_has_the_alpha_that_its_header_speaks_of():
    rgb, rgb_and_alpha = 0x40, 0x41
    assert pixels_of(dds(bgra(COLOURS, (0, 0)), rgb)) == COLOURS
    assert pixels_of(dds(bgra(COLOURS, (0, 0)), rgb_and_alpha)) == COLOURS
    assert pixels_of(dds(bgra(COLOURS, (0, 255)), rgb_and_alpha)) == [(255, 255, 255), GREEN]
    rgba = bytes((*RED, 0, *GREEN, 255))
    straight, premultiplied, opaque = 1, 2, 3
    assert pixels_of(dds(rgba, 0, mode=straight)) == [(255, 255, 255), GREEN]
    assert pixels_of(dds(rgba, 0, mode=opaque)) == COLOURS
    half = tuple(round(level * 128 / 255) for level in RED)
    found = pixels_of(dds(bytes((*half, 128, *GREEN, 255)), 0, mode=premultiplied))
    assert_near(found, [[level + 127 for level in half], GREEN], 2)


# ------------------------------------------------------------------------------- TIFF, PSD, WebP


def tiff(samples, bits=8, extra=None, photometric=2, pixels=2):
    """An uncompressed TIFF of one row; `extra` is the value of the tag ExtraSamples."""
    count = len(samples) * 8 // bits // pixels
    widths = struct.pack("<HHHH", *(bits,) * 4)[: 2 * count]
    offset = 8 + len(widths) + len(samples)
    tags = [(256, 4, 1, pixels), (257, 4, 1, 1), (259, 3, 1, 1), (262, 3, 1, photometric)]
    tags += [(258, 3, count, 8 if count > 2 else struct.unpack("<I", widths.ljust(4, b"\0"))[0])]
    tags += [(273, 4, 1, 8 + len(widths)), (277, 3, 1, count), (278, 4, 1, 1)]
    tags += [(279, 4, 1, len(samples))]
    tags += [] if extra is None else [(338, 3, 1, extra)]
    directory = b"".join(struct.pack("<HHII", *tag) for tag in sorted(tags))
    return (b"II*\0" + struct.pack("<I", offset) + widths + samples
            + struct.pack("<H", len(tags)) + directory + bytes(4))  # fmt: skip


def test_the_extra_samples_of_a_tiff_are_what_its_tag_says():
    hidden = bytes((*RED, 0, *GREEN, 255))
    unspecified, associated, unassociated = 0, 1, 2
    assert pixels_of(tiff(hidden, extra=unspecified)) == COLOURS
    assert pixels_of(tiff(hidden, extra=unassociated)) == [(255, 255, 255), GREEN]
    half = tuple(round(level * 128 / 255) for level in RED)
    found = pixels_of(tiff(bytes((*half, 128, *GREEN, 255)), extra=associated))
    assert_near(found, [[level + 127 for level in half], GREEN], 2)


def test_a_tiff_that_is_all_transparent_is_so_only_if_it_says_that_it_has_alpha():
    hidden = bytes((*RED, 0, *GREEN, 0))
    assert pixels_of(tiff(hidden)) == COLOURS
    assert pixels_of(tiff(hidden, extra=2)) == [(255, 255, 255)] * 2


def test_a_tiff_of_grey_on_white_is_inverted_at_any_depth():
    white_is_zero = 0
    assert pixels_of(tiff(bytes([0, 200]), 8, None, white_is_zero)) == [(255,) * 3, (55,) * 3]
    deep = struct.pack("<HH", 0, 200 * 257)
    assert pixels_of(tiff(deep, 16, None, white_is_zero)) == [(255,) * 3, (55,) * 3]


def test_12_bits_of_a_tiff_are_scaled_from_4095():
    packed = bytes([0xFF, 0xF7, 0xFF])  # 4095 and 2047
    assert pixels_of(tiff(packed, 12, None, 1)) == [(255,) * 3, (127,) * 3]  # 127.47


def psd(layers):
    """A Photoshop file of four channels; of so many layers, or without any layer information."""
    planes = b"".join(bytes(plane) for plane in zip(*COLOURS, strict=True)) + bytes([0, 255])
    header = struct.pack(">4sH6xHIIHH", b"8BPS", 1, 4, 1, 2, 8, 3)
    info = b"" if layers is None else struct.pack(">Ih", 2, layers)
    return header + struct.pack(">III", 0, 0, len(info)) + info + struct.pack(">H", 0) + planes


def test_the_fourth_channel_of_photoshop_is_transparency_only_if_layers_are_merged_with_it():
    assert pixels_of(psd(-1)) == [(255, 255, 255), GREEN]
    assert pixels_of(psd(1)) == COLOURS
    assert pixels_of(psd(None)) == COLOURS


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_what_is_meant_to_be_transparent_stays_so(kind):
    file = io.BytesIO()
    pixels = np.array([[(*RED, 0), (*GREEN, 0)]], np.uint8)
    Image.fromarray(pixels).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert pixels_of(file.getvalue()) == [(255, 255, 255)] * 2


# --------------------------------------------------------------------------- key colours of PNG


def png(bits, colour_type, row, width, *chunks):
    header = struct.pack(">IIBBBBB", width, 1, bits, colour_type, 0, 0, 0)
    parts = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(b"\0" + row)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


GREY, RGB, PALETTE = 0, 2, 3
ALL_GREYS = {1: b"\x40", 2: b"\x1b", 4: bytes.fromhex("0123456789abcdef"), 8: bytes(range(256))}


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_every_grey_can_be_the_key_colour(bits):
    """Levels v of b bits are 255 v / (2^b - 1), and white where v is the key, at its own scale."""
    levels = 2**bits
    for key in range(0, levels, 1 if bits < 8 else 51):
        content = png(bits, GREY, ALL_GREYS[bits], levels, (b"tRNS", struct.pack(">H", key)))
        expected = [255 if v == key else v * 255 // (levels - 1) for v in range(levels)]
        assert pixels_of(content) == [(level,) * 3 for level in expected]


def test_bits_of_a_key_above_the_depth_are_ignored():
    for bits in (2, 4, 8):
        key = struct.pack(">H", 1 + 2**bits)
        found = pixels_of(png(bits, GREY, ALL_GREYS[bits], 2**bits, (b"tRNS", key)))
        assert found[1] == (255, 255, 255) and found[0] == (0, 0, 0) and found[2] != (255,) * 3
    row = bytes((*RED, *GREEN))
    key = struct.pack(">3H", *(256 + level for level in RED))
    assert pixels_of(png(8, RGB, row, 2, (b"tRNS", key))) == [(255, 255, 255), GREEN]


def test_all_16_bits_of_a_key_count():
    grey = struct.pack(">3H", 20000, 20001, 20255)  # all 78 in 8 bits
    found = pixels_of(png(16, GREY, grey, 3, (b"tRNS", struct.pack(">H", 20001))))
    assert [level for level, _, _ in found] == [78, 255, 79]  # 77.8, the key, 78.8
    colours = struct.pack(">6H", 0x1234, 0x5678, 0x9ABC, 0x1234, 0x5678, 0x9ABD)
    for pixel in range(2):
        key = colours[6 * pixel :][:6]
        found = pixels_of(png(16, RGB, colours, 2, (b"tRNS", key)))
        assert found[pixel] == (255, 255, 255) and found[1 - pixel] == (0x12, 0x56, 0x9A)
    absent = struct.pack(">3H", 0x1234, 0x5678, 0x9A00)
    assert pixels_of(png(16, RGB, colours, 2, (b"tRNS", absent))) == [(0x12, 0x56, 0x9A)] * 2


@pytest.mark.parametrize("bits, row", [(1, b"\x40"), (2, b"\x10"), (4, b"\x01"), (8, b"\0\1")])
def test_entries_of_a_palette_are_as_transparent_as_they_say(bits, row):
    palette = (b"PLTE", bytes((*RED, *GREEN)))
    for alphas in ((0, 255), (255, 0), (0, 0), (128, 255), (0,)):
        found = pixels_of(png(bits, PALETTE, row, 2, palette, (b"tRNS", bytes(alphas))))
        both = (*alphas, 255)[:2]
        assert_near(found, [on_white(c, a) for c, a in zip(COLOURS, both, strict=True)])
