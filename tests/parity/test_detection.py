"""Average precision and losses are what other programs give for random objects and detections."""

import contextlib
import io

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.peers import import_torchvision
from tests.support.architectures import DENSE
from vit_jax.evaluation.dense.detection import METRICS, Boxes, average_precision, dataset_of
from vit_jax.models.detection import Detections
from vit_jax.models.detection.heads import cornered
from vit_jax.tasks.detection.task import Detection

pytestmark = pytest.mark.parity


def test_pycocotools_and_faster_coco_eval_agree():
    other = pytest.importorskip("faster_coco_eval", reason="of the optional group parity")
    random = np.random.RandomState(0)
    truth, found = [], []
    for _ in range(60):
        count, wrong = random.randint(0, 6), random.randint(0, 5)
        low = random.rand(count + wrong, 2) * 200
        boxes = np.concatenate([low, low + 5 + random.rand(count + wrong, 2) * 120], axis=1)
        classes = random.randint(0, 4, count + wrong)
        truth.append(Boxes(boxes[:count], classes[:count]))
        seen = np.concatenate([random.rand(count) < 0.8, np.ones(wrong, bool)])
        moved = (boxes + random.randn(*boxes.shape) * 4)[seen]
        found.append(Boxes(moved, classes[seen], random.rand(seen.sum())))
    ours = average_precision(truth, found, 4)
    with contextlib.redirect_stdout(io.StringIO()):
        sets = []
        for images in (truth, found):
            made = other.COCO()
            made.dataset = dataset_of(images, 4).dataset
            made.createIndex()
            sets.append(made)
        judge = other.COCOeval_faster(*sets, "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    assert list(ours) == list(METRICS)
    for name, theirs in zip(METRICS, judge.stats, strict=False):
        assert ours[name] == pytest.approx(float(theirs), abs=1e-9), name


def test_the_losses_are_those_of_transformers():
    torch = pytest.importorskip("torch", reason="of the optional group parity")
    import_torchvision()
    transformers = pytest.importorskip("transformers", reason="of the optional group parity")
    from transformers.loss.loss_for_object_detection import ForObjectDetectionLoss

    random = np.random.RandomState(1)
    counts, classes = (3, 0, 5, 1), 4
    layers = [(random.randn(4, 7, classes + 1), 0.1 + 0.8 * random.rand(4, 7, 4)) for _ in range(2)]
    truth = np.zeros((4, 6, 4))
    labels = random.randint(0, classes, (4, 6))
    for i, count in enumerate(counts):
        truth[i, :count] = 0.2 + 0.4 * random.rand(count, 4)
    config = transformers.DetrConfig(num_labels=classes, auxiliary_loss=True)
    theirs = [
        (torch.tensor(logits).float(), torch.tensor(boxes).float()) for logits, boxes in layers
    ]
    targets = [
        {"class_labels": torch.tensor(labels[i, :n]), "boxes": torch.tensor(truth[i, :n]).float()}
        for i, n in enumerate(counts)
    ]
    expected, parts, _ = ForObjectDetectionLoss(
        *(theirs[1][0], targets, "cpu", theirs[1][1], config),
        outputs_class=torch.stack([logits for logits, _ in theirs]),
        outputs_coord=torch.stack([boxes for _, boxes in theirs]),
    )

    first, last = (Detections(jnp.asarray(logits), jnp.asarray(boxes)) for logits, boxes in layers)
    pixels = jnp.where(truth.sum(-1, keepdims=True) > 0, cornered(jnp.asarray(truth)) * 32, 0)
    batch = {"image": jnp.zeros((4, 32, 32, 3)), "boxes": pixels, "classes": jnp.asarray(labels)}
    task = Detection(DENSE["DETR"])
    losses = task.losses(task.sums(last.replace(aux=(first,)), batch))
    assert float(losses["loss"]) == pytest.approx(float(expected), rel=1e-5)
    assert float(losses["class_loss"]) == pytest.approx(float(parts["loss_ce"]), rel=1e-5)
    assert float(losses["box_loss"]) == pytest.approx(float(parts["loss_bbox"]), rel=1e-5)
    assert float(losses["giou_loss"]) == pytest.approx(float(parts["loss_giou"]), rel=1e-5)
