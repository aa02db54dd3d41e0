"""Progress in a file: a line now and then, of work that takes long."""

from vit_jax import progress


def work():
    with progress.progress_bars() as show:
        for done in (600, 1200):
            show("looking", done, 1200)
        show("reading", 0, 0)


def test_lines_tell_what_is_done_of_how_much(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    work()
    assert capsys.readouterr().err.splitlines() == [
        "looking: 600 of 1,200 images",
        "looking: 1,200 of 1,200 images",
        "reading: 0 of 0 images",
    ]


def test_what_is_counted_need_not_be_images(capsys, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS", 0.0)
    with progress.progress_bars("models") as show:
        show("tracing", 3, 92)
    assert capsys.readouterr().err == "tracing: 3 of 92 models\n"


def test_short_work_has_no_lines(capsys):
    work()
    assert capsys.readouterr().err == ""
