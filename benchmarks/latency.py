"""Latency of one model of every family, and of the ways to compute one model, as ratios.

    python -m benchmarks.latency                    families at 224 pixels, batch 1
    python -m benchmarks.latency --ways ViT-S/16    by everything that is installed
    python -m benchmarks.latency --batch 8 --cpu-time

The output is the tables of `docs/deploy.md`. With `--cpu-time` it is the time of this process on
all its cores, which other programs on the machine change less than the time of the clock.
"""

import argparse
import importlib.util
import time

from vit_jax.analysis.latency.tables import Row, machine, measure

# Of each family the named size that is nearest to ViT-S/16 in multiply-adds, or the smallest.
FAMILIES = {
    "ViT-S/16": "ViT",
    "ViT-Ti/16": "ViT, a quarter",
    "DeiT3-S/16": "ViT, DeiT III",
    "CaiT-XXS/24": "ViT with class attention",
    "R+ViT-Ti/16": "hybrid of CNN and ViT",
    "R26+ViT-S/32": "hybrid of CNN and ViT",
    "Swin-T": "ViT in windows",
    "SwinV2-T": "ViT in windows",
    "PVT-Small": "pyramid of a ViT",
    "PVTv2-B2": "pyramid of a ViT",
    "Mixer-B/16": "MLP",
    "ResNet-50": "CNN",
    "EfficientNet-B0": "CNN",
    "ConvNeXt-T": "CNN",
}
OF_JAX = ("jit", "bfloat16", "stablehlo", "int8", "int8xint8", "int4", "tome")
OF_OTHERS = {
    "onnxruntime": "onnxruntime",
    "onnxruntime-int8": "onnxruntime",
    "openvino": "openvino",
}


def line(row: Row, title: str, family: str = "") -> str:
    """Return a row in Markdown; times are relative to the first row."""
    cells = [f"`{title}`", *([family] if family else ())]
    cells += [_short(row.parameters / 1e6), _short(row.macs / 1e9), f"{1 / row.speed_up:.2f}"]
    memory = "" if row.memory_bytes is None else _short(row.memory_bytes / 1e6)
    return f"| {' | '.join([*cells, memory, _short(row.stored_bytes / 1e6)])} |"


def _short(number: float) -> str:
    return f"{number:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", default="", help="of a run or name, in place of families")
    parser.add_argument("--only", nargs="+", default=list(FAMILIES), help="of the families")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--image-size", type=int, default=224, help="0: the model's own")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()

    models, ways = options.only, ["jit"]
    if options.ways:
        found = [way for way, name in OF_OTHERS.items() if importlib.util.find_spec(name)]
        models, ways = [options.ways], [*OF_JAX, *found]
    rows = measure(
        models,
        ways,
        [options.batch],
        image_size=(options.image_size,) * 2 if options.image_size else None,
        seconds=options.seconds,
        clock=time.process_time if options.cpu_time else time.perf_counter,
    )
    first = "with" if options.ways else "model | family"
    print(f"| {first} | parameters, M | GMACs | time | memory, MB | stored, MB |")
    print(f"|---|{'' if options.ways else '---|'}---:|---:|---:|---:|---:|")
    for row in rows:
        title, family = (row.way, "") if options.ways else (row.model, FAMILIES[row.model])
        print(line(row, title, family))
    where = machine()
    print(
        f"\n{where['device']}, {where['cores']} cores, JAX {where['jax']}, batch {options.batch}, "
        f"{rows[0].image_size[0]} pixels; time 1 is {rows[0].p50_ms:.1f} ms"
    )


if __name__ == "__main__":
    main()
