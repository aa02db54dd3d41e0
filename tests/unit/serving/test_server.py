"""The socket, and the command as a process: start, load, stop."""

import base64
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import numpy as np
import pytest
from PIL import Image

from tests.folders import ROOT
from vit_jax.cli import main
from vit_jax.errors import EXIT_USER_ERROR, UserError

pytest.importorskip("fastapi", reason="of the optional group serve")
from vit_jax.serving.server import address_of, open_socket


def test_a_port_in_use_is_a_user_error_before_the_model_is_read(capsys):
    with open_socket("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert address_of(taken) == f"http://127.0.0.1:{port}"
        assert main(["serve", "no/such/run", f"--port={port}"]) == EXIT_USER_ERROR
    error = capsys.readouterr().err
    assert f"--port={port} cannot be opened: the port is in use; choose another" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "pattern"),
    [("no host", "no address"), ("192.0.2.1", "does not have that address")],
)
def test_a_host_of_another_machine_is_a_user_error(host, pattern):
    with pytest.raises(UserError, match=pattern):
        open_socket(host, 0)


def test_a_missing_library_is_named_with_its_remedy(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main(["serve", "runs/digits"]) == EXIT_USER_ERROR
    assert "pip install 'vit_jax[serve]'" in capsys.readouterr().err


def png():
    file = io.BytesIO()
    Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16)).save(file, "PNG")
    return file.getvalue()


def post(port, body, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/predict", body, headers or {"content-type": "image/png"})
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def arrived(port):
    """Number of requests for predictions that the server has answered or is at."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as response:
        lines = response.read().decode().splitlines()
    counted = ('vit_jax_requests_total{path="/predict"', "vit_jax_requests_in_progress ")
    return sum(int(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(counted))


@pytest.mark.slow
def test_a_signal_ends_the_server_after_it_has_answered_everything(finished_run):
    command = [sys.executable, "-m", "vit_jax", "serve", str(finished_run.path), "--port=0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [*command, "--max-batch=4"], stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        port = int(server.stdout.readline().rpartition(";")[0].rpartition(":")[2])
        status, expected = post(port, png())
        assert status == 200

        many = json.dumps({"images": [base64.b64encode(png()).decode()] * 64}).encode()
        found = []
        asking = [
            threading.Thread(
                target=lambda: found.append(post(port, many, {"content-type": "application/json"}))
            )
            for _ in range(4)
        ]
        for thread in asking:
            thread.start()
        # Half of a request has arrived when the signal comes; the rest is still awaited.
        late = socket.create_connection(("127.0.0.1", port), timeout=60)
        head = f"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: {len(png())}\r\n\r\n"
        late.sendall(head.encode() + png()[:20])
        while arrived(port) < 6:
            time.sleep(0.02)
        server.send_signal(signal.SIGTERM)
        time.sleep(0.1)
        late.sendall(png()[20:])
        answer = b"".join(iter(lambda: late.recv(65536), b""))
        for thread in asking:
            thread.join()
        assert server.wait(60) == 0
        assert "all requests that had arrived are answered" in server.stdout.read()
        assert [status for status, _ in found] == [200] * 4
        assert [len(of_many["images"]) for _, of_many in found] == [64] * 4
        late.close()
        rows = [image for _, of_many in found for image in of_many["images"]]
        rows += json.loads(answer.partition(b"\r\n\r\n")[2])["images"]
        [first] = expected["images"]
        for row in rows:  # other sizes of batches round differently
            for one, other in zip(row["classes"], first["classes"], strict=True):
                assert one["label"] == other["label"]
                assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
