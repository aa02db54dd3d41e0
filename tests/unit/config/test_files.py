"""Configs by path and by name, in a checkout and in an installed package."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.folders import ROOT
from vit_jax.cli import main
from vit_jax.config import load_config
from vit_jax.config.files import config_folder, find_config, list_configs, summary
from vit_jax.errors import UserError

OWN = "from vit_jax.config import default_config\n\n\ndef get_config(seed=1):\n" + (
    "    config = default_config()\n    config.seed = int(seed)\n    return config\n"
)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "file"),
    [
        ("digits", "digits.py"),
        ("digits.py", "digits.py"),
        ("configs/digits.py", "digits.py"),
        ("configs/digits", "digits.py"),
        ("family/swin", "family/swin.py"),
        ("configs/family/swin.py", "family/swin.py"),
    ],
)
def test_a_name_works_from_any_folder(text, file, elsewhere):
    assert find_config(text) == (ROOT / "configs" / file, None)
    assert find_config(f"{text}:thing") == (ROOT / "configs" / file, "thing")


def test_what_follows_the_last_colon_is_the_argument(elsewhere):
    assert find_config("finetune:lora") == (ROOT / "configs" / "finetune.py", "lora")
    assert find_config("configs/finetune.py:lora") == (ROOT / "configs" / "finetune.py", "lora")
    assert find_config("digits:") == (ROOT / "configs" / "digits.py", "")


@pytest.mark.parametrize("text", ["digits:7", "images:a"])  # the second has a keyword alone
def test_an_argument_that_a_config_does_not_take_is_told(text):
    with pytest.raises(UserError, match=r"\.py takes no argument, but got '\w' after the colon"):
        load_config(text)


def test_a_file_that_exists_as_written_comes_first(elsewhere):
    (elsewhere / "configs").mkdir()
    (elsewhere / "configs" / "digits.py").write_text(OWN)
    (elsewhere / "digits").mkdir()  # a folder is no config
    (elsewhere / "digits.py:7").write_text(OWN)
    assert find_config("configs/digits.py") == (Path("configs/digits.py"), None)
    assert find_config("configs/digits.py:5") == (Path("configs/digits.py"), "5")
    assert load_config("configs/digits.py:5").seed == 5
    assert find_config("digits.py:7") == (Path("digits.py:7"), None)
    assert find_config("digits") == (ROOT / "configs" / "digits.py", None)
    assert load_config("digits").model.name == "Digits-ViT-64/4"


def test_every_file_of_the_folder_has_a_name_and_a_line_that_says_what_it_is():
    files = {path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*.py")}
    files = {path for path in files if path.parts[0] != "common"}
    assert {path.relative_to(config_folder()) for path in list_configs().values()} == files
    assert list_configs()["family/swin"] == ROOT / "configs" / "family" / "swin.py"
    assert all(len(summary(path)) > 20 for path in list_configs().values())


def test_a_base_is_no_config(elsewhere):
    assert (ROOT / "configs" / "common" / "digits.py").exists()
    with pytest.raises(UserError, match="no config file 'common/digits'; did you mean 'digits'"):
        find_config("common/digits")
    with pytest.raises(UserError, match=r"common/digits.py has no function get_config\(\)"):
        load_config(ROOT / "configs" / "common" / "digits.py")


@pytest.mark.parametrize("name", ["family/swin", "imagenet_augreg_b16"])
def test_a_copied_config_finds_its_base(name, elsewhere):
    shutil.copy(ROOT / "configs" / f"{name}.py", "mine.py")
    assert load_config("mine.py") == load_config(name)
    assert load_config(name).model.name in ("Swin", "ViT-B/16")


def test_a_config_may_start_from_one_of_the_package(elsewhere):
    (elsewhere / "mine.py").write_text(
        "from vit_jax.configs import digits\n\n\ndef get_config():\n"
        "    config = digits.get_config()\n    config.seed = 7\n    return config\n"
    )
    mine, theirs = load_config("mine.py"), load_config("digits")
    assert (mine.seed, theirs.seed) == (7, 0)
    mine.seed = 0
    assert mine == theirs


def test_a_preset_that_is_not_there_is_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"no preset 'cnnn'; did you mean 'cnn'\?.*'vit'"):
        load_config("data_efficiency:cnnn")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("digts", "did you mean 'digits'"),
        ("Digits", "did you mean 'digits'"),
        ("swin", r"did you mean 'family/swin'\?"),
        ("configs/deit3.py", r"did you mean 'deit'"),
        ("finetun:lora", r"no config file 'finetun'; did you mean 'finetune'"),
        ("configs/../digits", "did you mean 'digits'"),
        ("mine/shot.py", r"did you mean 'mine/short.py'\? mine has mine/short.py, and the package"),
        ("shrt.py", "did you mean 'short.py'"),
        ("mine", r"'mine' \(a folder\)"),
        ("", "no config file ''"),
        ("zzzz\0", "no config file"),
        ("zz\0/zz", "no config file"),
        (f"{'x' * 5000}/y", "no config file"),
        ("x" * 5000, "no config file"),
        ("~nobody-of-that-name/x.py", "no config file"),
    ],
)
def test_a_wrong_name_gets_the_nearest_and_all_there_are(text, sentence, elsewhere):
    (elsewhere / "mine").mkdir()
    for path in (elsewhere / "mine" / "short.py", elsewhere / "short.py"):
        path.write_text(OWN)
    (elsewhere / "shirt.py").write_text("no config of ours")
    with pytest.raises(UserError, match=sentence) as raised:
        load_config(text)
    told = str(raised.value)
    assert "cifar10, data_efficiency, data_scaling, deit, digits" in told and "family/swin" in told
    assert "shirt.py" not in told and len(told) < 1200


def test_the_command_lists_names_that_load(elsewhere, capsys):
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(list_configs())
    assert "Real scanned digits" in next(line for line in lines if line.startswith("digits "))
    assert main(["configs", "FAMILY/*", "--json"]) == 0
    assert '"family/swin"' in capsys.readouterr().out
    assert main(["configs", "digts"]) == 2
    assert "did you mean 'digits'" in capsys.readouterr().err


def test_train_without_a_config_names_those_there_are(elsewhere, capsys):
    assert main(["train"]) == 2
    told = capsys.readouterr().err
    assert re.search(r"--config is missing; .*digits.*family/swin", told)


def test_the_version_is_that_of_the_package(capsys):
    from vit_jax import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"vit_jax {__version__}\n"


@pytest.mark.slow
def test_an_installed_wheel_has_the_command_and_the_configs(tmp_path):
    """The dependencies are those of the process that runs the tests."""

    def run(*command):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=environment
        )

    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
    source = tmp_path / "source"
    listed = run("git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard").stdout.split("\n")
    for name in filter(None, listed):
        if name.startswith(("vit_jax/", "configs/")) or "/" not in name:
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    built = run(*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(source))
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("*.whl")

    place = tmp_path / "installed"
    venv.create(place, with_pip=False, symlinks=True)
    python = str(place / "bin" / "python")
    installed = run(*pip, "--python", python, "install", "--no-deps", str(wheel))
    assert installed.returncode == 0, installed.stderr
    [packages] = place.glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))

    command = str(place / "bin" / "vit_jax")
    assert run(command, "--version").stdout == run(python, "-m", "vit_jax", "--version").stdout
    assert [line.split()[0] for line in run(command, "configs").stdout.splitlines()] == list(
        list_configs()
    )
    shutil.copy(ROOT / "configs" / "imagenet_augreg_b16.py", tmp_path / "copied.py")
    for name in ("digits", "digits.py", "configs/digits.py", "family/swin", "copied.py"):
        done = run(command, "train", f"--config={name}", "--config.schedule.warmup=200%")
        assert done.returncode == 2 and "schedule.warmup" in done.stderr, done.stderr
    where = "from vit_jax.config.files import find_config; print(find_config('digits')[0])"
    assert run(python, "-c", where).stdout.strip() == str(
        packages / "vit_jax" / "configs" / "digits.py"
    )
    assert (packages / "vit_jax" / "models" / "summary" / "counts.csv").exists()
    assert list(packages.glob("vit_jax-*.dist-info/licenses/LICENSE"))
