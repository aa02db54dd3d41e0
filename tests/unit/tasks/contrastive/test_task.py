"""The contrastive task: its loss, a frozen image tower, its cap, and what it refuses."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.support.shapes import random_tree
from vit_jax.errors import UserError
from vit_jax.models import create_model
from vit_jax.models.inputs import trace_init
from vit_jax.tasks.contrastive.task import Contrastive
from vit_jax.training.setup.build import build

PROMPTS = (((1, 2, 5), (1, 3, 5)), ((1, 4, 5), (1, 1, 5)))
SMALL = {
    "dataset": "captions:digits",
    "task": "contrastive",
    "objective.embed_width": "4",
    "objective.text_width": "8",
    "objective.text_depth": "1",
    "objective.text_heads": "2",
}


@pytest.fixture(scope="module")
def task():
    model = create_model(
        "ViT-Ti/16", image_size=8, patch_size=8, width=8, depth=1, heads=2, num_classes=0
    )
    towers = {"embed_width": 4, "text_width": 8, "text_depth": 1, "text_heads": 2}
    return Contrastive(model, vocabulary=6, length=3, prompts=PROMPTS, **towers)


@pytest.fixture(scope="module")
def batch():
    images = np.random.RandomState(0).rand(4, 8, 8, 3).astype(np.float32)
    texts = jnp.array([[1, 2, 5], [1, 3, 5], [1, 2, 5], [1, 4, 5]])
    return {"image": jnp.asarray(images), "text": texts, "mask": jnp.array([1.0, 1, 1, 0])}


@pytest.fixture(scope="module")
def variables(task, batch):
    return jax.jit(task.init)(jax.random.key(0), batch)


def loss_of(task, variables, batch):
    return jax.jit(lambda *a: task.loss(*a, jax.random.key(0), train=True))(variables, batch)


@functools.partial(jax.jit, static_argnums=0)
def vectors_of(task, variables, batch):
    return task.image_vectors(variables, batch["image"])[0], task.text_vectors(
        variables, batch["text"]
    )


def test_the_loss_is_that_of_the_vectors_of_both_towers(task, variables, batch):
    images, texts = map(np.asarray, vectors_of(task, variables, batch))
    for vectors in (images, texts):
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(texts[0], texts[2])
    # By hand, for the three that are no padding; the first and the third share their caption.
    logits = np.asarray(images[:3] @ texts[:3].T, np.float64) / 0.07
    targets = np.array([[0.5, 0, 0.5], [0, 1, 0], [0.5, 0, 0.5]])
    expected = 0
    for one, q in ((logits, targets), (logits.T, targets.T)):
        expected -= (q * (one - np.log(np.exp(one).sum(1, keepdims=True)))).sum() / 2
    total, weight, metrics, _ = loss_of(task, variables, batch)
    np.testing.assert_allclose([total, weight], [expected, 3], rtol=1e-4)
    np.testing.assert_allclose(metrics["scale"] / weight, 1 / 0.07, rtol=1e-5)


def test_a_wrong_text_that_differs_adds_to_the_loss_of_its_image(task, variables, batch):
    task = dataclasses.replace(task, wrong_texts=2.0)
    assert set(task.inputs) == {"image", "text", "wrong_text"}
    wrong = jnp.array([[1, 3, 5], [1, 3, 5], [1, 4, 5], [1, 1, 5]])  # the second is the text itself
    without = loss_of(dataclasses.replace(task, wrong_texts=0.0), variables, batch)
    found = loss_of(task, variables, {**batch, "wrong_text": wrong})
    images, texts = map(np.asarray, vectors_of(task, variables, batch))
    others = np.asarray(vectors_of(task, variables, {**batch, "text": wrong})[1])
    right, mistaken = ((images * x).sum(1) / 0.07 for x in (texts, others))
    losses = np.log1p(np.exp(mistaken - right))[[0, 2]]  # the fourth is padding
    np.testing.assert_allclose(found.total - without.total, 2 * losses.sum(), rtol=1e-3)
    assert found.metrics["told_apart"] == 1 + (right > mistaken)[[0, 2]].sum()
    judged = task.loss(variables, batch, jax.random.key(0), train=False)
    assert "told_apart" not in judged.metrics  # held-out data need no wrong texts


def test_the_sigmoid_has_a_bias_and_the_scale_of_its_paper(task, batch):
    sigmoid = dataclasses.replace(task, kind="sigmoid")
    variables = jax.jit(sigmoid.init)(jax.random.key(0), batch)
    learned = variables["params"]["logits"]
    np.testing.assert_allclose([learned["scale"], learned["bias"]], [np.log(10), -10], rtol=1e-6)
    images, texts = map(np.asarray, vectors_of(sigmoid, variables, batch))
    logits = (10 * images @ texts.T - 10)[:3, :3]
    signs = np.array([[1, -1, 1], [-1, 1, -1], [1, -1, 1]])
    total = loss_of(sigmoid, variables, batch).total
    np.testing.assert_allclose(total, np.log1p(np.exp(-signs * logits)).sum(), rtol=1e-4)


def test_without_a_projection_the_pooled_features_are_the_vectors(task, batch):
    bare = dataclasses.replace(task, image_projection=False, embed_width=8, text_pool="last")
    variables = random_tree(trace_init(bare, batch))
    assert "projection" not in variables["params"]
    assert set(bare.roles(variables["params"])) == set(variables["params"])
    pooled = np.asarray(jax.jit(bare.features)(variables, batch))
    vectors, _ = vectors_of(bare, variables, batch)
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors, expected, rtol=1e-5)
    with pytest.raises(ValueError, match="vectors of 8 numbers, but embed_width = 4"):
        narrow = dataclasses.replace(bare, embed_width=4)
        trace_init(narrow, batch)


def test_fields_of_the_text_tower_follow_its_pooling_or_are_set(task):
    assert (task.text.activation, task.text.norm_eps) == ("quick_gelu", 1e-5)
    last = dataclasses.replace(task, text_pool="last").text
    assert (last.activation, last.norm_eps, last.causal) == ("gelu_tanh", 1e-6, False)
    own = dataclasses.replace(
        task, text_activation="gelu", text_norm_eps=1e-4, text_mlp_width=12, text_end_token=5
    ).text
    assert (own.activation, own.norm_eps, own.hidden_width) == ("gelu", 1e-4, 12)
    assert own.end_token == 5


def test_a_class_is_the_direction_of_the_mean_of_its_prompts(task, variables):
    found = jax.jit(task.class_vectors)(variables)
    vectors = jax.jit(task.text_vectors)
    for number, prompts in enumerate(PROMPTS):
        mean = np.asarray(vectors(variables, np.array(prompts))).mean(0)
        np.testing.assert_allclose(found[number], mean / np.linalg.norm(mean), rtol=1e-4)


def test_the_scale_is_capped_after_each_update(task):
    @dataclasses.dataclass
    class State:
        params: dict

        replace = dataclasses.replace

    for scale, expected in ((9.0, np.log(100)), (2.0, 2.0)):
        state = State({"logits": {"scale": jnp.float32(scale)}, "text": 0})
        after = task.after_update(state).params
        np.testing.assert_allclose(after["logits"]["scale"], expected, rtol=1e-6)
    sigmoid = dataclasses.replace(task, kind="sigmoid")
    assert sigmoid.after_update(state) is state


def test_a_frozen_image_tower_is_no_parameter_and_starts_as_the_trained_one(task, variables, batch):
    frozen = dataclasses.replace(task, freeze_image=True)
    trained = {"params": variables["params"]["image"]}
    drawn = random_tree(trace_init(frozen, batch))
    begun = frozen.start_from(drawn, trained)
    assert set(begun["params"]) == {"projection", "text", "logits"}
    assert set(frozen.roles(begun["params"])) == set(begun["params"])
    assert begun["frozen"]["image"] is trained["params"]
    of_both = [
        jax.jit(one.features)(known, batch) for one, known in ((frozen, begun), (task, variables))
    ]
    np.testing.assert_array_equal(*of_both)
    state = loss_of(frozen, begun, batch).state
    jax.tree.map(np.testing.assert_array_equal, state["frozen"]["image"], trained["params"])


def test_wrong_fields_are_one_sentence(task):
    for change, said in (
        ({"kind": "hinge"}, "kind = 'hinge' must be one of softmax, sigmoid"),
        ({"embed_width": 0}, "embed_width = 0 must be a whole number from 1"),
        ({"wrong_texts": -1.0}, r"wrong_texts = -1\.0 must be a weight from 0"),
        ({"max_scale": 0.0}, r"max_scale = 0\.0 must be above 0"),
    ):
        with pytest.raises(ValueError, match=said):
            dataclasses.replace(task, **change)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"accumulate_steps": "2"}, "accumulate_steps = 2 .*depends on the whole batch"),
        ({"dataset": "digits"}, "digits has no captions.*captions:DATASET"),
        ({"objective.wrong_texts": "1"}, "gives no 'wrong_text' .*the task contrastive needs"),
        ({"objective.freeze_image": "true"}, "it is untrained; name a trained one"),
    ],
)
def test_what_cannot_be_learned_is_one_sentence(tiny_config, changes, said):
    with pytest.raises(UserError, match=said):
        build(tiny_config({**SMALL, **changes}))


def test_captions_of_a_file_have_the_tokenizer_that_is_trained_on_them(tiny_config, tmp_path):
    for number in range(4):
        Image.new("L", (8, 8), 60 * number).save(tmp_path / f"{number}.png")
    lines = [f"{number}.png,a picture of the number {number}" for number in range(4)]
    (tmp_path / "captions.csv").write_text("\n".join(["path,caption", *lines]))
    changes = {**SMALL, "dataset": f"csv:{tmp_path}/captions.csv", "batch_size": "2"}
    made = build(tiny_config(changes))
    tokenizer = made.train_source.tokenizer
    assert (made.task.vocabulary, made.task.length) == (tokenizer.vocabulary, tokenizer.length)
    assert made.task.prompts == () and made.task.monitor == ("loss", "min")
    assert made.test_source.tokenizer.difference(tokenizer) == ""
    tokenizer.save(tmp_path / "own")
    again = build(tiny_config({**changes, "data.tokenizer": str(tmp_path / "own")}))
    assert again.fingerprint == made.fingerprint
    (tmp_path / "captions.csv").write_text("path,url\n0.png,a\n1.png,b\n")
    with pytest.raises(UserError, match=r"captions\.csv has no column of captions; the columns"):
        build(tiny_config(changes))
    changes |= {"data.tokenizer": str(tmp_path / "nowhere")}
    with pytest.raises(UserError, match=r"data\.tokenizer = '.*nowhere': .* cannot be read"):
        build(tiny_config(changes))
