import base64
import html
import re
import shlex
import shutil
import sys
from html.parser import HTMLParser

import pytest

from vit_jax.analysis.report.run_report import write_report
from vit_jax.cli import main
from vit_jax.errors import UserError
from vit_jax.runs import RunDir


class Page(HTMLParser):
    """The tags of a page, its text, and the rows of its tables by their heading."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.text, self.rows, self._row = [], "", {}, None
        self.headings, self.cards, self.code, self._tag = [], {}, [], ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._tag = tag
        if tag == "tr":
            self._row = []

    def handle_endtag(self, tag):
        if tag == "tr":
            name, *cells = self._row
            self.rows[name] = cells
            self._row = None

    def handle_data(self, data):
        self.text += data
        if self._tag == "h2" and data.strip():
            self.headings.append(data)
        if self._tag == "code" and data.strip():
            self.code.append(data)
        if self._tag in ("dt", "dd", "small"):
            if self._tag == "dt":
                self._card = self.cards.setdefault(data, [])
            else:
                self._card.append(data)
        if self._row is not None:
            self._row.append(data)


@pytest.fixture
def run(finished_run, tmp_path):
    """A copy of a finished run that may be changed."""
    return RunDir(shutil.copytree(finished_run.path, tmp_path / "tiny"))


def test_training_ends_with_a_report(finished_run):
    page = Page(finished_run.report_file)
    result = finished_run.result()
    assert f"accuracy {100 * result['accuracy']:.2f} % on the test data (360 images)" in page.text
    assert page.rows["test, last"][0] == "24" and "validation, best" in page.rows


def test_the_result_comes_first_and_the_configuration_last(run):
    page = Page(write_report(run))
    assert page.headings[:3] == ["Results", "Training curves", "Errors"]
    assert page.headings[-2:] == ["Hardware", "Configuration"]


def test_the_result_has_its_interval(run):
    """Wilson by hand: 342 of 360 at z = 1.96 is 0.9500, from 0.9224 to 0.9681."""
    lines = run.read_metrics()
    lines[-1] |= {"accuracy": 0.95, "examples": 360}
    value, interval = Page(write_report(run, lines)).cards["test accuracy"]
    assert (value, interval) == ("95.00 %", "95 % interval 92.24 to 96.81 %")


def test_the_most_confident_errors_are_named_by_file(run):
    lines = ["index,image,true,predicted,confidence,rank", "0,a/1.png,1,1,0.99,0"]
    lines += ["1,b/2.png,2,3,0.7,1", '2,"c/<3>.png",4,5,0.9,1', "3,d/4.png,2,,,10"]
    (run.figures / "predictions.csv").write_text("\n".join(lines))
    rows = Page(write_report(run)).rows
    named = [name for name in rows if name.endswith(".png")]
    assert named == ["c/<3>.png", "b/2.png"]
    assert rows["c/<3>.png"] == ["4", "5", "90.00\N{NO-BREAK SPACE}%"]


def test_only_settings_that_differ_from_the_defaults_are_told(run):
    page = Page(write_report(run))
    assert page.rows["optimizer.learning_rate"] == ["0.01", "0.001"]
    assert page.rows["augment.rotate"] == ["10.0", "0.0"]
    assert page.rows["model.depth"] == ["1", "of the model"]
    assert "optimizer.b1" not in page.rows and "augment.flip" not in page.rows


def test_costs_are_those_of_the_model_and_the_run(run):
    """By hand: grey 16 x 16 images in 8 x 8 patches, one block of width 8, an MLP of 16."""
    page = Page(write_report(run))
    patch, positions, head = 64 * 8 + 8, 4 * 8, 8 * 10 + 10
    block = 2 * 16 + (8 * 24 + 24) + (8 * 8 + 8) + (8 * 16 + 16) + (16 * 8 + 8)
    assert page.rows["parameters"] == [f"{patch + positions + block + 16 + head:,}"]
    assert page.rows["training images processed"] == [f"{24 * 32:,}"]
    assert page.rows["devices"] == ["1 x cpu"]
    assert {"jax", "images per second, median", "peak memory, GiB"} <= page.rows.keys()


def test_the_page_needs_no_other_file(run):
    path = write_report(run)
    page = Page(path)
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert len(sources) == 4
    for source in sources:
        data = source.removeprefix("data:image/png;base64,")
        assert base64.b64decode(data, validate=True).startswith(b"\x89PNG")
    assert not re.search(r"<(script|link|iframe)", path.read_text())


def test_every_image_is_described_and_every_link_leads_to_a_section(run):
    page = Page(write_report(run))
    for tag, attributes in page.tags:
        assert tag != "img" or len(attributes["alt"]) > 20
    targets = {attributes["id"] for tag, attributes in page.tags if tag == "section"}
    links = [attributes["href"] for tag, attributes in page.tags if tag == "a"]
    assert links and {link.removeprefix("#") for link in links} == targets
    assert {"h1", "nav", "main", "figcaption"} <= {tag for tag, _ in page.tags}


def test_calibration_is_that_of_the_kept_predictions(run):
    """By hand: two right of three at 0.9, one right of one at 0.55."""
    lines = ["index,image,true,predicted,confidence,rank", "0,a,1,1,0.9,0", "1,b,2,2,0.9,0"]
    lines += ["2,c,3,4,0.9,1", "3,d,5,5,0.55,0"]
    (run.figures / "predictions.csv").write_text("\n".join(lines))
    page = Page(write_report(run))
    # 3/4 of 0.9 - 2/3 and 1/4 of 1 - 0.55; in sum 0.7 / 4 - 0.45 / 4 too sure
    assert page.rows["expected calibration error"][0] == "28.75\N{NO-BREAK SPACE}%"
    assert page.rows["largest gap of a bin"][0] == "-"  # no bin holds ten images
    assert "the model is overconfident, by 6.2 percentage points" in page.text


def test_a_gap_is_named_with_its_bin_and_only_where_enough_images_are_in_it(run):
    """By hand: 12 of 20 right at 0.9 in the bin from 13/15 to 14/15, one of one at 0.1."""
    lines = ["index,image,true,predicted,confidence,rank", "0,a,1,1,0.1,0"]
    lines += [f"{n},a,1,{1 if n <= 12 else 2},0.9,0" for n in range(1, 21)]
    (run.figures / "predictions.csv").write_text("\n".join(lines))
    size, where = Page(write_report(run)).rows["largest gap of a bin"]
    assert size == "30.00\N{NO-BREAK SPACE}%"
    assert where == "87 to 93 % confidence, 20 images; among bins with at least 10 images"


def test_images_without_an_answer_are_on_the_page(run):
    lines = ["index,image,true,predicted,confidence,rank", "0,a,1,1,0.5,0", "1,b,2,,,10"]
    (run.figures / "predictions.csv").write_text("\n".join(lines))
    page = Page(write_report(run))
    assert page.rows["accuracy"] == ["50.00\N{NO-BREAK SPACE}%", "of 2 images"]
    assert page.rows["mean confidence"][0] == "75.00\N{NO-BREAK SPACE}%"
    assert "1 image without finite logits" in page.text


def test_the_page_says_where_the_run_comes_from(run):
    page = Page(write_report(run))
    config, command = run.read_config(), page.code[0]
    assert page.rows["seed"] == [str(config["seed"])]
    assert shlex.split(command)[1:] == sys.orig_argv[1:] and command.startswith("python")
    for row in ("started", "report written"):
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", page.rows[row][0])
    assert page.rows["data fingerprint, train"] == [run.read_hardware()["data"]["train"]]
    assert page.rows["data fingerprint, test"][0]


def test_direction_marks_and_escapes_of_names_are_shown_and_not_followed(run):
    table = run.figures / "per_class.csv"
    header = table.read_text().splitlines()[0]
    table.write_text(f"{header}\ncat\u202e\x1b[31m,3,0.5,0.5,\n", encoding="utf-8")
    page = Page(write_report(run))
    assert page.rows["cat\\u202e\\x1b[31m"] == ["50.00 %", "of 3"]


def test_a_run_without_mistakes_says_so_and_shows_no_empty_image(run):
    table = run.figures / "per_class.csv"
    table.write_text("name,examples,recall,precision,average_precision\ncat,3,1.0,1.0,\n")
    page = Page(write_report(run))
    assert "Every test image is classified correctly." in page.text
    described = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    assert len(described) == 3 and not any("errors" in text for text in described)


def test_predictions_of_other_classes_are_one_sentence(run):
    (run.figures / "predictions.csv").write_text("index,image,true,predicted\n0,a,cat,cat\n")
    with pytest.raises(UserError, match="predictions.csv does not hold the predictions of this"):
        write_report(run)


def test_what_comes_from_the_run_is_escaped(run):
    evil = '<script>alert("1")</script>'
    table = run.figures / "per_class.csv"
    header = table.read_text().splitlines()[0]
    quoted = evil.replace('"', '""')
    table.write_text(f'{header}\n"{quoted}",3,0.5,0.5,\n')
    config = run.read_config()
    config["dataset"] = f"folder:{evil}"
    run.write_config(config)
    moved = RunDir(run.path.rename(run.path.with_name("<b>tiny & co")))
    path = write_report(moved)
    assert not [tag for tag, _ in Page(path).tags if tag in ("script", "b")]
    assert html.escape(evil) in path.read_text() and "<b>tiny" not in path.read_text()
    assert Page(path).rows[evil] == ["50.00 %", "of 3"]


def test_a_run_under_way_has_a_report_too(run):
    lines = [line for line in run.read_metrics() if line["step"] <= 6]
    shutil.rmtree(run.figures)
    run.hardware_file.unlink()
    page = Page(write_report(run, lines))
    assert "unfinished, as of step 6" in page.text
    assert "Errors" not in page.headings


def test_the_command_writes_it_anew(run, capsys):
    run.report_file.unlink()
    assert main(["report", str(run.path), "--quick"]) == 0
    assert str(run.report_file) in capsys.readouterr().out and run.report_file.exists()


def test_nothing_to_report_is_one_sentence(run, tmp_path):
    run.metrics_file.unlink()
    with pytest.raises(UserError, match="nothing to report yet"):
        write_report(run)
    with pytest.raises(UserError, match="no run folder"):
        write_report(RunDir(tmp_path / "elsewhere"))
