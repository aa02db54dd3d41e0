"""Progress in a file: a line at every tenth of each kind of work."""

from vit_jax.progress import progress_bars


def test_lines_come_at_every_tenth(capsys):
    with progress_bars() as show:
        for done in range(0, 1201, 12):
            show("looking", done, 1200)
        show("reading", 3, 3)
        show("nothing", 0, 0)
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "looking: 120 of 1,200 pictures"
    assert told[9:] == ["looking: 1,200 of 1,200 pictures", "reading: 3 of 3 pictures"]
