"""Counters and histograms of a server, in the text format that Prometheus reads.

Source: https://prometheus.io/docs/instrumenting/exposition_formats/, version 0.0.4.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Counts of values at or below each bound, their number and their sum."""

    def __init__(self, bounds: Sequence[float]):
        self._bounds = tuple(bounds)
        self._counts = [0] * len(bounds)
        self._number, self._sum = 0, 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._number += 1
        self._sum += value
        for place, bound in enumerate(self._bounds):
            self._counts[place] += value <= bound

    def lines(self, name: str) -> list[str]:
        """Return its samples."""
        buckets = [
            f'{name}_bucket{{le="{bound:g}"}} {count}'
            for bound, count in zip(self._bounds, self._counts, strict=True)
        ]
        number = self._number
        return [
            *buckets,
            f'{name}_bucket{{le="+Inf"}} {number}',
            f"{name}_sum {self._sum:.9g}",
            f"{name}_count {number}",
        ]


class Metrics:
    """Requests by path and status, images, errors, times and sizes of batches.

    sizes: of batches.
    """

    def __init__(self, sizes: Sequence[int]):
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._images = Counter({"answered": 0, "refused": 0})
        self._seconds = Histogram(_SECONDS)
        self._batches = Histogram(sizes)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request. path: one of the routes."""
        with self._lock:
            self._requests[path, status] += 1
            if path == "/predict":
                self._seconds.add(seconds)

    def count_images(self, answered: int, refused: int) -> None:
        """Count images with a result, and those that could not be read."""
        with self._lock:
            self._images.update(answered=answered, refused=refused)

    def count_batch(self, size: int) -> None:
        """Count a batch of a number of images."""
        with self._lock:
            self._batches.add(size)

    def text(self, gauges: dict[str, tuple[str, Callable[[], float]]]) -> str:
        """Return all metrics. gauges: meaning and present value by name."""
        with self._lock:
            requests = sorted(self._requests.items())
            errors = Counter({"400": 0, "500": 0})
            for (_, status), count in requests:
                if status >= 400:
                    errors[f"{status // 100}00"] += count
            parts = [
                _metric(
                    "requests_total",
                    "counter",
                    "Answered requests by path and status.",
                    [
                        f'vit_jax_requests_total{{path="{path}",status="{status}"}} {count}'
                        for (path, status), count in requests
                    ],
                ),
                _metric(
                    "errors_total",
                    "counter",
                    "Requests that failed, 400 by the client and 500 by the server.",
                    [f'vit_jax_errors_total{{kind="{k}"}} {n}' for k, n in sorted(errors.items())],
                ),
                _metric(
                    "images_total",
                    "counter",
                    "Images with a result, and images that could not be read.",
                    [
                        f'vit_jax_images_total{{result="{kind}"}} {count}'
                        for kind, count in sorted(self._images.items())
                    ],
                ),
                _metric(
                    "request_seconds",
                    "histogram",
                    "Time from the headers of a request for predictions to its answer.",
                    self._seconds.lines("vit_jax_request_seconds"),
                ),
                _metric(
                    "batch_images",
                    "histogram",
                    "Images in a batch, without padding.",
                    self._batches.lines("vit_jax_batch_images"),
                ),
            ]
        for name, (meaning, value) in gauges.items():
            parts.append(_metric(name, "gauge", meaning, [f"vit_jax_{name} {value():g}"]))
        return "\n".join(parts) + "\n"


def _metric(name: str, kind: str, meaning: str, samples: Sequence[str]) -> str:
    head = [f"# HELP vit_jax_{name} {meaning}", f"# TYPE vit_jax_{name} {kind}"]
    return "\n".join([*head, *samples])
