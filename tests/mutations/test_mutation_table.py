"""The table of mistakes fits the package as it is, and tests notice all of them."""

from pathlib import Path

import pytest

from tests.mutations.run import ROOT, main, mutated, survivors
from tests.mutations.table import MUTATIONS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mistake_can_be_made_and_its_tests_are_there(mutation):
    source = (ROOT / "vit_jax" / mutation.file).read_text()
    changed = mutated(source, mutation)
    compile(changed, mutation.file, "exec")
    assert changed != source
    files = [word for word in mutation.tests.split() if word.endswith(".py")]
    assert files and all((ROOT / "tests" / file).is_file() for file in files)


def test_mistakes_have_names_of_their_own_in_many_modules():
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    assert len({mutation.file for mutation in MUTATIONS}) >= 24
    for name in {mutation.file for mutation in MUTATIONS}:
        assert Path(name).suffix == ".py"


def test_a_line_that_is_gone_or_there_twice_is_told():
    for source in ("", 2 * MUTATIONS[0].old):
        with pytest.raises(ValueError, match=MUTATIONS[0].name):
            mutated(source, MUTATIONS[0])


def test_a_mistake_that_no_test_notices_survives(capsys):
    """Tests that look elsewhere: the right ones catch the same mistake in the slow test below."""
    [late] = [mutation for mutation in MUTATIONS if mutation.name == "half-steps-rounded-down"]
    blind = late._replace(name="blind", tests="unit/test_text.py")
    assert survivors([late, blind]) == ["blind"]
    assert "caught" in capsys.readouterr().out


def test_an_unknown_name_is_refused():
    with pytest.raises(SystemExit):
        main(["--only", "nothing"])


@pytest.mark.slow
def test_some_mistakes_are_noticed():
    assert survivors(MUTATIONS[::12]) == []


@pytest.mark.long
def test_every_mistake_is_noticed():
    assert survivors() == []
