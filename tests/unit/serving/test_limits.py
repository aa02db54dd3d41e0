"""Bodies that are too large or too slow, at the level of ASGI messages."""

import asyncio

from vit_jax.serving.limits import BodyLimit, Limits, Refused

LIMITS = Limits(body_bytes=1000, seconds=0.05)


async def application(scope, receive, send):
    """Reads a body as a framework does, and answers its size or the refusal."""
    size, more, status = 0, True, 200
    try:
        while more:
            message = await receive()
            size, more = size + len(message["body"]), message.get("more_body", False)
    except Refused as error:
        status = error.status
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(chunks, headers=()):
    """The messages that were sent, and how many bytes had been taken from the client by each."""
    taken, sent = 0, []
    left = iter(chunks)

    async def receive():
        nonlocal taken
        chunk = next(left, None)
        if chunk is None:
            await asyncio.sleep(3600)
        body, more = chunk
        taken += len(body)
        return {"type": "http.request", "body": body, "more_body": more}

    async def send(message):
        sent.append((message, taken))

    scope = {"type": "http", "headers": list(headers)}
    asyncio.run(BodyLimit(application, LIMITS)(scope, receive, send))
    assert [message.get("more_body", False) for message, _ in sent][-1] is False
    return sent


def test_a_body_within_the_limit_passes():
    [(start, _), (body, _)] = ask([(b"x" * 600, True), (b"x" * 400, False)])
    assert (start["status"], body["body"], start["headers"]) == (200, b"1000", [])


def test_a_declared_size_is_refused_before_anything_is_read():
    endless = ((b"x" * 100, True) for _ in range(10**6))
    sent = ask(endless, [(b"content-length", b"100000000")])
    [(start, at_start), (body, at_body), (_, at_end)] = sent
    assert (start["status"], at_start, at_body) == (413, 0, 0)
    assert (b"connection", b"close") in start["headers"]
    assert body["more_body"]  # the answer is whole; only the connection stays for a moment
    assert at_end == LIMITS.body_bytes


def test_a_body_of_unknown_size_is_refused_where_it_passes_the_limit():
    sent = ask((b"x" * 300, True) for _ in range(10**6))
    [(start, at_start), _, (_, at_end)] = sent
    assert (start["status"], at_start) == (413, 1200)
    assert at_end <= 2400


def test_a_client_that_waits_to_be_asked_is_not_read():
    headers = [(b"content-length", b"100000000"), (b"expect", b"100-continue")]
    assert [taken for _, taken in ask([(b"x", True)] * 9, headers)] == [0, 0]


def test_a_body_that_is_complete_leaves_the_connection_open():
    [(start, _), _] = ask([(b"x" * 1001, False)])
    assert (start["status"], start["headers"]) == (413, [])


def test_a_slow_body_is_refused():
    [(start, _), *_] = ask([(b"x", True)])
    assert start["status"] == 408
