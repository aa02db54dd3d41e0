"""Downloads from a server on this machine that cuts, lies, changes and refuses."""

import hashlib
import os
import socket
import urllib.error

import numpy as np
import pytest

from tests.support.web import Site, serve
from vit_jax.errors import UserError
from vit_jax.weights.remote import download as module
from vit_jax.weights.remote.download import download

CONTENT = np.random.default_rng(0).bytes(300_000)
SUM = hashlib.sha256(CONTENT).hexdigest()
PATH = "/vit/ViT-B_16.npz"


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setattr(module, "WAITS_SECONDS", (0, 0))
    monkeypatch.setenv("no_proxy", "*")
    with serve(Site({PATH: CONTENT})) as site:
        yield site


def place(site, folder):
    host = site.address.removeprefix("http://").replace(":", "%3A")
    return folder / host / "vit" / "ViT-B_16.npz"


def test_a_file_comes_whole_under_host_and_path_and_only_once(site, tmp_path):
    for _ in range(2):
        path = download(site.address + PATH, tmp_path)
        assert path == place(site, tmp_path)
        assert path.read_bytes() == CONTENT
    assert len(site.requests) == 1
    assert [name for name in os.listdir(path.parent) if ".part" in name] == []


def test_a_broken_connection_is_taken_up_where_it_broke(site, tmp_path):
    site.cut = [100_000, 50_000]
    assert download(site.address + PATH, tmp_path).read_bytes() == CONTENT
    assert [wanted for _, _, wanted in site.requests] == [None, "bytes=100000-", "bytes=150000-"]


def test_the_next_call_goes_on_where_the_last_gave_up(site, tmp_path):
    site.cut = [1000, 1000, 1000]
    with pytest.raises(
        UserError, match=r"broke after 3000 of 300000 bytes; run the same command again"
    ):
        download(site.address + PATH, tmp_path)
    assert not place(site, tmp_path).exists()
    assert download(site.address + PATH, tmp_path).read_bytes() == CONTENT
    assert site.requests[-1][2] == "bytes=3000-"


@pytest.mark.parametrize("version", ['"1"', 'W/"1"', ""])
def test_a_file_that_changed_meanwhile_is_not_glued_to_the_old(site, tmp_path, version):
    site.version, site.cut = version, [1000, 1000, 1000]
    with pytest.raises(UserError):
        download(site.address + PATH, tmp_path)
    site.version, site.files[PATH] = '"2"', CONTENT[::-1]
    assert download(site.address + PATH, tmp_path).read_bytes() == CONTENT[::-1]


def test_a_server_without_ranges_starts_again(site, tmp_path):
    site.ranges, site.cut = False, [1000]
    assert download(site.address + PATH, tmp_path).read_bytes() == CONTENT


def test_a_server_that_goes_on_at_another_place_is_started_again(site, tmp_path):
    site.shift, site.cut = 7, [1000]
    assert download(site.address + PATH, tmp_path).read_bytes() == CONTENT
    assert site.requests[-1][2] is None


def test_a_draft_longer_than_the_file_is_started_again(site, tmp_path):
    target = place(site, tmp_path)
    target.parent.mkdir(parents=True)
    target.with_name(target.name + ".part").write_bytes(CONTENT + b"more")
    target.with_name(target.name + ".part.version").write_text('"1"')
    assert download(site.address + PATH, tmp_path).read_bytes() == CONTENT


def test_a_server_that_promises_more_than_it_sends_is_not_believed(site, tmp_path):
    site.length = len(CONTENT) + 5
    with pytest.raises(UserError, match=r"broke after 300000 of 300005 bytes|bytes of a file of"):
        download(site.address + PATH, tmp_path)
    assert not place(site, tmp_path).exists()


def test_a_server_that_promises_less_than_it_has_is_found_out_by_the_checksum(site, tmp_path):
    site.length = 1000
    with pytest.raises(UserError, match=r"the SHA-256 of the download is"):
        download(f"{site.address}{PATH}#sha256={SUM}", tmp_path)


def test_the_right_checksum_passes_in_any_case_of_letters(site, tmp_path):
    for checksum in (SUM, SUM.upper()):
        path = download(f"{site.address}{PATH}#sha256={checksum}", tmp_path)
        assert path.read_bytes() == CONTENT


def test_with_a_wrong_checksum_nothing_is_kept(site, tmp_path):
    with pytest.raises(
        UserError, match=rf"SHA-256 of the download is {SUM}; the download was deleted"
    ):
        download(f"{site.address}{PATH}#sha256={'0' * 64}", tmp_path)
    assert [name for name in os.listdir(place(site, tmp_path).parent) if "lock" not in name] == []


def test_a_kept_file_is_checked_too(site, tmp_path):
    path = download(site.address + PATH, tmp_path)
    path.write_bytes(b"changed")
    with pytest.raises(UserError, match=r"delete .*ViT-B_16.npz to download it again"):
        download(f"{site.address}{PATH}#sha256={SUM}", tmp_path)


def test_a_missing_file_is_told_at_once(site, tmp_path):
    with pytest.raises(UserError, match=r"nothing.npz: the server answers 404 Not Found"):
        download(site.address + "/nothing.npz", tmp_path)
    assert len(site.requests) == 1


def test_a_server_in_trouble_is_asked_again(site, tmp_path):
    site.status = 503
    with pytest.raises(UserError, match=r"answers 503 Service Unavailable; run the same command"):
        download(site.address + PATH, tmp_path)
    assert len(site.requests) == 3


def test_redirections_are_followed(site, tmp_path):
    site.files["/here"] = b""
    site.headers["/here"] = {"Location": site.address + PATH}
    assert download(site.address + "/here", tmp_path).read_bytes() == CONTENT


def test_https_is_not_redirected_to_what_can_be_changed_on_its_way():
    handler = module._SecureRedirects()
    request = module.urllib.request.Request("https://host/a")
    with pytest.raises(urllib.error.URLError, match="not https"):
        handler.redirect_request(request, None, 302, "Found", {}, "http://host/b")
    assert handler.redirect_request(request, None, 302, "Found", {}, "https://host/b")


def test_without_a_network_the_sentence_says_which_file_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as taken:  # bound and not listening: nobody answers there
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}{PATH}"
        with pytest.raises(UserError, match=r"put the file at (.*), and the same") as refused:
            download(address, tmp_path)
        where = str(refused.value).split("put the file at ")[1].split(", and the same")[0]
        with open(where, "wb") as file:
            file.write(CONTENT)
        assert download(address, tmp_path).read_bytes() == CONTENT


def test_two_queries_are_two_files(site, tmp_path):
    for query in ("?a", "?b"):
        site.files[PATH + query] = query.encode()
    paths = [download(f"{site.address}{PATH}{query}", tmp_path) for query in ("?a", "?b")]
    assert [path.read_bytes() for path in paths] == [b"?a", b"?b"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("http://example.org/a.npz", r"use https://, or add #sha256"),
        ("https://example.org/a.npz#sha256=12", r"64 digits"),
        ("https://example.org/a.npz#md5=12", r"64 digits"),
        ("https://example.org/", r"not the address of a file"),
        ("https:///a.npz", r"not the address of a file"),
        ("https://example.org/%2e%2e/%2E./a.npz", r"not the address of a file"),
        ("https://example.org:port/a.npz", r"not the address of a file"),
        ("https://[::1/a.npz", r"not the address of a file"),
    ],
)
def test_addresses_that_are_none_are_one_sentence(tmp_path, address, message):
    with pytest.raises(UserError, match=message):
        download(address, tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_one_sentence(site, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot be stored in .*set VIT_JAX_CACHE"):
        download(site.address + PATH, tmp_path / "file")
