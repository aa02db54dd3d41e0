"""A web server on this machine, for tests of downloads: it knows ranges, and can misbehave."""

import contextlib
import http.server
import re
import threading
from dataclasses import dataclass, field


@dataclass
class Site:
    """What a server gives out, how it misbehaves, and what it was asked.

    files: content by path. headers: of paths, besides those of the server.
    cut: how many bytes to send before the connection is cut, for each request in turn.
    length: what Content-Length says instead of the truth.
    status: an answer to everything. ranges: whether parts are given out.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    version: str = '"1"'
    cut: list[int] = field(default_factory=list)
    length: int | None = None
    status: int | None = None
    ranges: bool = True
    shift: int = 0
    requests: list[tuple[str, str, str | None]] = field(default_factory=list)
    address: str = ""


@contextlib.contextmanager
def serve(site: Site):
    """Serves a site while the block runs; its `address` is where."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(with_body=False)

        def do_GET(self):
            self.answer(with_body=True)

        def answer(self, with_body):
            wanted = self.headers.get("Range")
            site.requests.append((self.command, self.path, wanted))
            content = site.files.get(self.path)
            if site.status or content is None:
                self.send_response(site.status or 404)
                self.finish_headers(0)
                return
            start = 0
            current = self.headers.get("If-Range", site.version) == site.version
            if wanted and site.ranges and current:
                start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
                if start >= len(content):
                    self.send_response(416)
                    self.finish_headers(0)
                    return
                self.send_response(206)
                span = f"bytes {start + site.shift}-{len(content) - 1}/{len(content)}"
                self.send_header("Content-Range", span)
            else:
                self.send_response(302 if "Location" in site.headers.get(self.path, {}) else 200)
            body = content[start:]
            self.finish_headers(len(body) if site.length is None else site.length)
            if with_body:
                self.wfile.write(body[: site.cut.pop(0)] if site.cut else body)

        def finish_headers(self, length):
            if site.version:
                self.send_header("ETag", site.version)
            for name, value in site.headers.get(self.path, {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(length))
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    site.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
