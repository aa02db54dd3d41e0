"""Names of weights: local paths, addresses, and a hub of two pages on this machine."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.web import Site, serve
from vit_jax.errors import UserError
from vit_jax.weights.remote import hub
from vit_jax.weights.remote.hub import HubName, cache_folder, fetch

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """Empty caches, ours and the hub's."""
    from huggingface_hub import constants

    monkeypatch.setenv("VIT_JAX_CACHE", str(tmp_path / "ours"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path


@pytest.fixture
def repository(caches, monkeypatch):
    """Makes a hub with one repository of given files, `owner/vit`."""
    site = Site(version="")

    def fill(files: dict[str, bytes]) -> Site:
        listing = [{"rfilename": name} for name in files]
        page = {"id": "owner/vit", "modelId": "owner/vit", "sha": SHA, "siblings": listing}
        for revision in ("", "/revision/main", "/revision/v1", f"/revision/{SHA}"):
            site.files[f"/api/models/owner/vit{revision}"] = json.dumps(page).encode()
        tree = [
            {"type": "file", "path": name, "size": len(content), "oid": f"{place:040x}"}
            for place, (name, content) in enumerate(files.items())
        ]
        for query in ("?recursive=true&expand=false", "?recursive=True&expand=False"):
            site.files[f"/api/models/owner/vit/tree/{SHA}{query}"] = json.dumps(tree).encode()
        for place, (name, content) in enumerate(files.items()):
            path = f"/owner/vit/resolve/{SHA}/{name}"
            site.files[path] = content
            site.headers[path] = {"ETag": f'"{place:040x}"', "X-Repo-Commit": SHA}
        return site

    with serve(site):
        monkeypatch.setenv("HF_ENDPOINT", site.address)
        yield fill


def test_a_local_path_is_returned_as_it_is(tmp_path):
    assert fetch(tmp_path / "nothing.npz") == tmp_path / "nothing.npz"
    assert fetch("~/vit.npz") == Path("~/vit.npz").expanduser()


def test_an_address_is_downloaded_into_the_cache(caches):
    with serve(Site({"/a.npz": b"content"})) as site:
        path = fetch(site.address + "/a.npz")
    assert path.read_bytes() == b"content"
    assert path.is_relative_to(caches / "ours" / "https")


@pytest.mark.parametrize("name", ["ftp://host/a.npz", "s3://bucket/a", "gs://vit_models/a.npz"])
def test_other_schemes_are_refused(name):
    with pytest.raises(UserError, match=r"use a path, https:// or hf://"):
        fetch(name)


def test_the_cache_is_where_the_platform_keeps_such_things(monkeypatch):
    monkeypatch.delenv("VIT_JAX_CACHE", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/vit_jax")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path("~/.cache/vit_jax").expanduser()
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == Path("~/Library/Caches/vit_jax").expanduser()
    monkeypatch.setenv("VIT_JAX_CACHE", "/mine")
    assert cache_folder() == Path("/mine")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf://google/vit-base-patch16-224", ("google", "vit-base-patch16-224", None, "")),
        ("hf://o/n@v1.0", ("o", "n", "v1.0", "")),
        ("hf://o/n@abc/sub/model.safetensors", ("o", "n", "abc", "sub/model.safetensors")),
        ("hf://timm/vit_tiny.augreg_in21k/a.bin", ("timm", "vit_tiny.augreg_in21k", None, "a.bin")),
    ],
)
def test_names_on_the_hub_are_taken_apart(text, parts):
    assert HubName.parse(text) == HubName(*parts)
    assert str(HubName.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "hf://",
        "hf://vit",
        "hf://../vit",
        "hf://o/..",
        "hf://o/n/../x",
        "hf://o/n/a/..\\x",
        "hf://o/n@",
    ],
)
def test_names_that_are_none_are_one_sentence(text):
    with pytest.raises(UserError, match=r"use hf://owner/name"):
        fetch(text)


def test_weights_come_with_their_configuration_and_nothing_else(repository):
    site = repository(
        {
            "config.json": b"{}",
            "model.safetensors": b"weights",
            "pytorch_model.bin": b"the same weights",
            "tf_model.h5": b"the same",
            "README.md": b"words",
        }
    )
    path = fetch("hf://owner/vit")
    assert path.name == "model.safetensors" and path.read_bytes() == b"weights"
    assert sorted(file.name for file in path.parent.iterdir()) == ["config.json", path.name]
    fetched = {hints.rpartition("/")[2] for kind, hints, _ in site.requests if "/resolve/" in hints}
    assert fetched == {"config.json", "model.safetensors"}


def test_a_file_a_revision_and_a_folder_can_be_named(repository):
    repository({"a.bin": b"a", "sub/b.npz": b"b", "sub/config.json": b"{}", "config.json": b"[]"})
    path = fetch("hf://owner/vit@v1/sub/b.npz")
    assert path.read_bytes() == b"b"
    assert (path.parent / "config.json").read_bytes() == b"{}"


def test_all_shards_come_with_their_index(repository):
    shards = {f"model-0000{i}-of-00002.safetensors": b"s" for i in (1, 2)}
    repository({"model.safetensors.index.json": b"{}", **shards, "other-1.safetensors": b"no"})
    path = fetch("hf://owner/vit")
    assert path.name == "model.safetensors.index.json"
    assert {file.name for file in path.parent.iterdir()} == {path.name, *shards}


def test_several_weights_files_are_listed_and_none_too(repository):
    repository({"a.npz": b"", "b.npz": b""})
    with pytest.raises(UserError, match=r"a.npz, b.npz; use one, as in hf://owner/vit/a.npz"):
        fetch("hf://owner/vit")
    repository({"README.md": b""})
    with pytest.raises(UserError, match=r"no weights file at its top level; it has README.md"):
        fetch("hf://owner/vit")
    with pytest.raises(UserError, match=r"no such file; did you mean 'README.md'"):
        fetch("hf://owner/vit/READ.md")


def test_what_came_once_is_there_without_a_network(repository, monkeypatch):
    site = repository({"model.safetensors": b"weights", "config.json": b"{}"})
    first = fetch("hf://owner/vit")
    site.files.clear()
    site.status = 503
    assert fetch("hf://owner/vit") == first
    assert fetch("hf://owner/vit/model.safetensors") == first
    with pytest.raises(UserError, match=r"put other.bin of that repository into"):
        fetch("hf://owner/vit/other.bin")


@pytest.mark.parametrize("name", ["hf://owner/vit", "hf://owner/vit@v1"])
def test_offline_the_sentence_says_which_file_to_put_where(caches, monkeypatch, name):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"put model.safetensors and config.json of") as refused:
        fetch(name)
    assert "\n" not in str(refused.value)
    where = Path(str(refused.value).split(" into ")[1].split(", and the same")[0])
    where.mkdir(parents=True)
    (where / "model.safetensors").write_bytes(b"by hand")
    assert fetch(name) == where / "model.safetensors"
    assert fetch(f"{name}/model.safetensors") == where / "model.safetensors"


def test_an_unknown_repository_is_one_sentence(repository):
    site = repository({})
    site.headers["/api/models/owner/none"] = {"X-Error-Code": "RepoNotFound"}
    with pytest.raises(UserError, match=r"hf://owner/none: the hub has no such repository"):
        fetch("hf://owner/none")


def test_an_unknown_revision_is_one_sentence(repository):
    site = repository({})
    site.headers["/api/models/owner/vit/revision/v9"] = {"X-Error-Code": "RevisionNotFound"}
    with pytest.raises(UserError, match=r"the repository has no revision 'v9'"):
        fetch("hf://owner/vit@v9")


def test_a_name_that_the_hub_forbids_is_one_sentence(repository):
    with pytest.raises(UserError, match=r"hf://owner/a--b is not a name on the hub"):
        fetch("hf://owner/a--b")


def test_files_of_one_set_are_chosen_before_anything_is_fetched():
    chosen = hub._choose_files(HubName.parse("hf://o/n"), ["pytorch_model.bin", "x.npz"])
    assert chosen == ["pytorch_model.bin"]
