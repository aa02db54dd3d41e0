"""The server by its routes, with a model that says how bright an image is."""

import base64
import dataclasses
import io
import json
import re
import struct
import zlib
from contextlib import contextmanager

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from vit_jax.data import Preprocessing
from vit_jax.errors import UserError
from vit_jax.inference.classifier import Classifier
from vit_jax.inference.predictor import BATCH, ArraySpec, Predictor
from vit_jax.runs import ModelRecord
from vit_jax.serving.limits import Limits
from vit_jax.serving.service import Service

testclient = pytest.importorskip("starlette.testclient", reason="of the optional group test")
pytest.importorskip("fastapi", reason="of the optional group serve")
from vit_jax.serving.app import create_app  # noqa: E402

NAMES = ("bright", "dark", "<b>odd</b>\u202e")
PREPROCESSING = Preprocessing((4, 4), 1)
RECORD = ModelRecord("brightness", {}, PREPROCESSING, NAMES, origin="trained on folder:/home/me/x")
LIMITS = Limits(body_bytes=2**16, pixels=10_000, images=3, requests=2)


class Brightness(nn.Module):
    """Logits of an image in -1 to 1: its mean, minus its mean, and 0."""

    @nn.compact
    def __call__(self, images, train=False):
        mean = images.mean((1, 2, 3)) + self.param("bias", nn.initializers.zeros, ())
        return jnp.stack([mean, -mean, 0 * mean], -1)


def png(level, size=(6, 5), **options):
    file = io.BytesIO()
    Image.new("L", size, level).save(file, options.pop("format", "PNG"), **options)
    return file.getvalue()


def shares(level):
    mean = 2 * level / 255 - 1
    weights = np.exp([mean, -mean, 0.0])
    return weights / weights.sum()


@contextmanager
def client_of(predictor, record=RECORD, limits=LIMITS, **options):
    service = Service(predictor, record.to_json(), limits, most_in_batch=4, **options)
    service.start()
    with testclient.TestClient(create_app(service), raise_server_exceptions=False) as client:
        client.service = service
        yield client


@pytest.fixture(scope="module")
def client():
    made = Classifier(Brightness(), {"bias": jnp.zeros(())}, NAMES, PREPROCESSING, step=3)
    with client_of(made) as client:
        yield client


def post(client, content, kind="image/png", address="/predict"):
    return client.post(address, content=content, headers={"content-type": kind})


def as_json(*images, **others):
    listed = [image if isinstance(image, dict) else as_base64(image) for image in images]
    return json.dumps({"images": listed, **others}).encode()


def as_base64(content):
    return base64.b64encode(content).decode()


def is_sentence(response, status, pattern):
    error = response.json()["error"]
    assert response.status_code == status, error
    assert re.search(pattern, error), error
    assert "\n" not in error and "/work" not in error and "/home" not in error
    return True


@pytest.mark.parametrize("kind", ["image/png", "application/octet-stream", "image/jpeg; q=1"])
def test_an_image_has_its_classes(client, kind):
    response = post(client, png(255), kind, "/predict?top=2")
    assert response.status_code == 200
    [image] = response.json()["images"]
    assert image["image"] == "image 1"
    assert [found["label"] for found in image["classes"]] == ["bright", NAMES[2]]
    found = [one["probability"] for one in image["classes"]]
    np.testing.assert_allclose(found, shares(255)[[0, 2]], atol=1e-6)


def test_several_images_of_a_form_or_of_json_have_theirs_in_order(client):
    contents = {"w.png": png(255), "b.jpg": png(0, format="JPEG"), "g.webp": png(51, format="WEBP")}
    files = [("image", (f"../some\\{name}", content)) for name, content in contents.items()]
    items = [{"name": name, "data": as_base64(content)} for name, content in contents.items()]
    of_form = client.post("/predict?top=3", files=files)
    of_json = post(client, as_json(*items), "application/json")
    assert of_form.json() == of_json.json()
    rows = of_form.json()["images"]
    assert [row["image"] for row in rows] == list(contents)
    for row, level in zip(rows, (255, 0, 51), strict=True):
        found = {one["label"]: one["probability"] for one in row["classes"]}
        np.testing.assert_allclose([found[name] for name in NAMES], shares(level), atol=0.01)
    one = json.dumps({"image": "data:image/png;base64," + as_base64(png(0))}).encode()
    [row] = post(client, one, "application/json").json()["images"]
    assert row["classes"][0]["label"] == "dark"


def test_a_damaged_image_is_named_and_the_others_are_answered(client):
    files = [("a", ("a.png", png(9))), ("b", ("b.png", b"text")), ("c", ("c.png", png(9)[:50]))]
    response = client.post("/predict", files=files)
    # The sentence of `predict`.
    assert is_sentence(response, 400, "^cannot read the image b.png: its content is not an image")
    first, second, third = response.json()["images"]
    assert "classes" in first and second["error"] == response.json()["error"]
    assert third["error"].startswith("cannot read the image c.png: ")
    assert is_sentence(post(client, b"text"), 400, "^cannot read the image image 1: ")


@pytest.mark.parametrize(
    ("content", "kind", "status", "pattern"),
    [
        (b"", "image/png", 400, "has no image; send a raw body"),
        (b"x", "text/html", 415, "'text/html' is not accepted; send a raw body"),
        (b"{", "application/json", 400, "the body is no JSON"),
        (b"[" * 60_000, "application/json", 400, "the body is no JSON"),
        (b"[]", "application/json", 400, 'must be {"images"'),
        (b'{"images": "aa"}', "application/json", 400, "must be a list"),
        (b'{"images": []}', "application/json", 400, "has no image"),
        (b'{"images": [7]}', "application/json", 400, "image 1 must be base64"),
        (b'{"images": ["/etc/passwd"]}', "application/json", 400, "image 1 is no base64"),
        (b'{"image": "AA==", "top": 1}', "application/json", 400, "unknown key 'top'; .*address"),
        (as_json(*[b"x"] * 4), "application/json", 413, "more than 3 images.*--max-images"),
        (b"--x", "multipart/form-data", 400, "form cannot be read"),
        (png(0, (200, 60)), "image/png", 413, "more than 10,000 pixels.*--max-megapixels"),
        (bytes(2**16 + 1), "image/png", 413, "larger than 0.0625 MiB.*--max-mb"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_a_wrong_request_is_refused_in_a_sentence(client, content, kind, status, pattern):
    assert is_sentence(post(client, content, kind), status, pattern)


def test_other_wrong_requests_are_refused_in_a_sentence(client):
    eps = png(0, format="EPS")  # Pillow would start Ghostscript
    assert is_sentence(post(client, eps), 400, "format EPS is not accepted; use JPEG")
    text = client.post("/predict", data={"a": "<b>"}, files={"b": b""})
    assert is_sentence(text, 400, "field 'a' of the form is no file")
    many = client.post("/predict", files=[("a", ("a", b"x"))] * 4)
    assert is_sentence(many, 413, "more than 3 images")
    for value in ("0", "x"):
        found = post(client, png(0), address=f"/predict?top={value}")
        assert is_sentence(found, 400, f"top='{value}' is invalid; use a whole number from 1")
    assert is_sentence(client.get("/<script>"), 404, "no such address")
    assert is_sentence(client.get("/predict"), 405, "use POST")
    assert is_sentence(post(client, png(0), address="/attention"), 400, "has no attention")


def test_a_bomb_is_known_by_its_header(client):
    """20,000 x 20,000 pixels, which Pillow itself refuses when it opens the file."""

    def chunk(kind, data):
        content = kind + data
        return struct.pack(">I", len(data)) + content + struct.pack(">I", zlib.crc32(content))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 0, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"x")
    assert is_sentence(post(client, bomb), 413, "more than 10,000 pixels")


def test_too_many_requests_are_refused_for_now(client):
    with client.service.admitted(), client.service.admitted():
        response = post(client, png(0))
        assert is_sentence(response, 503, "2 requests are waiting already; .* again later")
        assert response.headers["retry-after"] == "1"
        assert client.get("/health").status_code == 200
    assert post(client, png(0)).status_code == 200


def test_the_card_describes_the_model_without_a_path(client):
    card = client.get("/model").json()
    assert card["classes"] == list(NAMES)
    assert card["inputs"]["images"]["shape"] == ["batch", 4, 4, 1]
    assert card["cost"] == {"parameters": 1, "macs": None}
    assert card["origin"] == "trained on folder:x"
    assert (card["step"], card["attention"], card["batch_sizes"]) == (3, False, [1, 2, 4])


def test_no_text_is_markup(client):
    """Names are JSON, whose characters of direction are escaped; the page takes no scripts."""
    response = post(client, png(127), address="/predict")
    assert "\\u202e" in response.text and response.json()["images"][0]["classes"]
    for answer in (response, client.get("/model"), client.get("/<b>")):
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-content-type-options"] == "nosniff"
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert "innerHTML" not in page.text
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:)""", page.text)
    assert "://" not in page.text  # nothing from elsewhere


def test_what_was_asked_is_counted(client):
    def counted(name):
        lines = client.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    names = ['vit_jax_requests_total{path="/predict",status="200"', "vit_jax_batch_images_sum"]
    before = [counted(name) for name in names]
    client.post("/predict", files=[("a", ("a", png(1)))] * 3)
    assert [counted(name) - was for name, was in zip(names, before, strict=True)] == [1, 3]


class Photometer(Predictor):
    """The mean of the pixels, and a file of it."""

    files = "a text"

    @property
    def outputs(self):
        return {"mean": ArraySpec((BATCH,), "float32", "mean of the pixels")}

    def function(self, variables, images):
        return {"mean": images.astype("float32").mean((1, 2, 3))}

    def write(self, folder, stem, result, image):
        path = folder + f"/{stem}_mean.json"
        with open(path, "w") as file:
            json.dump({"mean": float(result["mean"]), "shape": image.shape}, file)
        return [path]


class Reader(Photometer):
    """One that is called with whole images, and cannot bear black ones."""

    def __call__(self, images, batch_size=4):
        if any(not image.any() for image in images):
            raise UserError("black")
        return [{"mean": np.float32(image.mean())} for image in images]


@pytest.mark.parametrize("kind", [Photometer, Reader])
def test_a_predictor_of_ones_own_is_served_with_its_files(kind):
    record = dataclasses.replace(RECORD, class_names=(), activation="none")
    images = [("a", (str(level), png(level))) for level in (10, 20)]
    with client_of(kind(Brightness(), {}, PREPROCESSING), record) as client:
        rows = client.post("/predict", files=images).json()["images"]
        files = [{"mean.json": {"mean": level, "shape": [5, 6, 3]}} for level in (10.0, 20.0)]
        assert [row.pop("files") for row in rows] == files
        assert rows == [{"image": "10", "mean": 10.0}, {"image": "20", "mean": 20.0}]
        assert "files" not in client.post("/predict?files=no", files=images).json()["images"][0]
        if kind is Reader:
            both = client.post("/predict", files=[*images, ("a", ("x", png(0)))])
            assert [row.get("mean") for row in both.json()["images"]] == [10.0, 20.0, None]


def test_a_failure_is_not_told_and_does_not_stop_the_server(client, monkeypatch):
    compute = client.service.predictor.batch_results

    def fails(batch):
        raise RuntimeError("a secret of /work")

    monkeypatch.setattr(client.service.predictor, "batch_results", fails)
    assert is_sentence(post(client, png(0)), 500, "the server has failed at this request")
    monkeypatch.setattr(client.service.predictor, "batch_results", compute)
    assert post(client, png(0)).status_code == 200


def test_outputs_that_are_not_finite_are_no_mistake_of_the_client():
    made = Classifier(Brightness(), {"bias": jnp.array(np.nan)}, NAMES, PREPROCESSING)
    with client_of(made) as client:
        assert is_sentence(post(client, png(0)), 500, "outputs are not finite numbers")


def test_a_model_of_clips_is_refused():
    clips = Preprocessing((4, 4), 1, frames=2)
    with pytest.raises(UserError, match="a model of clips cannot be served"):
        Service(Photometer(Brightness(), {}, clips), RECORD.to_json())
