"""Download and unpack: a local server that fails in every way, archives that must not be unpacked."""
import errno
import gzip
import hashlib
import io
import json
import os
import random
import signal
import socket
import stat
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest
from conftest import ROOT, quiet, refusal
from http_server import Page, Server

from fedlib.core.errors import UserError
from fedlib.datasets import download
from fedlib.datasets import unpack as archives
from fedlib.datasets.download import adopt, fetch, locked
from fedlib.datasets.published import File
from fedlib.datasets.unpack import unpacked

BODY = random.Random(0).randbytes(1_000_000)
OTHER = random.Random(1).randbytes(1_000_000)
CUT = 600_000
SHA = "sha256:" + hashlib.sha256(BODY).hexdigest()
MD5 = "md5:" + hashlib.md5(BODY).hexdigest()
ETAG = {"ETag": '"one"'}
Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download, "PAUSES", (0, 0, 0))
    monkeypatch.setenv("NO_PROXY", "*")


@pytest.fixture
def server():
    with Server(a=Page(BODY, headers=dict(ETAG))) as running:
        yield running


def listing(folder) -> dict:
    """Every file below a folder, without locks and notes, and its bytes."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(Path(folder).rglob("*"))
            if p.is_file() and p.name != ".lock" and not (p.name.startswith(".") and p.suffix == ".json")}


def refused(files, folder, *words, say=quiet) -> str:
    return refusal(lambda: fetch(files, folder, say), *words)


def recovers(server, folder, name="set.bin", hash=""):
    """Nothing is there under the final name; a good source then gives the whole file, and nothing is left beside it."""
    assert not (folder / name).exists()
    server.pages["/good"] = Page(BODY)
    fetch([File(name, (server.url("good"),), hash)], folder, quiet)
    assert listing(folder) == {name: BODY}


def child(code: str, *args, before=()) -> subprocess.Popen:
    """A Python process that has `fetch`, `File` and `argv`."""
    start = "import sys, os; from fedlib.datasets import download; from fedlib.datasets.download import *; " \
            "from fedlib.datasets.published import File; argv = sys.argv\n"
    return subprocess.Popen([*before, sys.executable, "-c", start + code, *map(str, args)], text=True, cwd=ROOT,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


# Download

@pytest.mark.parametrize("hash", ["", SHA, MD5])
def test_a_file_arrives_once_and_is_noted(server, tmp_path, hash):
    said = []
    files = [File("sub/set.bin", (server.url("a"),), hash)]
    record = fetch(files, tmp_path, said.append)
    assert record == [{"name": "sub/set.bin", "url": server.url("a"), "sha256": SHA[7:], "bytes": len(BODY)}]
    assert listing(tmp_path) == {"sub/set.bin": BODY} and len(said) == 1
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "sub/set.bin").stat().st_mode) == 0o666 & ~umask
    assert fetch(files, tmp_path, said.append) == record
    assert len(server.asked) == 1 and len(said) == 1


def test_redirects_are_followed(server, tmp_path):
    for i in range(3):
        server.pages[f"/r{i}"] = Page(status=(301, 302, 307)[i], headers={"Location": f"/r{i + 1}" if i < 2 else "/a"})
    record, = fetch([File("set.bin", (server.url("r0"),))], tmp_path, quiet)
    assert record["url"] == server.url("r0") and listing(tmp_path) == {"set.bin": BODY}


@pytest.mark.parametrize("page", [Page(headers=ETAG), Page(), Page(headers={"Last-Modified": "Mon, 1 Jan 2024"}),
                                  Page(chunked=True), Page(headers={"ETag": 'W/"weak"'}), Page(reset=True)])
def test_a_dropped_connection_is_continued(server, tmp_path, page):
    page.body, page.drops = BODY, [CUT]
    server.pages["/a"] = page
    fetch([File("set.bin", (server.url("a"),))], tmp_path, quiet)
    assert listing(tmp_path) == {"set.bin": BODY}
    (_, none, first, _), (_, asked, second, sent) = server.asked
    assert none is None and (first, second) == (200, 206)
    start = int(asked.removeprefix("bytes=").rstrip("-"))
    assert sent == len(BODY) - start
    assert start == CUT or page.reset and 0 < start <= CUT  # a reset may take some of the last bytes with it


def test_many_drops_do_not_end_a_large_download(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "ENOUGH", 50_000)
    server.pages["/a"].drops = list(range(100_000, 1_000_000, 100_000))
    fetch([File("set.bin", (server.url("a"),))], tmp_path, quiet)
    assert listing(tmp_path) == {"set.bin": BODY} and sum(sent for *_, sent in server.asked) == len(BODY)


def test_drops_without_progress_end_it_and_the_part_stays(server, tmp_path):
    server.pages["/a"].always = CUT
    refused([File("set.bin", (server.url("a"),))], tmp_path, "set.bin", "127.0.0.1: no connection, or it dropped",
            f"put the file into {tmp_path} yourself or pass --from DIR")
    assert len(server.asked) == 4 and list(listing(tmp_path)) == ["set.bin.part"]
    server.pages["/a"].always = None
    fetch([File("set.bin", (server.url("a"),))], tmp_path, quiet)
    assert listing(tmp_path) == {"set.bin": BODY} and server.asked[-1][3] == len(BODY) - CUT


def test_pauses_grow_between_tries(server, tmp_path, monkeypatch):
    slept = []
    monkeypatch.setattr(download, "PAUSES", (1, 4, 15))
    monkeypatch.setattr(download.time, "sleep", lambda s: slept.append(s) if s in (1, 4, 15) else None)
    server.pages["/a"].always = CUT
    refused([File("set.bin", (server.url("a"),))], tmp_path)
    assert slept == [1, 4, 15]
    refused([File("other.bin", (closed_port(),))], tmp_path)  # nothing ever arrived: the next source at once
    assert slept == [1, 4, 15]


def test_a_killed_download_is_continued(server, tmp_path):
    server.pages["/a"].pause = 0.05
    process = child("fetch([File('set.bin', (argv[1],))], argv[2])", server.url("a"), tmp_path)
    part = tmp_path / "set.bin.part"
    while not (part.exists() and part.stat().st_size >= 2**17):
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "set.bin").exists()
    there, server.pages["/a"].pause = part.stat().st_size, 0
    fetch([File("set.bin", (server.url("a"),))], tmp_path, quiet)
    assert server.asked[-1][1:] == [f"bytes={there}-", 206, len(BODY) - there]
    assert listing(tmp_path) == {"set.bin": BODY} and not (tmp_path / ".arriving").exists()


def test_a_kill_while_the_hash_is_checked_loses_nothing(server, tmp_path):
    kill = "import pooch.core; pooch.core.hash_matches = lambda *a, **k: os.kill(os.getpid(), 9)\n"
    process = child(kill + "fetch([File('set.bin', (argv[1],), argv[3])], argv[2])", server.url("a"), tmp_path, SHA)
    assert process.wait() == -signal.SIGKILL and (tmp_path / ".arriving").exists()
    fetch([File("set.bin", (server.url("a"),), SHA)], tmp_path, quiet)
    assert listing(tmp_path) == {"set.bin": BODY} and server.asked[-1][2:] == [416, 0]  # asked, whether it is whole


def part_from(server, tmp_path, body=BODY, hash=""):
    """The first 60 % of a file, from a source that then is gone."""
    server.pages["/a"] = Page(body, headers=dict(ETAG), always=CUT)
    refused([File("set.bin", (server.url("a"),), hash)], tmp_path)
    assert listing(tmp_path) == {"set.bin.part": body[:CUT]}
    server.asked.clear()


@pytest.mark.parametrize("now, requests", [
    (Page(BODY, ranges=False), [200]),                                          # it ignores Range
    (Page(OTHER, headers={"ETag": '"two"'}), [200]),                            # another version
    (Page(OTHER, headers={"ETag": '"two"'}, conditions=False), [206, 200]),     # and it ignores If-Range
    (Page(OTHER[:-1], headers=dict(ETAG)), [206, 200]),                         # another size
    (Page(BODY[:CUT], headers=dict(ETAG)), [416]),                              # the part is the whole
    (Page(BODY[:CUT - 1], headers=dict(ETAG)), [416, 200]),                     # the part is longer
])
def test_a_part_that_does_not_fit_is_begun_anew(server, tmp_path, now, requests):
    part_from(server, tmp_path)
    server.pages["/a"] = now
    fetch([File("set.bin", (server.url("a"),))], tmp_path, quiet)
    assert listing(tmp_path) == {"set.bin": now.body}
    assert [status for _, _, status, _ in server.asked] == requests


def test_a_server_that_sends_another_range_is_not_believed(server, tmp_path):
    part_from(server, tmp_path)
    server.pages["/a"] = Page(BODY, status=206, headers={"Content-Range": "bytes 0-999999/1000000"})
    refused([File("set.bin", (server.url("a"),))], tmp_path, "206")
    recovers(server, tmp_path)


def test_another_source_continues_a_part_only_where_a_hash_decides(server, tmp_path):
    part_from(server, tmp_path)
    server.pages["/b"] = Page(BODY)
    fetch([File("set.bin", (server.url("b"),))], tmp_path, quiet)
    assert server.asked[-1][1:] == [None, 200, len(BODY)]

    part_from(server, tmp_path / "known", hash=SHA)
    fetch([File("set.bin", (server.url("b"),), SHA)], tmp_path / "known", quiet)
    assert server.asked[-1][1:] == [f"bytes={CUT}-", 206, len(BODY) - CUT]

    part_from(server, tmp_path / "other", body=OTHER, hash=SHA)
    fetch([File("set.bin", (server.url("b"),), SHA)], tmp_path / "other", quiet)
    assert [status for _, _, status, _ in server.asked] == [206, 200]
    assert listing(tmp_path / "other") == {"set.bin": BODY}


def test_a_dead_second_source_leaves_the_part_of_the_first(server, tmp_path):
    part_from(server, tmp_path)
    refused([File("set.bin", (server.url("a"), server.url("gone")))], tmp_path, "404 Not Found")
    assert listing(tmp_path) == {"set.bin.part": BODY[:CUT]}


@pytest.mark.parametrize("hash", [SHA, MD5])
def test_a_wrong_hash_makes_the_next_source_the_one(server, tmp_path, hash):
    server.pages["/bad"] = Page(OTHER)
    said = []
    record, = fetch([File("set.bin", (server.url("bad"), server.url("a")), hash)], tmp_path, said.append)
    assert record["url"] == server.url("a") and listing(tmp_path) == {"set.bin": BODY}
    assert said[0] == "set.bin not from 127.0.0.1: it has not the published hash"


def closed_port() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}/a"


@pytest.mark.parametrize("page, words", [
    (Page(OTHER), "it has not the published hash"),
    (Page(b"gone", status=404), "404 Not Found"),
    (Page(b"broken", status=500), "500 Internal Server Error"),
    (Page(b"", status=202), "202 Accepted"),
    (Page(b"<html>", headers={"Content-Type": "text/html; charset=utf-8"}), "a web page, not the file"),
    (Page(BODY, always=CUT), "no connection, or it dropped"),
    (Page(BODY, always=CUT, ranges=False), "no connection, or it dropped"),
    (Page(BODY, always=CUT, chunked=True), "no connection, or it dropped"),
    (Page(BODY, pause=0.5), "no answer"),
    (Page(status=302, headers={"Location": "/bad"}), "TooManyRedirects"),
    (Page(status=302, headers={"Location": "ftp://127.0.0.1/a"}), "InvalidSchema"),
    ("closed port", "no connection, or it dropped"),
])
def test_a_bad_source_is_named_and_the_next_one_tried(server, tmp_path, monkeypatch, page, words):
    monkeypatch.setattr(download, "TIMEOUT", (1, 0.1))
    server.pages["/bad"] = page
    url = closed_port() if page == "closed port" else server.url("bad")
    refused([File("set.bin", (url, url), SHA)], tmp_path, f"(127.0.0.1: {words}; 127.0.0.1: ", "pass --from DIR")
    recovers(server, tmp_path, hash=SHA)
    said = []
    record, = fetch([File("second.bin", (url, server.url("a")), SHA)], tmp_path, said.append)
    assert record["url"] == server.url("a") and said[0] == f"second.bin not from 127.0.0.1: {words}"


def test_a_page_is_what_a_html_file_should_be(server, tmp_path):
    server.pages["/p"] = Page(b"<html>", headers={"Content-Type": "text/html"})
    fetch([File("list.txt", (server.url("p"),)), File("page.html", (server.url("p"),))], tmp_path, quiet)
    assert listing(tmp_path) == {"list.txt": b"<html>", "page.html": b"<html>"}


def test_a_file_without_a_source_is_named(tmp_path):
    refused([File("set.bin", ())], tmp_path, "cannot get set.bin (no source is known)")


def test_a_packed_file_stays_packed(server, tmp_path):
    server.pages["/idx"] = Page(gzip.compress(BODY), headers={"Content-Encoding": "x-gzip"})
    fetch([File("idx.gz", (server.url("idx"),))], tmp_path, quiet)
    assert gzip.decompress((tmp_path / "idx.gz").read_bytes()) == BODY and server.accepts == "identity"


def test_a_file_that_lies_there_is_taken_if_it_has_its_hash(server, tmp_path):
    said = []
    (tmp_path / "set.bin").write_bytes(BODY)
    for hash in ("", SHA, MD5):
        assert fetch([File("set.bin", (server.url("a"),), hash)], tmp_path, said.append)[0]["url"] == ""
    assert not server.asked and not said
    (tmp_path / "set.bin").write_bytes(OTHER)
    assert fetch([File("set.bin", (server.url("a"),), SHA)], tmp_path, said.append)[0]["url"] == server.url("a")
    assert listing(tmp_path) == {"set.bin": BODY}
    assert said[0] == f"{tmp_path / 'set.bin'} has not the published hash; getting it again"
    os.truncate(tmp_path / "set.bin", CUT)  # noted as whole, then damaged
    fetch([File("set.bin", (server.url("a"),), SHA)], tmp_path, quiet)
    assert listing(tmp_path) == {"set.bin": BODY}


def test_two_processes_download_once(server, tmp_path):
    server.pages["/a"].pause = 0.04
    code = "fetch([File('set.bin', (argv[1],))], argv[2], lambda line: print(line, flush=True))"
    both = [child(code, server.url("a"), tmp_path) for _ in range(2)]
    said = "".join(sorted(process.communicate()[0] for process in both))
    assert [process.returncode for process in both] == [0, 0]
    assert len(server.asked) == 1 and listing(tmp_path) == {"set.bin": BODY}
    assert said.count("another process is getting the same files; waiting") == 1 and said.count("set.bin: 1.0 MB") == 1


def test_the_lock_is_held_by_one_thread_and_may_be_nested(tmp_path):
    order = []

    def second():
        with locked(tmp_path, order.append):
            order.append("second")

    with locked(tmp_path, order.append), locked(tmp_path, order.append):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.1)
        order.append("first")
    thread.join()
    assert order == ["another process is getting the same files; waiting", "first", "second"]


# A full disk

class Full(io.FileIO):
    """A file on a disk with room for CUT bytes."""
    def __init__(self, path, mode):
        super().__init__(path, mode.replace("b", ""))

    def write(self, data):
        if self.tell() + len(data) > CUT:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def test_a_disk_that_fills_up_keeps_the_part(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "open", Full, raising=False)
    file = File("set.bin", (server.url("a"), server.url("a")))
    refused([file], tmp_path, f"no space left in {tmp_path}, 1.0 MB needed for set.bin")
    assert len(server.asked) == 1 and CUT - 2**16 < len(listing(tmp_path)["set.bin.part"]) <= CUT
    monkeypatch.undo()
    fetch([file], tmp_path, quiet)
    assert listing(tmp_path) == {"set.bin": BODY} and server.asked[-1][2] == 206


@pytest.mark.parametrize("file, chunked", [(File("set.bin", ()), False), (File("set.bin", (), bytes=10**6), True)])
def test_too_little_space_is_said_before_the_download(server, tmp_path, monkeypatch, file, chunked):
    server.pages["/a"].chunked = chunked
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: Usage(1, 1, 999_999))
    refused([File("set.bin", (server.url("a"),), bytes=file.bytes)], tmp_path, "no space left", "1.0 MB needed")
    assert not listing(tmp_path)
    monkeypatch.setattr(download.shutil, "disk_usage", lambda _: Usage(1, 1, 1_000_000))
    recovers(server, tmp_path)


def test_a_limit_on_file_sizes_is_said(server, tmp_path):
    code = ("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))\n"
            "try: fetch([File('set.bin', (argv[1],))], argv[2])\n"
            "except UserError as error: print(error)")
    said, _ = child(code, server.url("a"), tmp_path).communicate()
    assert said.splitlines()[-1] == f"no space left in {tmp_path}, 1.0 MB needed for set.bin"
    fetch([File("set.bin", (server.url("a"),))], tmp_path, quiet)
    assert listing(tmp_path) == {"set.bin": BODY} and [s for *_, s in server.asked][-1] == len(BODY) - CUT


def test_a_small_real_disk(server, tmp_path):
    server.pages["/a"].chunked = True
    code = """
def mount(options):
    if os.system(f"mount -t tmpfs -o {options} tmpfs {argv[2]}"): sys.exit("no mount")
mount("size=600k")
for _ in range(2):
    try: print(fetch([File('set.bin', (argv[1],))], argv[2])[0]["bytes"])
    except UserError as error: print(error)
    mount("remount,size=4m")
"""
    process = child(code, server.url("a"), tmp_path, before=["unshare", "-rm"])
    said, _ = process.communicate()
    if process.returncode:
        assert "no mount" in said or "unshare" in said, said
        pytest.skip("no file system can be mounted here")
    assert said.splitlines()[0].startswith(f"no space left in {tmp_path}") and said.splitlines()[-1] == "1000000"
    assert [status for _, _, status, _ in server.asked] == [200, 206]


# Unpack

CONTENT = {"set/a.txt": b"first " * 5000, "set/sub/b.bin": BODY[:40_000], "c.txt": b"third"}


def zipped(path, members, mode=0, how=zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", how) as archive:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = zipfile.ZipInfo(name)
            info.external_attr, info.compress_type = mode << 16, how
            archive.writestr(info, data)
    return path


def tarred(path, members, mode="w:gz", **about) -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in members.items() if isinstance(members, dict) else members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o4777
            for key, value in about.items():
                setattr(info, key, value)
            archive.addfile(info, io.BytesIO(data))
    return path


def patched(path, *changes) -> Path:
    """A zip whose headers lie: (signature, offset in the header, bytes)."""
    data = bytearray(path.read_bytes())
    for signature, offset, new in changes:
        at = data.index(signature) + offset
        data[at:at + len(new)] = new
    path.write_bytes(data)
    return path


def lying(path, size) -> Path:
    """The claim of another uncompressed size, in both headers of a zip's first member."""
    return patched(path, (b"PK\1\2", 24, struct.pack("<I", size)), (b"PK\3\4", 22, struct.pack("<I", size)))


def bad(archive, *words, limit=None):
    """The archive is refused, nothing of it is left anywhere; a good one then goes into the same place."""
    target = archive.parent / "new" / "target"
    for there in (False, True):
        if there:
            target.mkdir()
            (target / "mine.txt").write_text("mine")
        with pytest.raises(UserError) as caught:
            unpacked(archive, target, limit)
        text = str(caught.value)
        assert "\n" not in text and all(word in text for word in (str(archive), *words)), text
        assert os.listdir(target) == ["mine.txt"] if there else not target.exists()
    assert sorted(p.name for p in archive.parent.iterdir()) == sorted({archive.name, "new"})
    assert unpacked(zipped(archive.parent / "good.zip", CONTENT), target)[0] == 3


@pytest.mark.parametrize("name, make", [
    ("set.zip", zipped), ("set.tar.gz", tarred), ("set.tgz", tarred), ("set.tar", lambda *a: tarred(*a, mode="w:")),
    ("set.tar.bz2", lambda *a: tarred(*a, mode="w:bz2")), ("set.tar.xz", lambda *a: tarred(*a, mode="w:xz"))])
def test_archives_are_unpacked_with_ordinary_modes(tmp_path, name, make):
    archive = make(tmp_path / name, CONTENT | {"./d.txt": b"", "set/.hidden": b"kept"})
    assert unpacked(archive, tmp_path / "target")[0] == 5
    assert listing(tmp_path / "target") == CONTENT | {"d.txt": b"", "set/.hidden": b"kept"}
    umask = os.umask(0)
    os.umask(umask)
    for path in [tmp_path / "target", *(tmp_path / "target").rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o777 if path.is_dir() else 0o666) & ~umask


def test_executable_bits_of_a_zip_are_dropped_and_folders_kept(tmp_path):
    archive = zipped(tmp_path / "set.zip", {"run.sh": b"echo"}, mode=stat.S_IFREG | 0o777)
    with zipfile.ZipFile(archive, "a") as more:
        more.mkdir("empty")
    assert unpacked(archive, tmp_path / "target")[0] == 1
    assert not (tmp_path / "target/run.sh").stat().st_mode & 0o111 and (tmp_path / "target/empty").is_dir()


@pytest.mark.parametrize("name", ["../out.txt", "set/../../out.txt", "/out.txt", "//out.txt", "..", "C:/out.txt",
                                  "C:out.txt", "..\\out.txt", "set\\out.txt", "__MACOSX/../out.txt"])
@pytest.mark.parametrize("make", [zipped, tarred])
def test_a_member_outside_the_folder_is_refused(tmp_path, make, name):
    bad(make(tmp_path / "set.x", {"in.txt": b"", name: b"evil"}), repr(name), "would leave the folder")
    assert not list(tmp_path.rglob("*out.txt"))


def test_a_name_with_a_zero_byte_is_refused(tmp_path):
    archive = zipped(tmp_path / "set.zip", {"aXb.txt": b"evil"})
    bad(patched(archive, (b"PK\3\4", 31, b"\0"), (b"PK\1\2", 47, b"\0")), "would leave the folder")


@pytest.mark.parametrize("kind, words", [
    (tarfile.SYMTYPE, "a link"), (tarfile.LNKTYPE, "a link"), (tarfile.CHRTYPE, "no file"),
    (tarfile.BLKTYPE, "no file"), (tarfile.FIFOTYPE, "no file")])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind, words):
    archive = tarred(tmp_path / "set.tar", {"odd": b""}, "w:", type=kind, linkname="../../etc/passwd")
    bad(archive, "'odd' is " + words)


@pytest.mark.parametrize("kind, words", [
    (stat.S_IFLNK, "a link"), (stat.S_IFCHR, "no file"), (stat.S_IFIFO, "no file")])
def test_links_and_devices_in_a_zip_are_refused(tmp_path, kind, words):
    bad(zipped(tmp_path / "set.zip", {"odd": b"/etc/passwd"}, mode=kind | 0o777), "'odd' is " + words)


@pytest.mark.parametrize("second", ["a.txt", "./a.txt", "a.txt/b.txt", "x//a.txt"])
@pytest.mark.parametrize("make", [zipped, tarred])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_there_twice_is_refused(tmp_path, make, second):
    first = "x/a.txt" if second.startswith("x") else "a.txt"
    bad(make(tmp_path / "set.x", [(first, b"one"), (second, b"two")]), repr(second), "is there twice")


def test_an_encrypted_zip_is_refused(tmp_path):
    archive = zipped(tmp_path / "set.zip", {"a.txt": b"secret"})
    bad(patched(archive, (b"PK\1\2", 8, b"\1"), (b"PK\3\4", 6, b"\1")), "'a.txt' is encrypted")


@pytest.mark.parametrize("cut", [0, 1, 2, 30, 0.1, 0.5, 0.9, -1, -8, -30])
@pytest.mark.parametrize("make", [zipped, tarred])
def test_a_truncated_archive_is_refused(tmp_path, make, cut):
    archive = make(tmp_path / "set.x", CONTENT)
    size = archive.stat().st_size
    os.truncate(archive, int(cut * size) if isinstance(cut, float) else cut if cut >= 0 else size + cut)
    bad(archive, "cut or damaged")


def test_a_plain_tar_is_refused_wherever_it_is_cut(tmp_path):
    data = tarred(tmp_path / "whole.tar", {"a": b"x" * 700, "b": b"", "c": b"y" * 512}, "w:").read_bytes()
    end = 6 * 512  # three headers, three blocks of data
    assert not data[end:].strip(b"\0") and data[end - 512:end].strip(b"\0")
    archive = tmp_path / "set.tar"
    for cut in range(0, end + 512, 128):
        archive.write_bytes(data[:cut])
        with pytest.raises(UserError, match="cut or damaged"):
            unpacked(archive, tmp_path / "target")
        assert not (tmp_path / "target").exists()
    archive.write_bytes(data[:1024 + 512] + b"!" + data[1024 + 513:])  # the second header
    with pytest.raises(UserError, match="cut or damaged"):
        unpacked(archive, tmp_path / "target")


def test_a_wrong_byte_is_refused(tmp_path):
    archive = zipped(tmp_path / "set.zip", CONTENT, how=zipfile.ZIP_STORED)
    data = archive.read_bytes()
    archive.write_bytes(data.replace(b"third", b"thirD", 1))
    bad(archive, "'c.txt'", "CRC")


def test_a_wrong_byte_in_a_packed_tar_is_refused(tmp_path):
    plain = tarred(tmp_path / "set.tar", CONTENT, "w:").read_bytes()
    (tmp_path / "set.tar").unlink()
    archive = tmp_path / "set.tgz"
    archive.write_bytes(gzip.compress(plain, 0).replace(b"third", b"thirD"))  # only the checksum at the end tells
    bad(archive, "cut or damaged", "CRC")


@pytest.mark.parametrize("data", [b"", b"<html>no archive</html>", BODY[:5000], bytes(5000), b"PK" + bytes(100)])
def test_what_is_no_archive_is_refused(tmp_path, data):
    (tmp_path / "set.zip").write_bytes(data)
    bad(tmp_path / "set.zip")


ZEROS = bytes(3_000_000)


@pytest.mark.parametrize("make", [zipped, tarred, lambda *a: tarred(*a, mode="w:xz")])
def test_a_bomb_is_stopped(tmp_path, monkeypatch, make):
    archive = make(tmp_path / "set.x", {"small": b"", "zeros": ZEROS})
    bad(archive, "'zeros' unpacks to more than 2.0 MB", limit=2_000_000)
    monkeypatch.setattr(archives, "LEAST", 2_000_000)
    (tmp_path / "second").mkdir()
    bad(make(tmp_path / "second/set.x", {"zeros": ZEROS}), "'zeros' unpacks to more than 2.0 MB")


def test_a_bomb_of_many_small_members_is_stopped(tmp_path, monkeypatch):
    small = {f"{i:04}": bytes(2000) for i in range(1500)}
    bad(zipped(tmp_path / "set.zip", small), "unpacks to more than 2.0 MB", limit=2_000_000)
    monkeypatch.setattr(archives, "MEMBERS", 1000)
    (tmp_path / "second").mkdir()
    bad(zipped(tmp_path / "second/set.zip", small), "'1000' is one of more than 1000 members")


def test_a_bomb_that_hides_its_size_is_stopped(tmp_path):
    bad(lying(zipped(tmp_path / "set.zip", {"zeros": ZEROS}), 1000), "'zeros'", limit=2_000_000)
    (tmp_path / "more").mkdir()
    bad(lying(zipped(tmp_path / "more/set.zip", {"a": b"12345"}), 1000), "'a' has not the size it claims")
    (tmp_path / "long").mkdir()
    bad(lying(zipped(tmp_path / "long/set.zip", {"zeros": ZEROS}), 2**32 - 2), "more than 2.0 MB", limit=2_000_000)


def test_a_tar_header_cannot_fill_the_memory(tmp_path):
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 30_000_000
    (tmp_path / "set.tgz").write_bytes(gzip.compress(header.tobuf()) + 10 * gzip.compress(ZEROS))
    bad(tmp_path / "set.tgz", "absurd size")


def test_folders_too_deep_and_names_too_long_are_refused(tmp_path):
    bad(zipped(tmp_path / "set.zip", {"d/" * 500 + "a": b""}), "lies too deep")
    (tmp_path / "long").mkdir()
    bad(zipped(tmp_path / "long/set.zip", {"n" * 300: b"x"}), "File name too long")


def test_what_macos_adds_is_left_out(tmp_path):
    rubbish = {"__MACOSX/set/._a.txt": b"x", "set/.DS_Store": b"x", "set/._a.txt": b"x", ".DS_Store": b"x"}
    assert unpacked(zipped(tmp_path / "set.zip", CONTENT | rubbish), tmp_path / "target")[0] == 3
    assert listing(tmp_path / "target") == CONTENT
    with pytest.raises(UserError, match="no files"):
        unpacked(zipped(tmp_path / "only.zip", rubbish), tmp_path / "none")


def test_archives_share_a_folder_and_overwrite_nothing(tmp_path):
    target = tmp_path / "target"
    first = {"real/dog/1.png": b"1", "list.txt": b"same"}
    second = {"real/dog/2.png": b"2", "sketch/dog/1.png": b"3", "list.txt": b"same"}
    unpacked(zipped(tmp_path / "1.zip", first), target)
    unpacked(tarred(tmp_path / "2.tgz", second), target)
    merged = first | second
    assert listing(target) == merged
    for other in ({"a.txt": b"", "real/dog/1.png": b"other"}, {"a.txt": b"", "real": b"no folder"},
                  {"a.txt": b"", "list.txt/b": b"no file"}):
        with pytest.raises(UserError, match="has other content than the archive's") as caught:
            unpacked(zipped(tmp_path / "3.zip", other), target)
        assert str(target) in str(caught.value) and listing(target) == merged


def test_a_full_disk_leaves_nothing_unpacked(tmp_path, monkeypatch):
    archive = zipped(tmp_path / "set.zip", {"a": b"", "b": BODY})

    def fails():
        with pytest.raises(UserError, match=f"no space left in {tmp_path}/target for the content of set.zip"):
            unpacked(archive, tmp_path / "target")
        assert os.listdir(tmp_path) == ["set.zip"]

    with monkeypatch.context() as patch:
        patch.setattr(archives, "open", Full, raising=False)
        fails()
    with monkeypatch.context() as patch:
        patch.setattr(download.shutil, "disk_usage", lambda _: Usage(1, 1, 999_999))
        fails()
    assert unpacked(archive, tmp_path / "target")[0] == 2


# Download and unpack

@pytest.fixture
def packed(server, tmp_path):
    """(a File that is an archive, the bytes of the archive)"""
    data = zipped(tmp_path / "set.zip", CONTENT).read_bytes()
    (tmp_path / "set.zip").unlink()
    server.pages["/zip"] = Page(data)
    return File("set.zip", (server.url("zip"),), unpack="in"), data


UNPACKED = {f"in/{name}": data for name, data in CONTENT.items()}


@pytest.mark.parametrize("place", ["in", "", "in/deeper"])
def test_an_archive_is_unpacked_once_and_removed(server, tmp_path, packed, place):
    file = File("set.zip", packed[0].urls, unpack=place)
    record = fetch([file], tmp_path, quiet)
    assert record == [{"name": "set.zip", "url": server.url("zip"), "bytes": len(packed[1]),
                       "sha256": hashlib.sha256(packed[1]).hexdigest()}]
    assert listing(tmp_path) == {str(Path(place) / name): data for name, data in CONTENT.items()}
    assert fetch([file], tmp_path, quiet) == record and len(server.asked) == 1
    (tmp_path / place / "c.txt").unlink()
    fetch([file], tmp_path, quiet)
    assert len(server.asked) == 2 and (tmp_path / place / "c.txt").exists()


def test_a_broken_archive_makes_the_next_source_the_one(server, tmp_path, packed):
    file, data = packed
    server.pages["/bad"] = Page(data[:-100])
    refused([File("set.zip", (server.url("bad"),), unpack="in")], tmp_path, "cut or damaged")
    assert not listing(tmp_path)
    record, = fetch([File("set.zip", (server.url("bad"), *file.urls), unpack="in")], tmp_path, quiet)
    assert record["url"] == file.urls[0]
    assert listing(tmp_path) == UNPACKED


def test_a_broken_archive_that_lies_there_is_replaced(tmp_path, packed):
    said = []
    (tmp_path / "set.zip").write_bytes(packed[1][:-100])
    fetch([packed[0]], tmp_path, said.append)
    assert listing(tmp_path) == UNPACKED and "cut or damaged" in said[0] and said[0].endswith("; getting it again")


def test_a_good_archive_that_lies_there_is_unpacked(server, tmp_path, packed):
    (tmp_path / "set.zip").write_bytes(packed[1])
    assert fetch([packed[0]], tmp_path, quiet)[0]["url"] == "" and listing(tmp_path) == UNPACKED and not server.asked


def test_a_published_archive_that_may_not_be_unpacked_is_asked_for_once(server, tmp_path):
    data = zipped(tmp_path / "set.zip", {"../out": b"evil"}).read_bytes()
    (tmp_path / "set.zip").unlink()
    server.pages["/zip"] = Page(data)
    file = File("set.zip", 2 * (server.url("zip"),), "sha256:" + hashlib.sha256(data).hexdigest(), unpack="in")
    refused([file], tmp_path, "'../out' would leave the folder")
    assert len(server.asked) == 1 and listing(tmp_path) == {"set.zip": data}
    (tmp_path / "set.zip").unlink()
    recovers(server, tmp_path, "set.zip")


def test_a_full_disk_keeps_the_archive(server, tmp_path, monkeypatch, packed):
    with monkeypatch.context() as patch:
        patch.setattr(download.shutil, "disk_usage", lambda _: Usage(1, 1, 60_000))
        refused([packed[0]], tmp_path, f"no space left in {tmp_path}/in for the content of set.zip")
    assert listing(tmp_path) == {"set.zip": packed[1]}
    assert fetch([packed[0]], tmp_path, quiet)[0]["url"] == server.url("zip")  # remembered
    assert listing(tmp_path) == UNPACKED and len(server.asked) == 1


@pytest.mark.parametrize("renames", [0, 1])
def test_a_kill_while_unpacking_is_mended(server, tmp_path, packed, renames):
    kill = (f"left, rename = {renames}, os.rename\n"
            "def last(a, b):\n"
            "    global left\n"
            "    if not left: os.kill(os.getpid(), 9)\n"
            "    left -= 1\n"
            "    rename(a, b)\n"
            "os.rename, download.shutil.move = last, os.replace\n")
    process = child(kill + "fetch([File('set.zip', (argv[1],), unpack='in')], argv[2])", packed[0].urls[0], tmp_path)
    assert process.wait() == -signal.SIGKILL, process.stdout.read()
    assert len(list((tmp_path / "in").glob(".set.zip.unpacking-*"))) == 1 and (tmp_path / "set.zip").exists()
    assert fetch([packed[0]], tmp_path, quiet)[0]["url"] == server.url("zip")
    assert listing(tmp_path) == UNPACKED and len(server.asked) == 1
    assert sorted(os.listdir(tmp_path)) == [".lock", ".set.zip.json", "in"]


# A user's own copy

def test_own_archives_are_unpacked_beside_linked_files(server, tmp_path, packed):
    own, folder = tmp_path / "own", tmp_path / "raw"
    own.mkdir()
    files = [File("zips/set.zip", (), unpack="in"), File("lists/train.txt", ()), File("absent.zip", (), unpack="in")]
    (own / "set.zip").write_bytes(packed[1])
    (own / "train.txt").write_text("a 1\n")
    assert adopt(files, own, folder, quiet) == folder
    whole = UNPACKED | {"lists/train.txt": b"a 1\n"}
    assert listing(folder) == whole and (folder / "lists/train.txt").is_symlink() and (own / "set.zip").exists()

    (folder / "in/c.txt").write_bytes(b"THIRD")  # were it unpacked again, this would be a conflict
    assert adopt(files, own, folder, quiet) == folder
    (folder / "in/c.txt").write_bytes(b"third")
    records = fetch(files[:2], folder, quiet)
    assert [r["url"] for r in records] == ["", ""] and not server.asked

    zipped(own / "set.zip", {"more.txt": b"another archive"})
    adopt(files, own, folder, quiet)
    assert listing(folder) == whole | {"in/more.txt": b"another archive"}


def test_what_else_lies_beside_own_archives_is_read_too(tmp_path, packed):
    first, second, folder = tmp_path / "first", tmp_path / "second", tmp_path / "raw"
    for own, name in ((first, "usps.h5"), (second, "syn")):
        own.mkdir()
        (own / "set.zip").write_bytes(packed[1])
        (own / name).write_text(name)
    assert adopt([packed[0]], first, folder, quiet) == folder and listing(folder) == UNPACKED | {"usps.h5": b"usps.h5"}
    adopt([packed[0]], second, folder, quiet)
    assert listing(folder) == UNPACKED | {"syn": b"syn"}        # nothing of the folder before


def test_a_folder_without_archives_is_not_adopted(tmp_path):
    (tmp_path / "train.txt").write_text("a 1\n")
    assert adopt([File("train.txt", ()), File("set.zip", (), unpack="")], tmp_path, tmp_path / "raw") is None
    assert not (tmp_path / "raw").exists()


def test_files_are_copied_where_links_cannot_be(tmp_path, monkeypatch, packed):
    (tmp_path / "set.zip").write_bytes(packed[1])
    (tmp_path / "train.txt").write_text("a 1\n")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/train.txt").write_text("old\n")
    said = []

    def no_links(*_, **__):
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(Path, "symlink_to", no_links)
    adopt([packed[0], File("train.txt", ())], tmp_path, tmp_path / "raw", said.append)
    assert not (tmp_path / "raw/train.txt").is_symlink() and (tmp_path / "raw/train.txt").read_text() == "a 1\n"
    assert any("replaced by" in line for line in said)


def test_an_own_archive_with_another_hash_is_taken_and_not_believed_later(server, tmp_path, packed):
    own, folder, said = tmp_path / "own", tmp_path / "raw", []
    own.mkdir()
    zipped(own / "set.zip", CONTENT, how=zipfile.ZIP_STORED)
    file = File("set.zip", packed[0].urls, "sha256:" + hashlib.sha256(packed[1]).hexdigest(), unpack="in")
    adopt([file], own, folder, said.append)
    assert listing(folder) == UNPACKED and "it has not the published hash" in said[0]
    assert fetch([file], folder, quiet)[0]["url"] == server.url("zip")


def test_a_broken_own_archive_is_named_and_kept(tmp_path, packed):
    (tmp_path / "set.zip").write_bytes(packed[1][:-100])
    with pytest.raises(UserError, match="set.zip is cut or damaged"):
        adopt([packed[0]], tmp_path, tmp_path / "raw", quiet)
    assert (tmp_path / "set.zip").exists() and not listing(tmp_path / "raw")


def test_an_own_archive_in_the_folder_itself_is_kept(tmp_path, packed):
    (tmp_path / "set.zip").write_bytes(packed[1])
    assert adopt([packed[0]], tmp_path, tmp_path, quiet) == tmp_path
    assert listing(tmp_path) == UNPACKED | {"set.zip": packed[1]}


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    refused([File("set.bin", ())], tmp_path / "file" / "raw", f"cannot read or write in {tmp_path / 'file' / 'raw'}")


def test_notes_are_read_even_when_damaged(server, tmp_path):
    file = File("set.bin", (server.url("a"),))
    fetch([file], tmp_path, quiet)
    (tmp_path / ".set.bin.json").write_text(json.dumps({"url": "x"})[:-3])
    assert fetch([file], tmp_path, quiet)[0]["url"] == "" and len(server.asked) == 1
