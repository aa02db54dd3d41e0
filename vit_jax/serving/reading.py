"""Images of a request: a raw body, the files of a form, or base64 in JSON."""

import base64
import binascii
import json
import re
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request

from vit_jax.errors import shown
from vit_jax.serving.limits import BAD_REQUEST, TOO_LARGE, WRONG_TYPE, Limits, Refused

_LONGEST_NAME = 200
# The second is what curl --data-binary says of any file.
_RAW = ("application/octet-stream", "application/x-www-form-urlencoded", "")
_FORM, _JSON = "multipart/form-data", "application/json"
_DATA_URL = re.compile(r"data:[\w.+/-]*;base64,")
_HOW = 'a raw body of type image/*, files of a multipart form, or JSON {"images": [BASE64, ...]}'


class Upload(NamedTuple):
    """Image file of a request. name: for its result and for messages."""

    name: str
    content: bytes


async def read_uploads(request: Request, limits: Limits) -> list[Upload]:
    """Return the images of a request, at least one.

    Raises Refused for a body that holds none or too many, or is none of the known types.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == _FORM:
        found = await _of_form(request, limits)
    elif kind == _JSON:
        found = _of_json(await request.body())
    elif kind in _RAW or kind.startswith("image/"):
        body = await request.body()
        found = [Upload("image 1", body)] if body else []
    else:
        raise Refused(WRONG_TYPE, f"a body of type {shown(kind)} is not accepted; send {_HOW}")
    if not found:
        raise Refused(BAD_REQUEST, f"the request has no image; send {_HOW}")
    if len(found) > limits.images:
        raise _too_many(limits)
    return found


async def _of_form(request: Request, limits: Limits) -> list[Upload]:
    found = []
    try:
        async with request.form(max_files=limits.images, max_fields=limits.images) as form:
            for field, value in form.multi_items():
                if isinstance(value, str):
                    raise Refused(
                        BAD_REQUEST,
                        f"the field {shown(field)} of the form is no file; with curl, send an "
                        "image as -F image=@FILE",
                    )
                name = _short_name(value.filename or "", len(found) + 1)
                found.append(Upload(name, await value.read()))
    except HTTPException as error:
        if "Too many" in error.detail:
            raise _too_many(limits) from error
        raise Refused(BAD_REQUEST, f"the form cannot be read: {error.detail}") from error
    return found


def _of_json(body: bytes) -> list[Upload]:
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(BAD_REQUEST, f"the body is no JSON: {error}") from error
    if not isinstance(asked, dict) or len({"image", "images"} & asked.keys()) != 1:
        raise Refused(
            BAD_REQUEST, 'the JSON must be {"images": [BASE64, ...]} or {"image": BASE64}'
        )
    if unknown := sorted(asked.keys() - {"image", "images"}):
        raise Refused(
            BAD_REQUEST,
            f"the JSON has an unknown key {shown(unknown[0])}; options are part of the address, "
            "such as /predict?top=5",
        )
    images = asked["images"] if "images" in asked else [asked["image"]]
    if not isinstance(images, list):
        raise Refused(BAD_REQUEST, f"images must be a list of base64, not {shown(images)}")
    return [_of_item(item, number) for number, item in enumerate(images, start=1)]


def _of_item(item: Any, number: int) -> Upload:
    name, text = "", item
    if isinstance(item, dict) and item.keys() <= {"name", "data"}:
        name, text = item.get("name", ""), item.get("data")
    if not isinstance(text, str) or not isinstance(name, str):
        raise Refused(
            BAD_REQUEST,
            f'image {number} must be base64, or {{"name": NAME, "data": BASE64}}, not '
            f"{shown(item)}",
        )
    if prefix := _DATA_URL.match(text):
        text = text[prefix.end() :]
    try:
        content = base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refused(BAD_REQUEST, f"image {number} is no base64: {error}") from error
    return Upload(_short_name(name, number), content)


def _short_name(name: str, number: int) -> str:
    """Return the name of a file without its folders, or a number in place of an empty one."""
    last = re.split(r"[/\\]", name)[-1].strip()
    return last[:_LONGEST_NAME] or f"image {number}"


def _too_many(limits: Limits) -> Refused:
    return Refused(
        TOO_LARGE,
        f"the request has more than {limits.images} images; send them in several requests, or "
        "start the server with a larger --max-images",
    )
