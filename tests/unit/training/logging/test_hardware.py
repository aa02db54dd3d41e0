from types import SimpleNamespace

import jax
import pytest

from vit_jax.models import create_model
from vit_jax.training.logging import hardware
from vit_jax.training.logging.hardware import (
    Memory,
    Peak,
    find_peak,
    known_peak,
    memory,
    training_flops,
)


def device(kind="cpu", platform="gpu", process_index=0, **stats):
    return SimpleNamespace(
        device_kind=kind,
        platform=platform,
        process_index=process_index,
        memory_stats=lambda: stats or None,
    )


@pytest.mark.parametrize(
    ("kind", "float32", "bfloat16"),
    [  # as JAX names them; dense TFLOP/s of the vendors
        ("Tesla V100-SXM2-16GB", 15.7, 15.7),
        ("Tesla T4", 8.1, 8.1),
        ("NVIDIA A100-SXM4-80GB", 156, 312),
        ("NVIDIA A100 80GB PCIe", 156, 312),
        ("NVIDIA H100 80GB HBM3", 494.7, 989.4),
        ("NVIDIA H100 PCIe", 378, 756),
        ("NVIDIA H200", 494.7, 989.4),
        ("NVIDIA L4", 60, 121),
        ("NVIDIA A10G", 35, 70),
        ("NVIDIA GeForce RTX 3090", 35.6, 71),
        ("NVIDIA GeForce RTX 4090", 82.6, 165.2),
        ("TPU v2", 23, 23),
        ("TPU v3", 61.5, 61.5),
        ("TPU v4", 275, 275),
        ("TPU v5 lite", 197, 197),
        ("TPU v5", 459, 459),
        ("TPU v6 lite", 918, 918),
    ],
)
def test_known_accelerators_have_the_peak_of_their_data_sheet(kind, float32, bfloat16):
    assert known_peak(kind, "float32") == pytest.approx(float32 * 1e12)
    assert known_peak(kind, "bfloat16") == pytest.approx(bfloat16 * 1e12)


@pytest.mark.parametrize(
    "kind",
    [
        "NVIDIA L40S",
        "NVIDIA A10",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "TPU v4 lite",
        "cpu",
    ],
)
def test_near_relatives_are_not_taken_for_a_known_accelerator(kind):
    assert known_peak(kind, "bfloat16") is None


def test_the_peak_of_several_accelerators_is_that_of_all():
    eight = [device("NVIDIA A100-SXM4-40GB") for _ in range(8)]
    assert find_peak(eight, "bfloat16") == Peak(8 * 312e12, "data sheet")


def test_the_cpu_devices_of_one_process_share_its_cores(monkeypatch):
    monkeypatch.setattr(hardware, "measured_peak", lambda device, precision: 1e9)
    of_two_processes = [device(platform="cpu", process_index=i // 4) for i in range(8)]
    assert find_peak(of_two_processes, "float32") == Peak(2e9, "measured")


def test_a_measured_peak_is_that_of_a_product_and_is_measured_once(monkeypatch):
    """A clock on which every product takes a thousandth of a second."""
    now = [0.0]

    def clock():
        now[0] += 0.0005
        return now[0]

    monkeypatch.setattr(hardware, "_MEASURING_SECONDS", 0.01)
    monkeypatch.setattr("time.perf_counter", clock)
    hardware.measured_peak.cache_clear()
    [cpu, *_] = jax.devices("cpu")
    first = hardware.measured_peak(cpu, "float32")
    assert first == pytest.approx(2 * 1024**3 / 0.0005)  # one tick from start to end
    stands = now[0]
    assert hardware.measured_peak(cpu, "float32") == first and now[0] == stands
    hardware.measured_peak.cache_clear()


def test_training_takes_three_forward_passes():
    """ViT-B/16 at 224: 17.56 GMACs forward (timm's and fvcore's number), so 105.4 GFLOP."""
    assert training_flops(create_model("ViT-B/16")) == pytest.approx(105.4e9, rel=0.002)


def test_memory_is_that_of_the_fullest_device_of_this_process():
    devices = [
        device(bytes_in_use=5, peak_bytes_in_use=9),
        device(bytes_in_use=7, peak_bytes_in_use=8),
        device(process_index=1, bytes_in_use=100, peak_bytes_in_use=100),
    ]
    assert memory(devices) == Memory(in_use=7, peak=9)


def test_a_device_without_an_account_has_the_memory_of_the_process():
    before = memory([device(platform="cpu")])
    block = bytearray(b"x") * 64_000_000
    after = memory([device(platform="cpu")])
    assert 60e6 < after.in_use - before.in_use < 80e6 and len(block) == 64_000_000
    assert after.peak >= after.in_use > 0


def test_the_memory_of_the_process_stays_flat_over_two_hundred_steps(tiny_config, tmp_path):
    from vit_jax.training import fit

    changes = {"duration": "240 steps", "log.every": "40 steps", "evaluate.every": "100%"}
    run = fit(tiny_config({**changes, "checkpoint.every": "100%"}), tmp_path / "run").run
    used = [line["memory_gib"] for line in run.read_metrics() if line["kind"] == "train"]
    assert max(used[1:]) - used[0] < 16 / 1024  # of a gibibyte; 200 batches alone are 0.4 MB
