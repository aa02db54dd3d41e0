"""Any image becomes RGB: the cases that users of image models report, file by file."""

import io
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import ExifTags, Image
from sklearn.datasets import load_sample_images

from tests.folders import INPUTS
from vit_jax.data import decode
from vit_jax.errors import DecodeError, UserError

IMAGES = INPUTS / "images"
WHITE = (255, 255, 255)


def encoded(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def mean_difference(a, b):
    return np.abs(a.astype(int) - b.astype(int)).mean()


REFERENCE = np.asarray(Image.open(IMAGES / "ref_quad_rgb.png"))


def test_cmyk_jpeg_has_the_right_colours():
    image = decode(IMAGES / "cmyk_quad.jpg")
    assert image.shape == (32, 32, 3) and image.dtype == np.uint8
    assert np.abs(image.astype(int) - REFERENCE).max() <= 4


@pytest.mark.parametrize(
    "name", ["alpha_hidden_a.png", "alpha_hidden_b.png", "alpha_palette_trns.png"]
)
def test_transparency_is_white_whatever_hides_under_it(name):
    image = decode(IMAGES / name)
    half = image.shape[1] // 2
    assert np.all(image[:, :half] == WHITE) and np.all(image[:, half:] == (20, 140, 60))


def test_transparent_grey_is_white():
    image = decode(IMAGES / "alpha_la.png")
    half = image.shape[1] // 2
    assert np.all(image[:, :half] == 255) and np.all(image[:, half:] == 90)


def test_half_transparent_red_is_pink():
    pixels = np.full((2, 2, 4), (255, 0, 0, 128), np.uint8)
    for image in (pixels, Image.fromarray(pixels), encoded(Image.fromarray(pixels), "PNG")):
        assert np.all(decode(image) == (255, 127, 127))


@pytest.mark.parametrize("mode, colour", [("1", 0), ("L", 9), ("RGB", (10, 200, 30))])
def test_key_colours_are_transparent(mode, colour):
    image = encoded(Image.new(mode, (4, 4), colour), "PNG", transparency=colour)
    assert np.all(decode(image) == 255)


def test_16_bit_key_colour_is_transparent_and_its_neighbour_is_not():
    pixels = np.full((2, 2), 20000, np.uint16)
    pixels[0] = 20001
    image = encoded(Image.fromarray(pixels), "PNG", transparency=20001)
    assert decode(image)[:, 0, 0].tolist() == [255, 78]  # 20,000 / 257 = 77.8


def test_16_bit_ramp_is_scaled_and_not_clipped():
    ramp = decode(IMAGES / "gray16_ramp.png")
    assert len(np.unique(ramp)) == 256
    assert np.abs(ramp.reshape(256, 3).astype(int) - np.arange(256)[:, None]).max() <= 1
    np.testing.assert_array_equal(ramp, decode(IMAGES / "gray8_ramp.png"))


@pytest.mark.parametrize("top", [1.0, 255.0, 65535.0])
def test_float_images_are_read_on_the_scale_that_holds_them(top):
    ramp = np.linspace(0, top, 256, dtype=np.float32).reshape(16, 16)
    for image in (ramp, encoded(Image.fromarray(ramp), "TIFF")):
        grey = decode(image)[:, :, 0].reshape(-1)
        assert np.abs(grey.astype(int) - np.arange(256)).max() <= 1


@pytest.mark.parametrize("name", ["gray.jpg", "gray8_ramp.png", "bilevel.png"])
def test_grey_has_three_equal_channels(name):
    image = decode(IMAGES / name)
    assert image.shape[2] == 3
    assert np.all(image == image[:, :, :1])


def test_1_bit_is_black_and_white():
    image = decode(IMAGES / "bilevel.png")
    assert set(np.unique(image)) == {0, 255}
    assert np.all(image[: image.shape[0] // 2, : image.shape[1] // 2] == 255)


def test_exif_orientation_is_applied_once():
    turned = decode(IMAGES / "exif_orientation6.jpg")
    assert turned.shape == (32, 40, 3)
    assert mean_difference(turned, decode(IMAGES / "exif_upright_reference.jpg")) < 2
    opened = Image.open(IMAGES / "exif_orientation6.jpg")
    np.testing.assert_array_equal(decode(opened), turned)
    np.testing.assert_array_equal(decode(opened), turned)


@pytest.mark.parametrize("exif", [b"garbage", b"II*\0\x08\0\0\0\xff\xff"])
@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_cost_the_image(exif):
    image = encoded(Image.new("RGB", (4, 4), "white"), "JPEG", exif=b"Exif\0\0" + exif)
    assert np.all(decode(image) == 255)


def test_animation_gives_its_first_frame():
    image = decode(IMAGES / "animated.gif")
    assert image.shape == (18, 24, 3)
    assert np.abs(image.astype(int) - (250, 10, 10)).max() <= 6


def test_webp_and_upper_case_names_are_read():
    np.testing.assert_array_equal(decode(IMAGES / "lossless.webp"), REFERENCE)
    assert mean_difference(decode(IMAGES / "lossy.webp"), REFERENCE) < 8
    assert mean_difference(decode(str(IMAGES / "UPPER.JPEG")), REFERENCE) < 8


@pytest.mark.parametrize(
    "name, shape", [("wide_300x1.png", (1, 300, 3)), ("tall_1x200.png", (200, 1, 3))]
)
def test_sides_of_one_pixel_stay_sides(name, shape):
    assert decode(IMAGES / name).shape == shape


def test_path_bytes_image_and_array_of_one_image_agree():
    path = IMAGES / "ref_quad_rgb.png"
    for image in (path, str(path), path.read_bytes(), Image.open(path), REFERENCE):
        np.testing.assert_array_equal(decode(image), REFERENCE)


@pytest.mark.parametrize("shape", [(4, 5), (4, 5, 1)])
@pytest.mark.parametrize("kind, top", [(bool, 1), (np.uint8, 255), (np.uint16, 65535)])
def test_grey_arrays_of_every_depth(shape, kind, top):
    image = decode(np.full(shape, top, kind))
    assert image.shape == (4, 5, 3) and image.dtype == np.uint8 and np.all(image == 255)


def test_the_result_is_the_callers_own():
    pixels = np.zeros((2, 2, 3), np.uint8)
    decode(pixels)[:] = 7
    assert np.all(pixels == 0)


@pytest.mark.parametrize(
    "name, cause",
    [
        ("truncated.jpg", "truncated"),
        ("truncated.png", "truncated"),
        ("zero_bytes.jpg", "empty"),
        ("text_inside.jpg", "not an image"),
        ("missing.jpg", "no such file"),
        (".", "directory"),
    ],
)
def test_unreadable_files_are_named_with_their_cause(name, cause):
    with pytest.raises(UserError, match=cause) as raised:
        decode(IMAGES / name)
    assert str(IMAGES / name) in str(raised.value)


def test_bytes_are_named_as_the_caller_says():
    with pytest.raises(UserError, match="cannot read the image upload 7: it has 0 bytes"):
        decode(b"", name="upload 7")


@pytest.mark.parametrize(
    "image, cause",
    [
        (np.zeros((4, 4, 2), np.uint8), "shape is .4, 4, 2."),
        (np.zeros((0, 4, 3), np.uint8), "shape is .0, 4, 3."),
        (np.zeros((4, 4, 3), np.int64), "int64; they must be bool, uint8, uint16 or float"),
        (np.full((4, 4, 3), -1.0), "from -1.0 to -1.0"),
        (np.full((4, 4, 3), np.nan), "from nan to nan"),
        (None, "not NoneType"),
    ],
)
def test_pixels_without_a_known_scale_or_shape_are_refused(image, cause):
    with pytest.raises(UserError, match=cause):
        decode(image)


@pytest.mark.filterwarnings("ignore")
def test_damaged_files_raise_nothing_but_user_errors():
    rng = np.random.default_rng(0)
    for path in sorted(IMAGES.iterdir()):
        content = np.frombuffer(path.read_bytes(), np.uint8)
        if not 10 < len(content) < 10_000:
            continue
        for _ in range(10):
            damaged = content.copy()
            damaged[rng.integers(len(content), size=4)] = rng.integers(256, size=4)
            try:
                image = decode(damaged.tobytes())
            except UserError:
                continue
            assert image.dtype == np.uint8 and image.shape[2] == 3


def test_a_image_of_196_million_pixels_is_refused_within_300_mb():
    path = IMAGES / "huge_14000x14000_1bit.png"
    code = (
        "import resource\n"
        "from vit_jax.data.images.decoding import decode\n"
        "from vit_jax.errors import UserError\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"try: decode({str(path)!r})\n"
        "except UserError as error: print(error)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    sentence, kilobytes = done.stdout.strip().splitlines()
    assert str(path) in sentence
    assert "196000000" in sentence and "PIL.Image.MAX_IMAGE_PIXELS" in sentence
    assert int(kilobytes) < 300_000


# Fast decoding: with OpenCV installed these look at it, without it at Pillow in its place.


def outcome(image, fast):
    """The pixels, or the name and cause of the error."""
    try:
        return decode(image, fast=fast)
    except DecodeError as error:
        return error.name, error.cause


def assert_same_outcome(image, levels=0.0):
    plain, fast = outcome(image, False), outcome(image, True)
    if isinstance(plain, tuple):
        assert fast == plain
    else:
        assert fast.shape == plain.shape and fast.dtype == np.uint8
        assert mean_difference(fast, plain) <= levels


@pytest.fixture(scope="module")
def photo():
    return Image.fromarray(load_sample_images().images[1]).resize((160, 107))


@pytest.fixture
def fake_opencv(monkeypatch):
    """An OpenCV that sees every image as flat grey of level 7, or as `result` says."""
    fake = SimpleNamespace(IMREAD_COLOR_RGB=0, IMREAD_IGNORE_ORIENTATION=0, error=ZeroDivisionError)
    fake.result = lambda: np.full((20, 30, 3), 7, np.uint8)
    fake.imdecode = lambda content, flags: fake.result()
    monkeypatch.setattr(sys.modules["vit_jax.data.images.decoding"], "opencv", lambda: fake)
    return fake


def plain_jpeg(**options):
    return encoded(Image.new("RGB", (30, 20), (200, 0, 0)), "JPEG", **options)


def test_plain_jpegs_alone_go_to_opencv_and_only_when_asked(fake_opencv, tmp_path):
    path = tmp_path / "plain.jpg"
    path.write_bytes(plain_jpeg())
    for image in (path, str(path), plain_jpeg(), plain_jpeg(progressive=True)):
        assert np.all(decode(image, fast=True) == 7)
        assert np.all(decode(image)[:, :, 0] > 190)
    grey = encoded(Image.new("L", (30, 20), 200), "JPEG")
    assert np.all(decode(grey, fast=True) == 7)

    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    for image in (
        plain_jpeg(exif=turned),
        plain_jpeg()[:-2],  # without its end
        plain_jpeg() + b"more",
        encoded(Image.new("CMYK", (30, 20)), "JPEG"),
        encoded(Image.new("RGB", (30, 20)), "PNG"),
        Image.new("RGB", (30, 20)),
        np.zeros((20, 30, 3), np.uint8),
    ):
        plain = outcome(image, False)
        np.testing.assert_array_equal(outcome(image, True), plain)
        assert isinstance(plain, tuple) or not np.all(plain == 7)


@pytest.mark.parametrize(
    "result", [lambda: None, lambda: 1 // 0, lambda: np.zeros((30, 20, 3), np.uint8)]
)
def test_what_opencv_cannot_decode_is_pillows(fake_opencv, result):
    fake_opencv.result = result
    assert np.all(decode(plain_jpeg(), fast=True)[:, :, 0] > 190)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"progressive": True},
        {"subsampling": 0},
        {"quality": 30},
        {"restart_marker_blocks": 3},
        {"icc_profile": b"x" * 100, "comment": b"y"},
    ],
)
def test_fast_pixels_differ_by_less_than_two_levels(photo, options):
    for image in (photo, photo.convert("L"), photo.crop((3, 5, 20, 6)), photo.crop((0, 0, 1, 50))):
        assert_same_outcome(encoded(image, "JPEG", **options), levels=2)


def test_fast_reads_what_is_no_plain_jpeg_as_ever():
    for path in sorted(IMAGES.iterdir()):
        plain_jpeg = path.name in ("gray.jpg", "exif_upright_reference.jpg", "UPPER.JPEG")
        assert_same_outcome(path, levels=2 if plain_jpeg else 0)
        assert_same_outcome(path.read_bytes(), levels=2 if plain_jpeg else 0)


def test_without_opencv_fast_is_pillows_own(monkeypatch, photo):
    monkeypatch.setattr(sys.modules["vit_jax.data.images.decoding"], "opencv", lambda: None)
    for image in (*sorted(IMAGES.iterdir()), encoded(photo, "JPEG")):
        assert_same_outcome(image)


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 3}])
def test_a_jpeg_cut_off_anywhere_is_as_bad_when_read_fast(photo, options):
    content = encoded(photo, "JPEG", quality=90, **options)
    lengths = [*range(0, len(content), 97), *range(len(content) - 12, len(content))]
    refused = 0
    for length in lengths:
        assert_same_outcome(content[:length])
        refused += isinstance(outcome(content[:length], True), tuple)
    assert refused > 0.9 * len(lengths)


def test_a_thumbnail_does_not_pass_for_the_image(photo):
    """Its end looks like the end of the file to those who look at nothing else."""
    thumbnail = encoded(photo.resize((16, 11)), "JPEG")
    exif = b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0" + thumbnail
    content = encoded(photo, "JPEG", exif=exif)
    cut = content[: content.index(thumbnail) + len(thumbnail)]
    assert cut.endswith(thumbnail[-2:])
    with pytest.raises(DecodeError):
        decode(cut, fast=True)


def test_the_limit_of_pixels_holds_when_read_fast(photo, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(DecodeError, match="too large.*PIL.Image.MAX_IMAGE_PIXELS"):
        decode(encoded(photo, "JPEG"), fast=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"restart_marker_blocks": 3}])
def test_a_damaged_jpeg_is_as_bad_when_read_fast(photo, options):
    rng = np.random.default_rng(0)
    content = np.frombuffer(encoded(photo, "JPEG", **options), np.uint8)
    refused = 0
    for _ in range(300):
        damaged = content.copy()
        damaged[rng.integers(len(content), size=4)] = rng.integers(256, size=4)
        plain, fast = outcome(damaged.tobytes(), False), outcome(damaged.tobytes(), True)
        assert isinstance(fast, tuple) == isinstance(plain, tuple)
        refused += isinstance(plain, tuple)
    assert refused > 20
