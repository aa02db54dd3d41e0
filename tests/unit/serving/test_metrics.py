"""Counters in the text format of Prometheus."""

import re

from vit_jax.serving.metrics import Metrics

# A line of the format: a comment, or a name with labels and a number.
LINE = re.compile(r"# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{([a-z]+=\"[^\"]*\",?)+\})? -?[0-9.e+-]+")


def test_what_was_counted_is_in_the_text():
    metrics = Metrics((1, 2, 4))
    for seconds in (0.003, 0.02, 0.02, 30):
        metrics.count_request("/predict", 200, seconds)
    metrics.count_request("/predict", 413, 0.5)
    metrics.count_request("/health", 200, 0.5)
    metrics.count_request("other", 503, 0.5)
    metrics.count_images(5, 1)
    for size in (1, 3, 4):
        metrics.count_batch(size)
    text = metrics.text({"images_waiting": ("Images.", lambda: 7)})
    assert text.endswith("\n")
    lines = text.splitlines()
    assert all(LINE.fullmatch(line) for line in lines)
    samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    expected = {
        'vit_jax_requests_total{path="/predict",status="200"}': "4",
        'vit_jax_requests_total{path="/predict",status="413"}': "1",
        'vit_jax_requests_total{path="/health",status="200"}': "1",
        'vit_jax_errors_total{kind="400"}': "1",
        'vit_jax_errors_total{kind="500"}': "1",
        'vit_jax_images_total{result="answered"}': "5",
        'vit_jax_images_total{result="refused"}': "1",
        # Bounds hold all values up to them, so they grow.
        'vit_jax_request_seconds_bucket{le="0.005"}': "1",
        'vit_jax_request_seconds_bucket{le="0.025"}': "3",
        'vit_jax_request_seconds_bucket{le="10"}': "4",
        'vit_jax_request_seconds_bucket{le="+Inf"}': "5",
        "vit_jax_request_seconds_count": "5",
        "vit_jax_request_seconds_sum": "30.543",
        'vit_jax_batch_images_bucket{le="1"}': "1",
        'vit_jax_batch_images_bucket{le="2"}': "1",
        'vit_jax_batch_images_bucket{le="4"}': "3",
        "vit_jax_batch_images_sum": "8",
        "vit_jax_images_waiting": "7",
    }
    assert {name: samples[name] for name in expected} == expected | {
        'vit_jax_request_seconds_bucket{le="10"}': "4"
    }
