"""Images of any number of channels: `.npy` files, arrays, TIFF and images with alpha."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import decode
from vit_jax.data.images import multichannel
from vit_jax.errors import DecodeError

LEVELS = np.arange(2 * 3 * 5, dtype=np.uint8).reshape(2, 3, 5) * 8


def npy(pixels, **options):
    file = io.BytesIO()
    np.save(file, pixels, **options)
    return file.getvalue()


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_channels_of_an_npy_file_are_kept_as_they_are(channels, tmp_path):
    pixels = LEVELS[:, :, :channels]
    np.save(tmp_path / "a.npy", pixels)
    for image in (tmp_path / "a.npy", npy(pixels), npy(np.asfortranarray(pixels)), pixels):
        found = decode(image, channels=channels)
        np.testing.assert_array_equal(found, pixels)
        assert found.flags.c_contiguous and found.flags.owndata and found.flags.writeable


@pytest.mark.parametrize(
    "pixels, expected",
    [
        (np.array([0, 257, 25700, 65535], np.uint16), [0, 1, 100, 255]),  # divided by 257
        (np.array([0, 0.2, 1], np.float32), [0, 51, 255]),
        (np.array([0, 0.2, 1], ">f8"), [0, 51, 255]),
        (np.array([0, 51, 255], np.float64), [0, 51, 255]),
        (np.array([0, 0.2, 1], np.float16), [0, 51, 255]),
        (np.array([False, True]), [0, 255]),
    ],
)
def test_depths_are_scaled_as_documented(pixels, expected):
    grey = decode(npy(pixels[None]))
    assert grey.shape == (1, len(pixels), 3) and grey[0, :, 1].tolist() == expected
    two = decode(npy(np.stack([pixels, pixels[::-1]], axis=-1)[None]), channels=2)
    assert two[0, :, 0].tolist() == expected and two[0, :, 1].tolist() == expected[::-1]


def test_an_npy_file_of_three_or_four_channels_is_rgb_with_or_without_alpha():
    colours = LEVELS[:, :, :3]
    np.testing.assert_array_equal(decode(npy(colours)), colours)
    hidden = np.dstack([colours, np.zeros((2, 3), np.uint8)])
    assert np.all(decode(npy(hidden)) == 255)  # laid on white
    np.testing.assert_array_equal(decode(npy(hidden), channels=4), hidden)


class Trap:
    """An object that is noticed when it is unpickled."""

    def __reduce__(self):
        return exec, ("raise SystemExit('unpickled')",)


@pytest.mark.parametrize(
    "content, cause",
    [
        (npy(np.array([Trap()], object), allow_pickle=True), "Python objects.*never unpickled"),
        (npy(LEVELS)[:-1], "specifies .2, 3, 5. numbers of 1 bytes each, but 29 bytes follow"),
        (npy(LEVELS) + b"x", "but 31 bytes follow"),
        (npy(LEVELS).replace(b"(2, 3, 5)", b"(9**9,5)"), "."),
        (npy(LEVELS).replace(b"(2, 3, 5)", b"(9999,99)"), "specifies .9999, 99. numbers"),
        (npy(LEVELS.astype(np.int64)), "int64; they must be bool, uint8, uint16 or float"),
        (npy(LEVELS.astype(complex)), "complex128"),
        (npy(-LEVELS.astype(np.float32)), "from -232.0 to -?0.0"),
        (npy(np.full((1, 1, 5), np.nan)), "from nan to nan"),
        (npy(LEVELS[:, :, 0].reshape(-1)), "shape is .6,., but pixels must be"),
        (npy(LEVELS[None]), "shape is .1, 2, 3, 5."),
        (npy(LEVELS[:0]), "shape is .0, 3, 5."),
        (b"\x93NUMPY\3\0" + npy(LEVELS)[8:], "version"),
        (b"\x93NUMPY", "."),
    ],
)
def test_other_npy_files_are_told_in_a_sentence(content, cause):
    with pytest.raises(DecodeError, match=cause):
        decode(content, name="it", channels=5)


def test_other_numbers_of_channels_are_told_with_the_key():
    with pytest.raises(DecodeError, match=r"shape is .2, 3, 5.*data.channels=5"):
        decode(npy(LEVELS))
    with pytest.raises(DecodeError, match=r"shape is .2, 3, 5.*h, w, 4"):
        decode(npy(LEVELS), channels=4)
    assert decode(npy(LEVELS), channels=None).shape == (2, 3, 5)
    assert decode(npy(LEVELS[:, :, :4]), channels=None).shape == (2, 3, 3)
    file = io.BytesIO()
    Image.fromarray(LEVELS[:, :, :3]).save(file, "PNG")
    with pytest.raises(DecodeError, match="it has 3 channels, but .* requires 4"):
        decode(file.getvalue(), channels=4)


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("mode", ["LA", "RGBA"])
def test_two_and_four_channels_of_a_file_are_what_it_stores(kind, mode, monkeypatch):
    monkeypatch.setattr(multichannel, "_tifffile", lambda: None)
    if (kind, mode) == ("WEBP", "LA"):
        return  # which it cannot store
    channels = len(mode)
    stored = LEVELS[:, :, :channels].copy()  # the last, alpha, begins at 8 or 24
    file = io.BytesIO()
    options = {"lossless": True, "exact": True} if kind == "WEBP" else {}
    Image.fromarray(stored, mode).save(file, kind, **options)
    np.testing.assert_array_equal(decode(file.getvalue(), channels=channels), stored)


# ---------------------------------------------------------------------------------------- TIFF


def written(pixels, **options):
    tifffile = pytest.importorskip("tifffile", reason="an optional library: vit_jax[tiff]")
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, **options)
    return file.getvalue()


CHUNKY = {"photometric": "minisblack", "planarconfig": "contig"}
PLANAR = {"photometric": "minisblack", "planarconfig": "separate"}


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_a_tiff_of_any_channels_and_depth_has_them_all(channels):
    pixels = LEVELS[:, :, :channels]
    deep = pixels * np.uint16(257)
    planes = np.moveaxis(pixels, -1, 0)
    for content in (
        written(pixels, **CHUNKY),
        written(deep, **CHUNKY),
        written(deep.astype(">u2"), byteorder=">", **CHUNKY),
        written(planes, **PLANAR),
        written(pixels / np.float32(255), **CHUNKY),
        written(pixels, compression="zlib", **CHUNKY),
        written(planes, photometric="minisblack"),  # a page for each
        written(planes, bigtiff=True, **PLANAR),
    ):
        np.testing.assert_array_equal(decode(content, channels=channels), pixels)


def test_colours_of_a_depth_that_pillow_cannot_read_are_read_all_the_same():
    colours = LEVELS[:, :, :3]
    content = written(colours / np.float32(255), photometric="rgb")
    for channels in (None, 1, 3):
        np.testing.assert_array_equal(decode(content, channels=channels), colours)
    with pytest.raises(DecodeError, match=r"shape is .2, 3, 5.*data.channels=5 uses"):
        decode(written(LEVELS, **CHUNKY))
    inverted = written(LEVELS[:, :, :2], photometric="miniswhite", planarconfig="contig")
    np.testing.assert_array_equal(decode(inverted, channels=2), 255 - LEVELS[:, :, :2])


def test_a_tiff_of_many_channels_is_turned_upright():
    turned = written(LEVELS, extratags=[(274, 3, 1, 6, True)], **CHUNKY)
    expected = [[LEVELS[1, column], LEVELS[0, column]] for column in range(3)]  # clockwise
    np.testing.assert_array_equal(decode(turned, channels=5), expected)


def test_a_tiff_that_is_cut_off_or_claims_too_much_is_refused(monkeypatch):
    content = written(np.tile(LEVELS, (40, 40, 1)), rowsperstrip=8, **CHUNKY)
    for length in range(8, len(content), 499):
        with pytest.raises(DecodeError):
            decode(content[:length], channels=5)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DecodeError, match="too large"):
        decode(content, channels=5)


def test_a_tiff_that_names_several_sizes_is_refused_at_once():
    content = written(LEVELS, **CHUNKY)
    one = b"\0\1\4\0\1\0\0\0"  # tag 256, the width: a single 32-bit number
    assert content.count(one) == 1
    with pytest.raises(DecodeError, match="several sizes"):
        decode(content.replace(one, b"\0\1\3\0\2\0\0\0"), channels=5)


def bare_tiff(samples, channels):
    """An uncompressed TIFF of grey and unspecified samples, one row."""
    import struct

    pixels = len(samples) // channels
    widths = struct.pack(f"<{channels}H", *(8,) * channels)
    extras = bytes(2 * (channels - 1))
    start, tail = 8 + len(widths) + len(extras), struct.Struct("<HHII")
    tags = [(256, 4, 1, pixels), (257, 4, 1, 1), (258, 3, channels, 8), (259, 3, 1, 1)]
    tags += [(262, 3, 1, 1), (273, 4, 1, start), (277, 3, 1, channels), (278, 4, 1, 1)]
    tags += [(279, 4, 1, len(samples)), (338, 3, channels - 1, 8 + len(widths))]
    return (
        b"II*\0"
        + struct.pack("<I", start + len(samples))
        + widths
        + extras
        + samples
        + struct.pack("<H", len(tags))
        + b"".join(tail.pack(*tag) for tag in tags)
        + bytes(4)
    )


def test_without_its_reader_a_tiff_of_many_channels_says_what_to_install(monkeypatch):
    content = bare_tiff(LEVELS.tobytes(), 5)
    if multichannel._tifffile():
        np.testing.assert_array_equal(decode(content, channels=5), LEVELS.reshape(1, 6, 5))
    monkeypatch.setattr(multichannel, "_tifffile", lambda: None)
    for channels in (3, 5):
        with pytest.raises(DecodeError, match=r"vit_jax\[tiff\].*data.channels"):
            decode(content, channels=channels)


def test_without_its_reader_heif_says_what_to_install(monkeypatch):
    decoder = sys.modules["vit_jax.data.images.decoding"]
    content = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)
    if not decoder._register_heif():
        with pytest.raises(DecodeError, match=r"HEIF.*vit_jax\[heif\]"):
            decode(content)
    monkeypatch.setattr(decoder, "_register_heif", lambda: False)
    with pytest.raises(DecodeError, match=r"HEIF.*vit_jax\[heif\]"):
        decode(content)


def test_heif_is_read_where_its_reader_is_installed():
    heif = pytest.importorskip("pillow_heif", reason="an optional library: vit_jax[heif]")
    file = io.BytesIO()
    image = Image.new("RGB", (64, 32), (200, 30, 40))
    heif.from_pillow(image).save(file, quality=95)
    found = decode(file.getvalue())
    assert found.shape == (32, 64, 3)
    assert np.abs(found.astype(int) - (200, 30, 40)).max() <= 6
