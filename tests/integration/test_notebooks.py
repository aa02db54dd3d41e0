"""Every notebook runs from top to bottom and shows its figures, and is stored with them."""

import json
import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.folders import ROOT
from tests.support.processes import compiled_for_speed

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# How many figures each notebook shows; add new notebooks here.
FIGURES = {
    "01_train_and_look": 4,
    "02_attention": 8,
    "03_fine_tune_your_own_images": 6,
    "04_positions": 5,
    "05_vit_versus_cnn": 4,
    "06_inside_a_training_run": 2,
    "07_masked_autoencoder": 4,
    "08_images_and_texts": 4,
    "09_segmentation": 4,
    "10_one_model_four_answers": 3,
}

# Those that train their own models, with or without a run, and have their own test below.
OWN_MODELS = {"04_positions", "05_vit_versus_cnn", "06_inside_a_training_run"}
OWN_MODELS |= {"07_masked_autoencoder", "08_images_and_texts"}
OWN_MODELS |= {"09_segmentation", "10_one_model_four_answers"}

# Two run with the slow tests: this one on a run that is there, the first without.
WHEN = {"02_attention": pytest.mark.slow}

TRAINS = "so a small model is trained"


@pytest.fixture
def execute(data_dir, monkeypatch):
    """Execute a notebook on a run folder; raise the error of the first cell that fails."""

    def run(path, run_folder):
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        monkeypatch.setenv("TFDS_DATA_DIR", data_dir)
        monkeypatch.setenv("VIT_JAX_RUN", str(run_folder))
        compiled_for_speed(monkeypatch)
        monkeypatch.delenv("MPLBACKEND", raising=False)  # figures go where the kernel shows them
        notebook = nbformat.read(path, as_version=4)
        where = {"metadata": {"path": str(ROOT / "notebooks")}}
        NotebookClient(notebook, timeout=600, kernel_name="python3", resources=where).execute()
        return [output for cell in notebook.cells for output in cell.get("outputs", [])]

    return run


def count_figures(outputs):
    return sum("image/png" in output.get("data", {}) for output in outputs)


def printed(outputs):
    return "".join(output.text for output in outputs if output.get("name") == "stdout")


def without_run(execute, name):
    """The outputs of a notebook that finds no run, which draws all its figures."""
    outputs = execute(ROOT / "notebooks" / f"{name}.ipynb", "none")
    assert count_figures(outputs) == FIGURES[name]
    return outputs


def shares_of(outputs):
    """Metrics in percent by name, of lines that say nothing else."""
    return dict(re.findall(r"^(\w+) +([\d.]+) %$", printed(outputs), re.M))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=WHEN.get(path.stem, pytest.mark.long))
        for path in NOTEBOOKS
        if path.stem not in OWN_MODELS
    ],
)
def test_a_notebook_looks_at_a_run_that_is_there(path, execute, finished_run):
    outputs = execute(path, finished_run.path)
    assert TRAINS not in printed(outputs)
    assert count_figures(outputs) == FIGURES[path.stem]


@pytest.mark.long
def test_the_row_of_a_class_token_is_no_patch(execute, tiny_config, tmp_path):
    from vit_jax.training import fit

    run = fit(tiny_config({"model.pool": "cls", "duration": "2 steps"}), tmp_path / "run").run
    outputs = execute(ROOT / "notebooks/01_train_and_look.ipynb", run.path)
    assert count_figures(outputs) == FIGURES["01_train_and_look"]


@pytest.mark.slow
def test_without_a_run_the_first_notebook_trains_one_that_reads_digits(execute, tmp_path):
    outputs = execute(ROOT / "notebooks/01_train_and_look.ipynb", tmp_path / "none")
    assert TRAINS in printed(outputs)
    assert not (tmp_path / "none").exists()
    assert count_figures(outputs) == FIGURES["01_train_and_look"]
    right, total = re.search(r"(\d+) of (\d+) images are correct", printed(outputs)).groups()
    assert int(total) == 360
    assert int(right) > 300  # a linear classifier on the raw pixels is beyond that


@pytest.mark.long
def test_pretrained_weights_are_a_better_start_for_few_images_than_random_ones(execute):
    outputs = without_run(execute, "03_fine_tune_your_own_images")
    # 537 scans of a three, an eight or a nine, 36 of them for training.
    tuned, random = re.findall(r"([\d.]+) % of 501 images", printed(outputs))
    assert float(tuned) > 75
    assert float(tuned) > float(random) + 3


@pytest.mark.long
def test_the_notebook_of_two_architectures_finds_the_resnet_ahead_on_little_data(execute):
    outputs = without_run(execute, "05_vit_versus_cnn")
    rows = re.findall(r"(ViT|ResNet) +(\d+) % of the data: .*interval +([\d.]+)", printed(outputs))
    accuracy = {(name, int(share)): float(percent) for name, share, percent in rows}
    assert accuracy["ResNet", 5] > accuracy["ViT", 5] + 5  # as in docs/results/data_efficiency.md
    assert accuracy["ResNet", 100] > 95 and accuracy["ViT", 100] > 85


@pytest.mark.long
def test_the_notebook_of_a_training_run_provokes_a_collapse_that_the_log_names(execute):
    outputs = without_run(execute, "06_inside_a_training_run")
    good, bad = map(
        float, re.findall(r"([\d.]+) % of the test digits are correct", printed(outputs))
    )
    assert good > 80 > 50 > bad
    assert re.search(r"blocks_\d had collapsed in \d+ of \d+ entries", printed(outputs))
    said = "".join(output.get("data", {}).get("text/plain", "") for output in outputs)
    assert re.search(r"warning: the attention of blocks_\d has collapsed by step", said)


@pytest.mark.long
def test_the_notebook_of_a_masked_autoencoder_gains_from_images_without_labels(execute):
    outputs = without_run(execute, "07_masked_autoencoder")
    shown = r"{} +neighbours +([\d.]+) % +linear +([\d.]+) %"
    random, trained = (
        tuple(map(float, re.search(shown.format(name), printed(outputs)).groups()))
        for name in ("random", "pre-trained")
    )
    assert trained[0] > random[0] + 15 and trained[1] > 94  # docs/self_supervised.md: 95 and 95.6
    few = r"(?:random|pre-trained) +([\d.]+) % of 360 test digits with 100 labels"
    scratch, tuned = map(float, re.findall(few, printed(outputs)))
    assert tuned > scratch + 3


@pytest.mark.long
def test_the_notebook_of_images_and_texts_reads_digits_by_unseen_sentences(execute):
    outputs = without_run(execute, "08_images_and_texts")
    shares = shares_of(outputs)
    assert float(shares["zero_shot_accuracy"]) > 95
    by_sentences = re.search(r"([\d.]+) %   the mean of the held-out ones", printed(outputs))
    # The same images by the same sentences, once in training and once here.
    assert abs(float(by_sentences[1]) - float(shares["zero_shot_accuracy"])) < 1


@pytest.mark.long
def test_the_notebook_of_segmentation_finds_which_digit_a_pixel_belongs_to(execute):
    outputs = without_run(execute, "09_segmentation")
    shares = shares_of(outputs)
    # docs/results/scenes.md: 8.1 % for ground alone, 10.8 % for the nearest training scene.
    assert float(shares["mean_iou"]) > 30


@pytest.mark.long
def test_the_notebook_of_four_answers_has_the_same_depth_from_one_head_alone(execute):
    outputs = without_run(execute, "10_one_model_four_answers")
    text = printed(outputs)
    assert "the same depths as above: True" in text
    delta1 = re.search(r"([\d.]+) %  of pixels have a depth within 25 %", text)
    assert float(delta1[1]) > 87.8  # the median of each pixel, docs/results/scenes.md


@pytest.mark.long
def test_only_a_model_without_positions_reads_shuffled_digits_as_others(execute, tmp_path):
    outputs = execute(ROOT / "notebooks/04_positions.ipynb", tmp_path / "none")
    assert count_figures(outputs) == FIGURES["04_positions"]
    text = printed(outputs)
    changes = {kind: float(x) for kind, x in re.findall(r"^(\w+) +(\d\.\de-\d\d)$", text, re.M)}
    assert len(changes) == 9
    assert changes.pop("none") < 1e-6  # a few times the rounding of float32
    assert min(changes.values()) > 1e-4
    rows = re.findall(r"^(\w+) +(as they are|patches shuffled) +(\d+\.\d+) %", text, re.M)
    accuracy = {(kind, what): float(share) for kind, what, share in rows}
    whole, shuffled = "as they are", "patches shuffled"
    # Rounding may move an image or two between two classes that are equally probable.
    assert abs(accuracy["none", whole] - accuracy["none", shuffled]) < 1
    for kind in ("learned", "rotary"):
        assert accuracy[kind, whole] > accuracy["none", whole]
        assert accuracy[kind, shuffled] < accuracy[kind, whole] - 20


def test_every_notebook_is_known_here():
    assert sorted(FIGURES) == [path.stem for path in NOTEBOOKS]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_has_its_figures_and_no_error(path):
    notebook = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(notebook)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) >= (4, 5)  # cells have ids
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert count_figures(outputs) == FIGURES[path.stem]
    assert all(output["output_type"] != "error" for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_stored_notebook_names_no_path_of_a_machine(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        texts = ["".join(cell["source"])]
        for output in cell.get("outputs", []):
            texts.append("".join(output.get("text", "")))
            texts += ["".join(x) for kind, x in output.get("data", {}).items() if "text/" in kind]
        for text in texts:
            absolute = re.search(r"""(?:^|["'(=\s])(/\w|~/|[A-Za-z]:[\\/])""", text)
            assert absolute is None, f"{cell['id']}: {absolute.group()}"


def test_all_stored_notebooks_together_take_3_megabytes():
    assert sum(path.stat().st_size for path in NOTEBOOKS) < 3e6
