"""Throughput of the input pipeline per core, relative to a plain loop over Pillow.

    python -m benchmarks.input_pipeline            some ten minutes on two cores
    python -m benchmarks.input_pipeline --quick    to check that it runs

Four sources: the digits, in memory; a folder of JPEG files of 500 x 375 pixels, cut from
scikit-learn's two photographs; the same photographs in ArrayRecord files; and a folder of them at
2,000 x 1,500 pixels, similar to those of phones. Photographs become random crops of 224 pixels,
flipped at random.

A rate is images per second of CPU time, over all processes and threads: it does not depend on other
load of the machine, and multiplied by the cores it is the maximum rate of a machine. Process
startup is excluded, since it occurs once: each rate is from a long run minus a short one. Every
rate is next to that of the plain loop (open, convert, crop, resize, flip, stack) over the same
images, measured just before; a ratio is the median of the rounds.
"""

import argparse
import io
import multiprocessing
import os
import resource
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image
from sklearn.datasets import load_sample_images

from vit_jax.data import Augment, Preprocessing, Source, open_source, train_batches
from vit_jax.data.images.decoding import opencv

BATCH = 64
WORKERS = (0, 1, 2, 4)
PHOTOGRAPHS = 256


class Case(NamedTuple):
    """Source with its training pipeline, and the equivalent plain loop."""

    name: str
    source: Source
    preprocess: Preprocessing
    augment: Augment
    files: Sequence[str | bytes]
    change: Callable[[Image.Image, np.random.Generator], Image.Image]
    images: int  # of a long run (some seconds)


class Photographs(tfds.core.GeneratorBasedBuilder):
    """TFDS builder `photographs`: the unchanged files of a folder."""

    VERSION = tfds.core.Version("1.0.0")
    folder: Path

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=["china", "flower"]),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager):
        del dl_manager
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for path in sorted(self.folder.glob("*/*.jpg")):
            yield path.name, {"image": path.read_bytes(), "label": path.parent.name}


def write_photographs(folder: Path, count: int, enlarged: int = 1) -> list[str]:
    """Write JPEG files of 500 x 375 pixels, or `enlarged`; return their paths."""
    rng = np.random.default_rng(0)
    photographs = dict(zip(("china", "flower"), load_sample_images().images, strict=True))
    paths = []
    for name, pixels in photographs.items():
        (folder / name).mkdir(parents=True)
        for index in range(count // 2):
            left, top = (int(n) for n in rng.integers((141, 53)))  # of 640 x 427 pixels
            path = folder / name / f"{name}{index:03}.jpg"
            part = Image.fromarray(pixels[top : top + 375, left : left + 500])
            part = part.resize((500 * enlarged, 375 * enlarged), Image.Resampling.BICUBIC)
            part.save(path, quality=95)
            paths.append(str(path))
    return paths


def random_crop(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return a random crop of 8 to 100 % of the image at 224 x 224 pixels, flipped at random."""
    area = image.width * image.height * rng.uniform(0.08, 1)
    ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
    width = min(image.width, round(np.sqrt(area * ratio)))
    height = min(image.height, round(np.sqrt(area / ratio)))
    left = int(rng.integers(image.width - width + 1))
    top = int(rng.integers(image.height - height + 1))
    image = image.crop((left, top, left + width, top + height))
    return flip(image.resize((224, 224), Image.Resampling.BICUBIC), rng)


def flip(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Return the image or its mirror image."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if rng.random() < 0.5 else image


def make_cases(folder: Path, quick: bool) -> list[Case]:
    """Create the four sources, writing their files if needed."""
    paths = write_photographs(folder / "train", 16 if quick else PHOTOGRAPHS)
    large = write_photographs(folder / "large" / "train", 16 if quick else 64, enlarged=4)
    Photographs.folder = folder / "train"
    digits = open_source("digits", "train", data_dir=folder / "tfds")
    pngs = []
    for index in range(len(digits)):
        file = io.BytesIO()
        Image.fromarray(digits[index]["image"][:, :, 0]).save(file, "PNG")
        pngs.append(file.getvalue())
    folder_case = photograph_case(folder, paths, quick)
    photographs = folder_case[2:]
    return [
        Case(
            "digits, in memory",
            digits,
            Preprocessing((8, 8), channels=1),
            Augment(flip=0.5),
            pngs,
            flip,
            1024 if quick else 200_000,
        ),
        folder_case,
        Case(
            "ArrayRecord",
            open_source("tfds:photographs", "train", data_dir=folder / "tfds"),
            *photographs,
        ),
        Case(
            "folder of large JPEGs",
            open_source(f"folder:{folder / 'large'}", "train"),
            *photographs[:2],
            large,
            random_crop,
            64 if quick else 512,
        ),
    ]


def photograph_case(folder: Path, paths: Sequence[str], quick: bool) -> Case:
    """Return the case of the photographs at `paths`, in `train/` of the folder."""
    return Case(
        "folder of JPEGs",
        open_source(f"folder:{folder}", "train"),
        Preprocessing((224, 224)),
        Augment(random_resized_crop=0.08, flip=0.5),
        paths,
        random_crop,
        64 if quick else 2048,
    )


def processor_time() -> float:
    """Return the CPU seconds of this process and its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def loop_rate(case: Case) -> float:
    """Return the images per second of the plain loop."""
    rng = np.random.default_rng(0)
    # The loop starts no workers, so fewer images suffice.
    batches = max(1, min(case.images, 4096) // BATCH)
    mode = "L" if case.preprocess.channels == 1 else "RGB"
    start = processor_time()
    for _ in range(batches):
        batch = []
        for index in rng.integers(len(case.files), size=BATCH):
            file = case.files[index]
            image = Image.open(io.BytesIO(file) if isinstance(file, bytes) else file)
            batch.append(np.asarray(case.change(image.convert(mode), rng)))
        np.stack(batch)
    return batches * BATCH / (processor_time() - start)


def pipeline_rate(case: Case, workers: int, clock: Callable[[], float] = processor_time) -> float:
    """Return the images per second of `train_batches`, timed by `clock`."""

    def seconds(steps):
        start = clock()
        batches = train_batches(
            case.source,
            case.preprocess,
            case.augment,
            batch_size=BATCH,
            seed=0,
            start_step=0,
            total_steps=steps,
            workers=workers,
        )
        assert sum(1 for _ in batches) == steps
        for worker in multiprocessing.active_children():
            worker.join()  # CPU time of a process counts once it was joined
        return clock() - start

    short = max(1, workers)  # every worker has started and produced one batch
    long = case.images // BATCH + short
    before = seconds(short)
    # In a quick run the noise may be more than the difference.
    return (long - short) * BATCH / max(1e-3, seconds(long) - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="few images; the rates are meaningless"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds")
    parser.add_argument("--workers", type=int, nargs="*", help="numbers of worker processes")
    parser.add_argument("--only", default="", help="sources with this in their name, such as JPEG")
    options = parser.parse_args()
    workers = options.workers or (WORKERS[:2] if options.quick else WORKERS)
    rounds = 1 if options.quick else options.rounds

    with tempfile.TemporaryDirectory() as folder:
        cases = make_cases(Path(folder), options.quick)
        print(f"{os.cpu_count()} cores; decoding by {'OpenCV' if opencv() else 'Pillow'}")
        print(f"{'images/s/core':22}{'workers':>8}{'plain loop':>12}{'pipeline':>12}{'ratio':>8}")
        for case in (case for case in cases if options.only in case.name):
            for count in workers:
                rates = [(loop_rate(case), pipeline_rate(case, count)) for _ in range(rounds)]
                plain, ours = (statistics.median(column) for column in zip(*rates, strict=True))
                ratio = statistics.median(ours / plain for plain, ours in rates)
                print(
                    f"{case.name:22}{count:8} {plain:11,.0f} {ours:11,.0f} {ratio:7.2f}", flush=True
                )


if __name__ == "__main__":
    main()
