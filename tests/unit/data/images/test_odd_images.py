"""Hundreds of odd files: each becomes an image of the right shape, or an error with its path.

Files are written by Pillow in every format and mode it can write, sides of one pixel included, and
then cut off, damaged byte by byte, lengthened or renamed.
"""

import faulthandler
import io
import os
import struct
import subprocess
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from vit_jax.data import Preprocessing, decode
from vit_jax.errors import DecodeError

# pytest undoes the filter that comes with `decode`; a test below looks at it in a fresh process.
pytestmark = pytest.mark.filterwarnings("ignore:::PIL")

# What can be written: format -> modes.
WRITABLE = {
    "PNG": ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"),
    "JPEG": ("L", "RGB", "CMYK", "YCbCr"),
    "GIF": ("1", "L", "P", "RGB", "RGBA"),
    "WEBP": ("L", "RGB", "RGBA", "P"),
    "BMP": ("1", "L", "P", "RGB", "RGBA"),
    "TIFF": ("1", "L", "LA", "P", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "I;16", "I", "F"),
    "PPM": ("1", "L", "RGB", "I;16", "F"),
    "TGA": ("L", "LA", "P", "RGB", "RGBA"),
    "PCX": ("1", "L", "P", "RGB"),
    "SGI": ("L", "RGB", "RGBA"),
    "DDS": ("L", "LA", "RGB", "RGBA"),
    "ICO": ("RGB", "RGBA"),
    "QOI": ("RGB", "RGBA"),
    "JPEG2000": ("L", "LA", "RGB", "RGBA"),
    "MPO": ("L", "RGB"),
    "MSP": ("1",),
    "SPIDER": ("F",),
}
LOSSY = {"JPEG", "MPO", "JPEG2000", "GIF", "ICO"}  # of colours or of size
SIDES = st.sampled_from([1, 1, 2, 3, 7, 16, 33])
MANY = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(autouse=True)
def watchdog():
    """Ends the tests with a traceback where one hangs, in Pillow's C code too."""
    faulthandler.dump_traceback_later(120, exit=True, file=sys.__stderr__)
    yield
    faulthandler.cancel_dump_traceback_later()


def drawn(mode, size, seed):
    """An image of noise in that mode."""
    rng = np.random.default_rng(seed)
    width, height = size
    if mode == "F":
        return Image.fromarray(rng.random((height, width), np.float32))
    if mode == "I":
        return Image.fromarray(rng.integers(0, 65536, (height, width)).astype(np.int32))
    if mode == "I;16":
        return Image.fromarray(rng.integers(0, 65536, (height, width)).astype(np.uint16))
    if mode == "LAB":
        return Image.frombytes("LAB", size, rng.bytes(3 * width * height))
    rgba = Image.frombytes("RGBA", size, rng.bytes(4 * width * height))
    if mode in ("CMYK", "YCbCr", "RGBX"):
        return rgba.convert("RGB").convert(mode)
    return rgba.convert(mode)


@st.composite
def written(draw, formats=tuple(WRITABLE)):
    """A format, the image, and the bytes of a file of it."""
    kind = draw(st.sampled_from(formats))
    mode = draw(st.sampled_from(WRITABLE[kind]))
    size = (draw(SIDES), draw(SIDES))
    image = drawn(mode, size, draw(st.integers(0, 99)))
    options = {}
    if kind in ("GIF", "WEBP", "TIFF", "PNG", "MPO") and draw(st.booleans()):
        options = {"save_all": True, "append_images": [drawn(mode, size, seed) for seed in (1, 2)]}
    match kind:
        case "JPEG":
            options["quality"] = draw(st.sampled_from([5, 95]))
            options["progressive"] = draw(st.booleans())
        case "WEBP":
            options["lossless"] = True
        case "TIFF":
            options["big_tiff"] = draw(st.booleans())
            plain = mode in ("I", "F", "I;16", "LAB", "RGBX")
            methods = ["raw"] if plain else ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"]
            options["compression"] = draw(st.sampled_from(methods))
        case "PNG" if mode in ("1", "L", "P", "I;16") and not options and draw(st.booleans()):
            options["transparency"] = 0
        case "TGA":
            options["compression"] = (
                draw(st.sampled_from([None, "tga_rle"])) if mode != "1" else None
            )
        case "DDS" if mode == "RGBA":
            options["pixel_format"] = draw(st.sampled_from([None, "DXT1", "DXT5"]))
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image.save(file, kind, **options)
    return kind, image, file.getvalue(), options


@st.composite
def damaged(draw):
    """The bytes of a file that something has happened to, and the ending of its name."""
    _, _, content, _ = draw(written())
    content = bytearray(content)
    match draw(st.sampled_from(["cut", "bytes", "header", "longer", "zeros", "name"])):
        case "cut":
            del content[draw(st.integers(0, len(content) - 1)) :]
        case "bytes" | "header" as where:
            last = len(content) if where == "bytes" else min(64, len(content))
            for _ in range(draw(st.integers(1, 8))):
                content[draw(st.integers(0, last - 1))] = draw(
                    st.sampled_from([0, 1, 127, 128, 255])
                )
        case "longer":
            content += draw(st.binary(min_size=1, max_size=64))
        case "zeros":
            start = draw(st.integers(0, len(content) - 1))
            content[start:] = bytes(len(content) - start)
    endings = [".png", ".jpg", ".JPEG", ".gif", ".tif", ".webp", ".bin", ""]
    return bytes(content), draw(st.sampled_from(endings))


def is_image(pixels):
    assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
    assert min(pixels.shape) >= 1
    assert pixels.flags.c_contiguous and pixels.flags.writeable and pixels.flags.owndata
    return True


@settings(MANY, max_examples=600)
@given(written())
def test_every_format_and_mode_gives_a_image_of_its_size(file):
    kind, image, content, options = file
    pixels = decode(content, name="it")
    assert is_image(pixels)
    if kind != "ICO":  # which has sizes of its own
        assert pixels.shape[1::-1] == image.size
    if image.mode in ("1", "L", "RGB") and kind not in LOSSY and "transparency" not in options:
        np.testing.assert_array_equal(pixels, np.asarray(image.convert("RGB")))
    with tempfile.NamedTemporaryFile() as copy:
        Path(copy.name).write_bytes(content)
        np.testing.assert_array_equal(decode(copy.name), pixels)
    seen = Preprocessing((16, 24), crop=0.875)(pixels)
    assert seen.shape == (16, 24, 3) and seen.dtype == np.uint8


@settings(MANY, max_examples=1000)
@given(damaged())
def test_a_damaged_file_is_a_image_or_an_error_with_its_path(file):
    content, ending = file
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"odd{ending}"
        path.write_bytes(content)
        try:
            assert is_image(decode(path))
        except DecodeError as error:
            assert str(path) in str(error) and error.cause
    try:
        assert is_image(decode(content, name="upload 7"))
    except DecodeError as error:
        assert "upload 7" in str(error) and error.cause


# Of a cut-off PCX the palette may be all that is missing, which makes it a lawful grey image, and
# JPEG 2000 is made to be cut off: what is there is the whole image, less sharp.
@settings(MANY, max_examples=600)
@given(
    written(tuple(kind for kind in WRITABLE if kind not in ("PCX", "JPEG2000"))), st.floats(0, 1)
)
def test_a_file_cut_off_anywhere_gives_its_whole_image_or_none(file, share):
    _, _, content, _ = file
    try:
        pixels = decode(content[: int(share * len(content))], name="it")
    except DecodeError:
        return
    np.testing.assert_array_equal(pixels, decode(content, name="it"))


@pytest.mark.parametrize("compression", ["raw", "tiff_adobe_deflate"])
def test_a_tiff_whose_palette_is_cut_off_is_refused(compression):
    image = drawn("P", (3, 2), seed=1)
    buffer = io.BytesIO()
    image.save(buffer, "TIFF", compression=compression)
    content = buffer.getvalue()  # deflated, the palette comes last
    assert is_image(decode(content, name="it"))
    if compression == "raw":
        content = content.replace(struct.pack("<H", 320), struct.pack("<H", 65_000), 1)
    else:
        content = content[:-1]
    with pytest.raises(DecodeError, match=r"its colours \(PALETTE\) are not supported"):
        decode(content, name="it")


ORIENTED = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
# What a viewer must show where the file holds ORIENTED: TIFF 6.0, tag 274, by hand.
UPRIGHT = {
    1: [[0, 40, 80], [120, 160, 200]],
    2: [[80, 40, 0], [200, 160, 120]],  # its right side is the left one
    3: [[200, 160, 120], [80, 40, 0]],
    4: [[120, 160, 200], [0, 40, 80]],
    5: [[0, 120], [40, 160], [80, 200]],  # its rows are columns
    6: [[120, 0], [160, 40], [200, 80]],
    7: [[200, 80], [160, 40], [120, 0]],
    8: [[80, 200], [40, 160], [0, 120]],
    9: [[0, 40, 80], [120, 160, 200]],  # means nothing
}


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP", "JPEG"])
@pytest.mark.parametrize("orientation", UPRIGHT)
def test_every_orientation_is_turned_upright(kind, orientation, mode, tmp_path):
    exif = Image.Exif()
    exif[274] = orientation
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 100}}.get(kind, {})
    large = np.kron(ORIENTED, np.ones((16, 16), np.uint8))  # whole blocks of JPEG
    file = tmp_path / "turned"
    Image.fromarray(large).convert(mode).save(file, kind, exif=exif, **options)
    expected = np.kron(UPRIGHT[orientation], np.ones((16, 16), int))[:, :, None]
    for image in (file, file.read_bytes(), Image.open(io.BytesIO(file.read_bytes()))):
        pixels = decode(image)
        assert is_image(pixels) and pixels.shape == (*expected.shape[:2], 3)
        assert np.abs(pixels.astype(int) - expected).max() <= 2


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "RGBA", "LA", "I;16", "F"])
def test_large_images_are_converted_in_strips_with_one_scale(mode, monkeypatch):
    image = drawn(mode, (7, 23), seed=3)
    whole = decode(image)
    monkeypatch.setattr(sys.modules[decode.__module__], "STRIP_PIXELS", 14)  # two rows
    np.testing.assert_array_equal(decode(image), whole)


def test_rare_modes_have_their_colours():
    red = Image.new("RGB", (3, 2), (200, 0, 0))
    for mode in ("YCbCr", "HSV", "RGBX", "RGBA", "RGBa"):
        image = red.convert("RGBA").convert("RGBa") if mode == "RGBa" else red.convert(mode)
        assert np.abs(decode(image).astype(int) - (200, 0, 0)).max() <= 2
    half_grey = Image.new("LA", (3, 2), (100, 128)).convert("La")  # 100 at alpha 128 on white
    assert np.abs(decode(half_grey).astype(int) - (255 - 155 * 128 / 255)).max() <= 2
    # CIELAB of pure red in sRGB, white point D50: L 54.29, a 80.81, b 69.89 (B. Lindbloom).
    lab = Image.new("LAB", (3, 2), (round(54.29 * 2.55), 128 + 81, 128 + 70))
    assert np.abs(decode(lab).astype(int) - (255, 0, 0)).max() <= 6


def test_a_image_whose_data_do_not_cover_it_is_refused():
    file = io.BytesIO()
    Image.new("RGB", (4, 2), "red").save(file, "TIFF", tiffinfo={278: 1})  # a strip for each row
    content, height = file.getvalue(), struct.Struct("<HHII")  # tag 257: one 32-bit number
    taller = content.replace(height.pack(257, 4, 1, 2), height.pack(257, 4, 1, 3))
    assert taller != content and np.all(decode(content) == (255, 0, 0))
    with pytest.raises(DecodeError, match="do not cover all of its 4 x 3 pixels"):
        decode(taller)


def png(header, *chunks):
    """A PNG file of (width, height, ...) and pairs of chunk name and content."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", *header)), *chunks, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


def with_field(content, at, form, *values):
    """The content of a file with other numbers at a place."""
    return content[:at] + struct.pack(form, *values) + content[at + struct.calcsize(form) :]


def bombs():
    """Small files that make a careless reader take gigabytes, or minutes."""
    small = {}
    for kind in ("GIF", "BMP", "WEBP", "TIFF", "TGA", "PCX", "PPM"):
        file = io.BytesIO()
        frames = {"save_all": True, "append_images": [drawn("RGB", (33, 2), 2)]}
        options = frames if kind == "WEBP" else {}
        drawn("RGB", (33, 2), 1).save(file, kind, **options)
        small[kind] = file.getvalue()
    pixels = zlib.compress(bytes(1000))
    sea = zlib.compress(bytes(200_000_000))
    tags = struct.Struct("<HHII")
    return {
        "claims.png": png((60_000, 60_000, 8, 6, 0, 0, 0), (b"IDAT", pixels)),
        "largest.png": png((2**31 - 1, 2**31 - 1, 16, 6, 0, 0, 0), (b"IDAT", pixels)),
        "nothing.png": png((0, 0, 8, 2, 0, 0, 0), (b"IDAT", pixels)),
        "text.png": png((1, 1, 8, 0, 0, 0, 0), (b"zTXt", b"a\0\0" + sea), (b"IDAT", pixels)),
        "utf8.png": png((1, 1, 8, 0, 0, 0, 0), (b"iTXt", b"a\0\1\0\0\0" + sea), (b"IDAT", pixels)),
        "profile.png": png((1, 1, 8, 0, 0, 0, 0), (b"iCCP", b"a\0\0" + sea), (b"IDAT", pixels)),
        "pixels.png": png((1, 1, 8, 0, 0, 0, 0), (b"IDAT", sea)),
        "claims.gif": with_field(small["GIF"], 6, "<HH", 60_000, 60_000),
        "claims.bmp": with_field(small["BMP"], 18, "<ii", 60_000, 60_000),
        "claims.tga": with_field(small["TGA"], 12, "<HH", 60_000, 60_000),
        "claims.pcx": with_field(small["PCX"], 8, "<HH", 59_999, 59_999),
        "claims.ppm": b"P6 60000 60000 255\n" + bytes(1000),
        "digits.ppm": b"P6 " + b"9" * 100_000 + b" 1 255\n",
        "claims.webp": with_field(small["WEBP"], 24, "<IH", 2**24 - 1, 2),
        "wide.webp": with_field(small["WEBP"], 24, "<I", 2**24 - 1 + 2**24),  # two rows
        "claims.tif": small["TIFF"].replace(tags.pack(256, 4, 1, 33), tags.pack(256, 4, 1, 10**9)),
        "count.tif": small["TIFF"].replace(tags.pack(256, 4, 1, 33), tags.pack(256, 4, 2**31, 33)),
        # BigTIFF: one tag, of 2**40 numbers.
        "big.tif": struct.pack("<2sHHHQQHHQQ", b"II", 43, 8, 0, 16, 1, 256, 4, 2**40, 8),
    }


def test_bombs_cost_neither_memory_nor_time(tmp_path):
    for name, content in bombs().items():
        (tmp_path / name).write_bytes(content)
    code = """
import os, resource, sys
from vit_jax.data import decode
from vit_jax.errors import DecodeError
for path in sys.argv[1:]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        found = decode(path).shape
    except DecodeError as error:
        assert path in str(error)
        found = error.cause
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(os.path.basename(path), (peak - before) // 1024, found, sep="|")
"""
    # The largest last, because what is measured is the highest so far.
    paths = sorted(map(str, tmp_path.iterdir()), key=lambda path: "wide" in path)
    command = [sys.executable, "-c", code, *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0 and not done.stderr, done.stderr
    told = {}
    for line in done.stdout.splitlines():
        name, megabytes, told[name] = line.split("|")
        # Most are refused. The wide one is an image of 33 million pixels, for all one can say.
        assert int(megabytes) < (1000 if name == "wide.webp" else 300), line
    assert told.keys() == bombs().keys()
    for name in (
        "claims.png",
        "claims.gif",
        "claims.bmp",
        "claims.tga",
        "claims.pcx",
        "claims.tif",
    ):
        assert "PIL.Image.MAX_IMAGE_PIXELS" in told[name], told[name]


def test_damaged_files_make_no_noise(tmp_path):
    """Neither Python warnings nor log messages, which a run would repeat for every file."""
    exif = encoded_jpeg(exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff")
    file = io.BytesIO()
    Image.new("L", (4, 4)).save(file, "TIFF")
    tags = struct.Struct("<HHI")
    skipped = file.getvalue().replace(tags.pack(273, 4, 1), tags.pack(273, 4, 2**20))
    samples = file.getvalue().replace(tags.pack(277, 3, 1)[:8], tags.pack(277, 3, 1)[:8])
    large = png((10_000, 10_000, 1, 0, 0, 0, 0), (b"IDAT", b""))  # above Pillow's first limit
    paths = []
    for number, content in enumerate((exif, skipped, samples, large)):
        paths.append(tmp_path / f"{number}")
        paths[-1].write_bytes(content)
    code = """
import sys
from vit_jax.data import decode
from vit_jax.errors import DecodeError
for path in sys.argv[1:]:
    try:
        decode(path)
    except DecodeError:
        pass
"""
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


def encoded_jpeg(**options):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "white").save(file, "JPEG", **options)
    return file.getvalue()


def test_what_is_no_file_is_refused_at_once(tmp_path):
    (tmp_path / "folder.png").mkdir()
    os.mkfifo(tmp_path / "pipe.png")  # opening it would wait for a writer
    (tmp_path / "dangling.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "round.png").symlink_to(tmp_path / "round.png")
    (tmp_path / "empty.png").touch()
    causes = {
        "folder.png": "it is a directory",
        "pipe.png": "it is a pipe, a socket or a device",
        "dangling.png": "there is no such file",
        "round.png": "Too many levels of symbolic links",
        "empty.png": "the file is empty",
        "empty.png/below.png": "Not a directory",
        "nowhere/below.png": "there is no such file",
        f"{'long' * 100}.png": "File name too long",
        "zero\0byte.png": "null",
    }
    for name, cause in causes.items():
        path = f"{tmp_path}/{name}"
        for fast in (False, True):
            with pytest.raises(DecodeError, match=cause) as raised:
                decode(path, fast=fast)
            assert path in str(raised.value)
    for device in ("/dev/zero", "/dev/null", "/dev/stdin"):
        with pytest.raises(DecodeError, match=device):
            decode(device)


@pytest.mark.parametrize(
    "name",
    ["a b.png", "été.png", "猫.png", "line\nbreak.png", "%s{}[red].png", "-rf", b"latin-\xe9.png"],
)
def test_odd_names_are_read_and_told(name, tmp_path):
    path = os.path.join(tmp_path, os.fsdecode(name))
    Image.new("RGB", (2, 3), "red").save(path, "PNG")
    assert np.all(decode(path) == (255, 0, 0)) and np.all(decode(Path(path)) == (255, 0, 0))
    Path(path).write_bytes(b"no image")
    with pytest.raises(DecodeError) as raised:
        decode(path)
    assert path in str(raised.value)


def test_exif_data_that_break_the_reader_do_not_cost_the_image(monkeypatch):
    def broken(self):
        raise struct.error("unpack requires a buffer of 4 bytes")

    monkeypatch.setattr(Image.Image, "getexif", broken)
    assert np.all(decode(encoded_jpeg()) == 255)


def test_a_reader_that_runs_out_of_memory_names_the_image(monkeypatch):
    def greedy(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(Image, "open", greedy)
    with pytest.raises(DecodeError, match="upload 7: reading it needs more memory"):
        decode(encoded_jpeg(), name="upload 7")
