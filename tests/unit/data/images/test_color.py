"""Colours by the profiles of files, against the primaries of their standards."""

import io

import numpy as np
import pytest
from PIL import Image, ImageCms

from vit_jax.data import Preprocessing, decode

WHITE_D65 = (0.3127, 0.3290)
# Chromaticities of red, green and blue: SMPTE EG 432-1 and Adobe RGB (1998).
PRIMARIES = {
    "Display P3": ((0.680, 0.320), (0.265, 0.690), (0.150, 0.060)),
    "Adobe RGB": ((0.640, 0.330), (0.210, 0.710), (0.150, 0.060)),
    "sRGB": ((0.640, 0.330), (0.300, 0.600), (0.150, 0.060)),
}
BRADFORD = np.array(
    [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]
)
D50 = np.array([0.9642, 1.0, 0.8249])


def xyz(x, y):
    return np.array([x / y, 1.0, (1 - x - y) / y])


def to_xyz(name):
    """The matrix from linear RGB to CIE XYZ, white at D65 (B. Lindbloom, "RGB/XYZ matrices")."""
    columns = np.stack([xyz(*primary) for primary in PRIMARIES[name]], axis=1)
    return columns * np.linalg.solve(columns, xyz(*WHITE_D65))


def profile(name, gamma):
    """An ICC profile, version 2, of these primaries and a power law; ICC.1:2001-04."""
    cones = BRADFORD @ xyz(*WHITE_D65)
    adapt = np.linalg.inv(BRADFORD) @ np.diag(BRADFORD @ D50 / cones) @ BRADFORD

    def number(value):
        return round(float(value) * 65536).to_bytes(4, "big", signed=True)

    tags = {b"wtpt": b"XYZ \0\0\0\0" + b"".join(map(number, D50))}
    for letter, column in zip(b"rgb", (adapt @ to_xyz(name)).T, strict=True):
        tags[bytes([letter]) + b"XYZ"] = b"XYZ \0\0\0\0" + b"".join(map(number, column))
        curve = b"curv\0\0\0\0\0\0\0\1" + round(gamma * 256).to_bytes(2, "big")
        tags[bytes([letter]) + b"TRC"] = curve + b"\0\0"
    text = b"made up\0"
    words = b"desc\0\0\0\0" + len(text).to_bytes(4, "big") + text + bytes(78)
    tags[b"desc"], tags[b"cprt"] = words.ljust(100, b"\0"), b"text\0\0\0\0none\0\0\0\0"
    table, data, place = b"", b"", 128 + 4 + 12 * len(tags)
    for tag, content in tags.items():
        table += tag + (place + len(data)).to_bytes(4, "big") + len(content).to_bytes(4, "big")
        data += content
    size = place + len(data)
    header = size.to_bytes(4, "big") + bytes(4) + b"\2\x10\0\0mntrRGB XYZ " + bytes(12) + b"acsp"
    header = header.ljust(68, b"\0") + b"".join(map(number, D50))
    return header.ljust(128, b"\0") + len(tags).to_bytes(4, "big") + table + data


def in_srgb(colour, name, gamma):
    """By hand: to linear light, to XYZ, to linear sRGB, to the curve of IEC 61966-2-1."""
    linear = (np.array(colour) / 255) ** gamma
    linear = np.clip(np.linalg.solve(to_xyz("sRGB"), to_xyz(name) @ linear), 0, 1)
    curved = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return 255 * curved


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


COLOURS = [(200, 100, 50), (90, 160, 90), (30, 60, 150), (128, 128, 128), (255, 255, 255)]


@pytest.mark.parametrize("name, gamma", [("Display P3", 2.2), ("Adobe RGB", 2.19921875)])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_wide_colours_become_srgb_where_that_is_asked_for(kind, name, gamma):
    image = Image.fromarray(np.array([COLOURS], np.uint8))
    content = encoded(image, kind, icc_profile=profile(name, gamma))
    np.testing.assert_array_equal(decode(content), [COLOURS])  # not asked for
    managed = decode(content, color_management=True)[0]
    expected = [in_srgb(colour, name, gamma) for colour in COLOURS]
    assert np.abs(managed - np.array(expected)).max() <= 1.5
    assert np.abs(managed[0].astype(int) - COLOURS[0]).max() >= 8  # it makes a difference


def test_alpha_stays_and_is_laid_on_white_after_the_colours():
    pixels = np.array([[(*COLOURS[0], 255), (*COLOURS[0], 0)]], np.uint8)
    content = encoded(Image.fromarray(pixels), "PNG", icc_profile=profile("Adobe RGB", 2.2))
    visible, hidden = decode(content, color_management=True)[0]
    assert np.abs(visible - in_srgb(COLOURS[0], "Adobe RGB", 2.2)).max() <= 1.5
    assert hidden.tolist() == [255, 255, 255]


def test_a_palette_is_converted_like_its_colours():
    image = Image.fromarray(np.array([COLOURS], np.uint8))
    palette = image.convert("P", palette=Image.Palette.ADAPTIVE, colors=8)
    plain = encoded(palette.convert("RGB"), "PNG", icc_profile=profile("Display P3", 2.2))
    content = encoded(palette, "PNG", icc_profile=profile("Display P3", 2.2))
    both = [decode(one, color_management=True) for one in (plain, content)]
    np.testing.assert_array_equal(*both)


def test_images_without_a_profile_or_with_a_useless_one_stay_as_they_are():
    image = Image.fromarray(np.array([COLOURS], np.uint8))
    lab = ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes()
    for useless in (None, b"damaged", profile("Display P3", 2.2)[:200], lab):
        options = {} if useless is None else {"icc_profile": useless}
        content = encoded(image, "PNG", **options)
        np.testing.assert_array_equal(decode(content, color_management=True), [COLOURS])
    cmyk = encoded(image.convert("CMYK"), "TIFF", icc_profile=profile("Display P3", 2.2))
    np.testing.assert_array_equal(decode(cmyk, color_management=True), decode(cmyk))


def test_srgb_stays_srgb():
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    content = encoded(Image.fromarray(np.array([COLOURS], np.uint8)), "PNG", icc_profile=srgb)
    found = decode(content, color_management=True).astype(int)
    assert np.abs(found - [COLOURS]).max() <= 1


def test_a_quick_decoder_does_not_pass_by_the_profile():
    image = Image.new("RGB", (16, 16), COLOURS[0])
    content = encoded(image, "JPEG", quality=100, icc_profile=profile("Adobe RGB", 2.2))
    slow, fast = (decode(content, color_management=True, fast=fast) for fast in (False, True))
    np.testing.assert_array_equal(slow, fast)
    assert np.abs(slow[0, 0] - in_srgb(COLOURS[0], "Adobe RGB", 2.2)).max() <= 3


def test_the_record_of_a_model_says_whether_colours_are_managed(tmp_path):
    path = tmp_path / "wide.png"
    image = Image.fromarray(np.array([COLOURS[:1]], np.uint8))
    path.write_bytes(encoded(image, "PNG", icc_profile=profile("Adobe RGB", 2.2)))
    plain, managed = (
        Preprocessing.from_dict(Preprocessing((1, 1), color_management=on).to_dict())
        for on in (False, True)
    )
    assert plain.decode(path)[0, 0].tolist() == list(COLOURS[0])
    expected = decode(path, color_management=True)
    np.testing.assert_array_equal(managed.decode(path), expected)
    assert expected[0, 0].tolist() != list(COLOURS[0])
    old = {key: value for key, value in plain.to_dict().items() if key != "color_management"}
    assert Preprocessing.from_dict(old) == plain  # records of models from before
