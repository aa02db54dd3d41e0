"""The table of published checkpoints agrees with our models and with what their authors say."""

import functools
import re
from urllib.parse import urlsplit

import jax
import pytest

from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.inputs import abstract_variables
from vit_jax.models.summary.counts import counts
from vit_jax.models.vit.weights import google, timm, torchvision
from vit_jax.weights.zoo import PUBLISHED, get_published, list_published

# Parameters in millions, as DeiT III's README, DINO's and DINOv2's state them.
STATED = {
    "DeiT3-S/16.in1k": 22.0,
    "DeiT3-B/16.in1k": 86.6,
    "DeiT3-B/16.in1k-384": 86.9,
    "DeiT3-L/16.in21k-in1k": 304.4,
    "DeiT3-L/16.in1k-384": 304.8,
    "DeiT3-H/14.in21k-in1k": 632.1,
}
STATED_ROUGHLY = {
    "DeiT-Ti/16.in1k": 5,
    "DeiT-S/16.in1k": 22,
    "DeiT-B/16.in1k": 86,
    "DeiT-B/16-distilled.in1k": 87,
    "ViT-S/16.dino": 21,
    "ViT-B/8.dino": 85,
    "DINOv2-S/14.lvd142m": 21,
    "DINOv2-B/14-reg.lvd142m": 86,
    "DINOv2-L/14.lvd142m": 300,
    "DINOv2-g/14-reg.lvd142m": 1100,
}


@pytest.mark.parametrize("name", list_published())
def test_the_model_has_as_many_parameters(name):
    """The numbers in the table are those that timm counts; torchvision's, its own."""
    published = get_published(name)
    model = create_model(published.model, **published.fields)
    # `tests/unit/models/summary/test_counts.py` has the counts of registered models.
    own = model == create_model(published.model)
    assert published.parameters == (counts(published.model).parameters if own else traced(model))


@functools.cache
def traced(model):
    """The parameters of a model; stacked, blocks are traced once."""
    if hasattr(model, "scan_layers"):
        model = model.clone(scan_layers=True)
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_variables(model)["params"]))


@pytest.mark.parametrize("name", STATED)
def test_the_authors_count_the_same(name):
    # The README cuts 22.06 off to 22.0 and rounds 86.59 to 86.6.
    assert get_published(name).parameters / 1e6 == pytest.approx(STATED[name], abs=0.1)


@pytest.mark.parametrize("name", STATED_ROUGHLY)
def test_the_authors_count_about_the_same(name):
    assert get_published(name).parameters / 1e6 == pytest.approx(STATED_ROUGHLY[name], rel=0.15)


def test_every_family_is_there():
    families = {
        "ViT-*.augreg-in21k": 6,
        "ViT-*.augreg-in21k-in1k-384": 6,
        "ViT-B/16.in21k*": 3,
        "DeiT-*": 8,
        "DeiT3-*": 14,
        "*.mae": 3,
        "*.mae-in1k": 3,
        "*.dino": 4,
        "DINOv2-*": 8,
        "*.torchvision-in1k": 9,
    }
    assert {pattern: len(list_published(pattern)) for pattern in families} == families


@pytest.mark.parametrize(
    ("name", "top1"),
    [
        ("ViT-Ti/16.augreg-in21k-in1k-384", 78.22),
        ("ViT-L/16.augreg-in21k-in1k-384", 85.59),
        ("ViT-B/16.in21k-in1k", 81.2),
        ("ViT-S/16.plain-in1k-90ep", 76.5),
        ("DeiT-S/16.in1k", 79.9),
        ("DeiT-B/16-distilled.in1k", 83.4),
        ("DeiT3-H/14.in1k", 85.2),
        ("ViT-H/14.mae-in1k", 86.928),
        ("ViT-B/16.torchvision-in1k", 81.072),
        ("Swin-T.torchvision-in1k", 81.474),
    ],
)
def test_reported_accuracies(name, top1):
    assert get_published(name).top1 == top1


def test_an_accuracy_says_how_it_was_measured_and_by_whom():
    measures = {"fine-tuned", "from scratch", "linear probe"}
    for published in PUBLISHED.values():
        assert published.source
        if published.top1 is None:
            assert not published.measured
        else:
            assert published.measured in measures
            assert 60 < published.top1 < 90


def test_origins_are_those_of_the_ecosystems():
    known = {*timm.ORIGINS, *google.ORIGINS, *torchvision.ORIGINS}
    assert {published.origin for published in PUBLISHED.values()} <= known


def test_addresses_are_public_ones_and_each_stands_once():
    hosts = {"storage.googleapis.com", "dl.fbaipublicfiles.com", "download.pytorch.org"}
    addresses = [published.where for published in PUBLISHED.values()]
    assert len(set(addresses)) == len(addresses)
    for address in addresses:
        parts = urlsplit(address)
        if parts.scheme == "hf":
            assert re.fullmatch(r"hf://[\w-]+/[\w.-]+", address), address
        else:
            assert parts.scheme == "https"
            assert parts.hostname in hosts


def test_what_a_file_does_not_say_is_known_of_a_published_one():
    hints = get_published("DINOv2-g/14-reg.lvd142m").hints
    assert (hints.origin, hints.heads, hints.image_size) == ("dinov2", 24, (518, 518))
    hints = get_published("ViT-S/16.plain-in1k-90ep").hints  # its positions are in no file
    assert (hints.origin, hints.heads, hints.image_size) == ("big_vision", 6, (224, 224))
    assert get_published("DeiT-B/16.in1k-384").image_size == 384
    hints = get_published("Swin-S.torchvision-in1k").hints  # heads are in its tables
    assert (hints.origin, hints.heads, hints.image_size) == ("torchvision", None, (224, 224))


def test_a_pattern_may_be_in_any_case():
    assert list_published("deit3-h/*") == ["DeiT3-H/14.in1k", "DeiT3-H/14.in21k-in1k"]
    assert list_published("nothing*") == []


def test_an_unknown_name_has_its_nearest_ones():
    with pytest.raises(UserError, match="no published checkpoint 'DeiT-S/16.in2k'.*DeiT-S/16.in1k"):
        get_published("DeiT-S/16.in2k")
