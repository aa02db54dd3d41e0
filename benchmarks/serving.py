"""Speed of a server under many clients, as a ratio to the bare model, and what a kill loses.

    python -m benchmarks.serving runs/digits
    python -m benchmarks.serving runs/digits --clients=16 --seconds=5 --images=4

Everything is on loopback: the server is a process of its own, the clients are threads of this one,
and each sends its next request when the last is answered. The bare model computes full batches of
prepared images, before and after the clients, so a change of load on the machine is seen.

Then the server is killed in the middle of its work and started again. Clients repeat what had no
answer; every request has to be answered in the end, and every answer has to be right.
"""

import argparse
import http.client
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.families import ROOT
from vit_jax.inference.loading import load
from vit_jax.process_setup import cores
from vit_jax.serving.engine import Engine
from vit_jax.serving.reading import Upload
from vit_jax.text import counted

MOST = 16
_HEADERS = {"content-type": "multipart/form-data; boundary=part"}
_LOST = (ConnectionError, http.client.HTTPException, TimeoutError)


class Server:
    """Server of a run in a process of its own. port: 0 for any that is free."""

    def __init__(self, run: str, port: int = 0):
        command = [sys.executable, "-m", "vit_jax", "serve", run, f"--port={port}"]
        self._process = subprocess.Popen(
            [*command, f"--max-batch={MOST}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        line = self._process.stdout.readline()
        if "is served at" not in line:
            raise RuntimeError(f"the server of {run} did not start")
        self.port = int(line.partition(";")[0].rpartition(":")[2])

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self._process.send_signal(number)
        code = self._process.wait()
        self._process.stdout.close()
        return code

    def batch_size(self) -> float:
        """Return the mean number of images of its batches."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        name = "vit_jax_batch_images"
        return float(values[f"{name}_sum"]) / float(values[f"{name}_count"])


class Client:
    """Client with one connection, made again after an error."""

    def __init__(self, port: int):
        self._port = port
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, body: bytes) -> list[str]:
        """Return the most probable class of each image."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            self._connection.request("POST", "/predict?top=1", body, _HEADERS)
            response = self._connection.getresponse()
            answer = json.loads(response.read())
        except _LOST:
            self.close()
            raise
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {answer['error']}")
        return [image["classes"][0]["label"] for image in answer["images"]]

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def form(files: list[bytes]) -> bytes:
    """Return the body of a form with image files."""
    head = b'--part\r\ncontent-disposition: form-data; name="a"; filename="a.png"\r\n\r\n'
    return b"".join(head + file + b"\r\n" for file in files) + b"--part--\r\n"


def random_files(size: tuple[int, int], count: int) -> list[bytes]:
    """Return PNG files of random images, twice as large as the model's input."""
    files = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "image.png"
        for seed in range(count):
            coarse = np.random.RandomState(seed).randint(0, 256, (5, 5)).astype(np.uint8)
            Image.fromarray(coarse).resize((2 * size[1], 2 * size[0])).save(path)
            files.append(path.read_bytes())
    return files


def bare_speed(engine: Engine, files: list[bytes], seconds: float) -> float:
    """Return images per second of the model alone, in full batches that are prepared before."""
    uploads = [Upload("image", files[i % len(files)]) for i in range(MOST)]
    prepared = [engine.prepare(upload) for upload in uploads]
    engine.compute(prepared)
    start, batches = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        engine.compute(prepared)
        batches += 1
    return MOST * batches / (time.perf_counter() - start)


def in_threads(count: int, work: Callable[[int], Any]) -> list[Any]:
    """Return what a function gives in each of several threads; raises what one of them raises."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def served_seconds(port: int, bodies: list[bytes], clients: int, seconds: float) -> np.ndarray:
    """Return the time of every request of clients that ask for some seconds."""
    end = time.perf_counter() + seconds

    def work(number: int) -> list[float]:
        client, times = Client(port), []
        while (start := time.perf_counter()) < end:
            client.ask(bodies[(number + len(times)) % len(bodies)])
            times.append(time.perf_counter() - start)
        client.close()
        return times

    return np.concatenate(in_threads(clients, work))


def report(title: str, times: np.ndarray, images: int, seconds: float, bare: float) -> str:
    """Return a row of the table."""
    speed = images * len(times) / seconds
    middle, late = 1000 * np.percentile(times, (50, 99))
    cells = (title, f"{len(times):,}", f"{middle:.1f}", f"{late:.1f}", f"{speed:,.0f}")
    return f"| {' | '.join(cells)} | {speed / bare:.2f} |"


@contextmanager
def serving(run: str) -> Iterator[Server]:
    """Context of a running server."""
    server = Server(run)
    try:
        yield server
    finally:
        code = server.stop()
    if code:
        raise RuntimeError(f"the server ended with code {code}")


def kill_and_restart(run: str, bodies: list[bytes], clients: int, each: int) -> str:
    """Kill a server while clients ask, start it again, and return what became of the requests."""
    server = Server(run)
    expected = [Client(server.port).ask(body) for body in bodies]
    answered, repeated, wrong = [0] * clients, [0] * clients, [0] * clients

    def work(number: int) -> None:
        client = Client(server.port)
        while answered[number] < each:
            place = (number + answered[number]) % len(bodies)
            try:
                labels = client.ask(bodies[place])
            except (*_LOST, OSError):
                repeated[number] += 1
                time.sleep(0.05)
                continue
            wrong[number] += labels != expected[place]
            answered[number] += 1
        client.close()

    def killed() -> Server:
        while sum(answered) < clients * each // 3:
            time.sleep(0.001)
        server.stop(signal.SIGKILL)
        return Server(run, server.port)

    with ThreadPoolExecutor(1) as killer:
        restarted = killer.submit(killed)
        in_threads(clients, work)
    code = restarted.result().stop()
    return (
        f"killed and restarted: {sum(answered):,} of {clients * each:,} requests answered, "
        f"{counted(sum(wrong), 'wrong answer')}, {sum(repeated):,} attempts without an answer were "
        f"repeated; exit code {code} after SIGTERM"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", help="run folder of a classifier")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8], help="of a request")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--each", type=int, default=60, help="requests of a client with the kill")
    options = parser.parse_args()

    predictor = load(options.run)
    engine = Engine(predictor, MOST, 50_000_000)
    files = random_files(predictor.preprocessing.size, 32)
    print("| clients | requests | p50, ms | p99, ms | images/s | of the bare model |")
    print("|---|---:|---:|---:|---:|---:|")
    sizes = []
    with serving(options.run) as server:
        for clients, images in [(1, 1), *((options.clients, n) for n in options.images)]:
            bodies = [form([files[(i + k) % 32] for k in range(images)]) for i in range(32)]
            served_seconds(server.port, bodies, clients, options.seconds / 5)
            before = bare_speed(engine, files, options.seconds / 2)
            times = served_seconds(server.port, bodies, clients, options.seconds)
            bare = (before + bare_speed(engine, files, options.seconds / 2)) / 2
            title = f"{clients}, {counted(images, 'image')} each"
            print(report(title, times, images, options.seconds, bare), flush=True)
            sizes.append(server.batch_size())
    print(f"\nbare model: {bare:,.0f} images/s; {sizes[-1]:.1f} images in a batch on average")
    bodies = [form([file]) for file in files]
    print(kill_and_restart(options.run, bodies, options.clients, options.each))
    print(f"cores: {cores()}")


if __name__ == "__main__":
    main()
