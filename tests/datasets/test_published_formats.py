"""Every data set from its source to one round: small files of the published formats, served with faults."""
import hashlib
import io
import json
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT, quiet, refusal
from http_server import Page, Server
from test_array_sets import FORMS, binary_folder, idx_folder
from test_digits import mat_files, mnist_folder, mnist_m_folder, usps_libsvm
from test_image_sets import (
    SIX,
    cub_folder,
    ddr_folder,
    domainnet_folder,
    ham_folder,
    image_of,
    level,
    lists_126,
    tiny_folder,
)
from test_raw_readers import OFFICE_31, office, pacs_folder
from test_text_sets import amazon, news, row

from fedlib.core.errors import UserError
from fedlib.datasets import download, prepare
from fedlib.datasets.partition import Data, federate
from fedlib.datasets.registry import reader_of
from fedlib.engine import records
from fedlib.engine.loop import train
from fedlib.engine.run import plan
from fedlib.readers import cifar10, cifar100, rendered_digits

# What the sources have: {name in FILES: bytes}, made in a folder that stays there

def files_below(folder: Path) -> dict:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def zipped(folder: Path, inside=None) -> bytes:
    """All of a folder, or one folder in it with its name, as zip."""
    return Path(shutil.make_archive(folder.with_suffix(""), "zip", folder, inside)).read_bytes()


def tar_gz(folder: Path) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
    return file.getvalue()


def digits_files(made: Path) -> dict:
    """Each domain as its publisher has it: idx, libsvm, MATLAB, tar, zip."""
    plain = made / "plain"
    mnist_folder(plain / "MNIST" / "raw")
    usps_libsvm(plain / "usps")
    mat_files(plain / "svhn", "", 10)
    mnist_m_folder(made / "tar" / "mnist_m")
    mat_files(made / "zip", "synth_", 0)
    return files_below(plain) | {"mnist_m.tar.gz": tar_gz(made / "tar"), "SynthDigits.zip": zipped(made / "zip")}


def mnist_files(made: Path) -> dict:
    mnist_folder(made / "MNIST" / "raw")
    return files_below(made)


def fashion_files(made: Path) -> dict:
    idx_folder(made / "FashionMNIST" / "raw")
    return files_below(made)


def cifar_files(reader, made: Path) -> dict:
    binary_folder(reader, made / FORMS[reader][0])
    (made / FORMS[reader][0] / "readme.html").write_text("<html>")
    return {reader.FILES[0].name: tar_gz(made)}


def tiny_files(made: Path) -> dict:
    tiny_folder(made / "tiny-imagenet-200")
    return {"tiny-imagenet-200.zip": zipped(made)}


def cub_files(made: Path) -> dict:
    cub_folder(made / "CUB_200_2011")
    (made / "attributes.txt").write_text("1 has_bill_shape::curved_(up_or_down)\n")
    return {"CUB_200_2011.tgz": tar_gz(made)}


def domainnet_files(made: Path) -> dict:
    """Six zips with <domain>/<class>/<file> and twelve lists."""
    domainnet_folder(made, made)
    return {p.name: p.read_bytes() for p in made.glob("*.txt")} | {f"{d}.zip": zipped(made, d) for d in SIX}


def domainnet_126_files(made: Path) -> dict:
    lists_126(made, "labeled_source_images_{d}.txt", per_class=2)
    return {p.name: p.read_bytes() for p in made.glob("*.txt")} | {f"{d}.zip": zipped(made, d) for d in SIX[:4]}


def pacs_files(made: Path) -> dict:
    """As GitHub packs it: one folder named after repository and branch."""
    pacs_folder(made / "Homework3-PACS-master" / "PACS", suffix=".jpg")
    (made / "Homework3-PACS-master" / "README.md").write_text("# Homework3-PACS\n")
    return {"PACS.zip": zipped(made)}


def office_files(made: Path) -> dict:
    office(made / "Office_Caltech_DA_Dataset-main", ("backpack", *OFFICE_31[1:10]),
           ("Caltech", "amazon", "webcam", "dslr"))
    return {"Office_Caltech_DA_Dataset.zip": zipped(made)}


def news_files(made: Path) -> dict:
    news(made, "train", row(2, 'The "Big" one, at last', 'He said: "no, ""never"""\nand left\\again'), per_class=5)
    news(made, "test", row(1, "New words", "a, b"))
    return files_below(made)


def amazon_files(made: Path) -> dict:
    amazon(made, ".svmlight")
    return files_below(made)


# name: (what makes its files, size, net, samples (train, test) of every domain or of each one)
SETS = {
    "digits": (digits_files, 28, "cnn4", (20, 10)),
    "mnist": (mnist_files, 28, "cnn4", (20, 10)),
    "fashion_mnist": (fashion_files, 28, "cnn4", (30, 20)),
    "cifar10": (lambda made: cifar_files(cifar10, made), 32, "cnn4", (50, 10)),
    "cifar100": (lambda made: cifar_files(cifar100, made), 32, "cnn4", (500, 100)),
    "tiny_imagenet": (tiny_files, 64, "cnn4", (400, 200)),
    "cub200": (cub_files, 32, "cnn4", (400, 200)),
    "domainnet_10": (domainnet_files, 32, "resnet10", (30, 10)),
    "domainnet_126": (domainnet_126_files, 32, "cnn4", (126, 126)),
    "pacs": (pacs_files, 32, "resnet10", (19, 2)),
    "office_caltech": (office_files, 32, "resnet10", (24, 6)),
    "ag_news": (news_files, 100, "fasttext", (21, 5)),
    "amazon_reviews": (amazon_files, 5000, "mlp3", [(4, 8), (5, 9), (6, 10), (7, 11)]),
}
BY_HAND = {"ham10000": (ham_folder, 64, "cnn4", 105), "ddr": (ddr_folder, 32, "resnet10", 48)}
FIRST = ("gone", "moved", "page", "half")  # what the first source of a file does; the next file has the next one


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(download, "PAUSES", (0, 0, 0))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setattr(rendered_digits, "COUNTS", {"train": 20, "test": 10})  # as few as the other digits here


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty folder of prepared sets; nobody has raw files."""
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "store"))
    monkeypatch.delenv("FEDLIB_RAW", raising=False)
    return tmp_path / "store"


@pytest.fixture
def server():
    with Server() as running:
        yield running


@pytest.fixture
def offer(server, store, monkeypatch):
    """offer(name, {file: bytes}, first): FILES of the set with two local sources each; returns {file: the good url}.

    Everything else of FILES stays: names, the kind of hash, where an archive goes, domains.
    """
    def offer(name, bodies, first=FIRST):
        reader, files, good = reader_of(name), [], {}
        assert {f.name for f in reader.FILES} == set(bodies)
        for i, file in enumerate(reader.FILES):
            body, kind = bodies[file.name], file.hash.partition(":")[0]
            bad, there = f"{first[i % len(first)]}/{file.name}", f"good/{file.name}"
            server.pages[f"/{there}"] = Page(body, headers={"ETag": '"one"'})
            server.pages[f"/{bad}"] = {
                "gone": Page(b"gone", 404), "moved": Page(status=302, headers={"Location": f"/{there}"}),
                "page": Page(b"<html>", headers={"Content-Type": "text/html"}),
                "half": Page(body[:len(body) // 2])}[bad.partition("/")[0]]
            good[file.name] = server.url(bad if bad.startswith("moved/") else there)
            files.append(replace(file, urls=(server.url(bad), server.url(there)),
                                 hash=kind and f"{kind}:{hashlib.new(kind, body).hexdigest()}"))
        monkeypatch.setitem(vars(reader), "FILES", tuple(files))
        return good
    return offer


def get(name, size=None, say=quiet, **options) -> dict:
    return prepare.prepare(name, size, say=say, download=True, **options)


def fails(*words, **call) -> str:
    return refusal(lambda: get(**call), *words)


def prepared_in(store) -> list:
    return sorted(p.name for p in store.glob("*") if p.name != "raw")


def one_round(name, size, net, results):
    """One round of FedAvg on a prepared set; its record names the domains, the digest and the notice of the set."""
    federation = federate(Data(name, size), 0)
    run = plan("FedAvg", {}, {"name": name, "size": size}, {"net": net, "width": 4},
                       {"rounds": 1, "batch": 32, "lr": 0.01}, 0)
    record = records.read_record(train(run, results))
    manifest = prepare.load_set(name, size).manifest
    assert set(record["rounds"][0]["acc"]) == set(federation.domains) == set(manifest["domains"])
    assert record["made"]["data"]["digest"] == manifest["digest"]
    assert record["made"]["data"]["notice"] == federation.about["notice"] == manifest["notice"]


@pytest.mark.parametrize("name", SETS)
def test_from_its_source_to_one_round(name, offer, store, tmp_path):
    make, size, net, counts = SETS[name]
    bodies = make(tmp_path / "made")
    shift = list(SETS).index(name) % len(FIRST)
    urls, said = offer(name, bodies, FIRST[shift:] + FIRST[:shift]), []
    manifest = get(name, size, said.append)
    assert manifest["files"] == [{"name": f.name, "url": urls[f.name], "bytes": len(bodies[f.name]),
                                  "sha256": hashlib.sha256(bodies[f.name]).hexdigest()}
                                 for f in reader_of(name).FILES]
    assert sum(" not from 127.0.0.1: " in line for line in said) == sum("/good/" in url for url in urls.values())
    assert "subset" in manifest["notice"] and manifest["skipped"] == []
    found = {d: (n["train"], n["test"]) for d, n in manifest["domains"].items()}
    domains = [d for d in reader_of(name).DOMAINS if d != "syn"]  # syn cannot be downloaded
    assert found == dict(zip(domains, counts if isinstance(counts, list) else [counts] * len(domains), strict=True))
    assert prepared_in(store) == [f"{name}-{size}.json", f"{name}-{size}.safetensors"]
    assert prepare.load_set(name, size).manifest == manifest == prepare.verify(name, size)
    one_round(name, size, net, tmp_path / "results")


@pytest.mark.parametrize("name", BY_HAND)
def test_what_only_a_person_can_get(name, store, tmp_path):
    make, size, net, n = BY_HAND[name]
    how = reader_of(name).HOW
    fails(f"{name} cannot be downloaded by a program. {how} Then: fedlib data {name} --from DIR", name=name)
    assert prepared_in(store) == []
    (tmp_path / "mine").mkdir()
    make(tmp_path / "mine")
    manifest = prepare.prepare(name, size, root=tmp_path / "mine", say=quiet)
    assert manifest["files"] == [] and manifest["notice"].startswith(f"subset: {name} {n} of ")
    assert sum(sum(counts["per_class"]) for counts in manifest["domains"].values()) == n
    one_round(name, size, net, tmp_path / "results")


def test_only_the_files_of_some_domains(offer, server, store, tmp_path):
    bodies = digits_files(tmp_path / "made")
    offer("digits", bodies, ("gone",))
    manifest = get("digits", 28, domains=("svhn", "mnist"))
    assert list(manifest["domains"]) == ["mnist", "svhn", "rendered_digits"]
    assert manifest["notice"].startswith("left out, not in the folder: usps, mnist_m, synth_digits, syn; subset: ")
    names = [f["name"] for f in manifest["files"]]
    assert len(names) == 6 and all(name.startswith(("MNIST/", "svhn/")) for name in names)
    assert [path for path, *_ in server.asked if path.startswith("/good/")] == [f"/good/{name}" for name in names]

    offer("mnist", {name: body for name, body in bodies.items() if name.startswith("MNIST/")})
    server.asked.clear()
    get("mnist", 28)
    assert server.asked == []  # the same files are there already
    offer("digits", bodies, ("gone",))
    again = get("digits", 28, domains=("svhn",))
    assert list(again["domains"]) == ["mnist", "svhn", "rendered_digits"]
    assert [f["name"] for f in again["files"]] == names     # what an earlier call brought is named too


def test_a_domain_whose_source_is_dead_is_left_out(offer, server, store, tmp_path, capsys):
    offer("digits", digits_files(tmp_path / "made"), ("gone",))
    for path in [p for p in server.pages if "svhn/" in p]:
        del server.pages[path]
    manifest = get("digits", 28, say=print)
    assert "svhn" not in manifest["domains"] and "mnist" in manifest["domains"]
    assert "svhn left out: cannot get svhn/train_32x32.mat" in capsys.readouterr().out
    assert "svhn" in manifest["notice"].split(";")[0]


# Faults of a source

def test_a_connection_that_drops_is_taken_up_again(offer, server, store, tmp_path):
    body, = (bodies := SETS["cifar10"][0](tmp_path / "made")).values()
    offer("cifar10", bodies, ("gone",))
    cut = len(body) * 6 // 10
    server.pages["/good/cifar-10-binary.tar.gz"].drops = [cut]
    manifest = get("cifar10")
    assert [asked[1:] for asked in server.asked[1:]] == [[None, 200, cut], [f"bytes={cut}-", 206, len(body) - cut]]
    assert manifest["files"][0]["sha256"] == hashlib.sha256(body).hexdigest()
    assert manifest["domains"]["cifar10"]["per_class"] == [6] * 10


def test_a_source_with_another_file_is_passed_over(offer, server, store, tmp_path):
    bodies, said = fashion_files(tmp_path / "made"), []
    urls = offer("fashion_mnist", bodies, ("half",))
    for name, body in mnist_files(tmp_path / "other").items():  # the same names, another set
        server.pages[f"/half/Fashion{name}"].body = body
    manifest = get("fashion_mnist", 28, said.append)
    assert [f["url"] for f in manifest["files"]] == list(urls.values())
    assert said[0] == "FashionMNIST/raw/train-images-idx3-ubyte.gz not from 127.0.0.1: it has not the published hash"
    assert manifest["domains"]["fashion_mnist"]["per_class"] == [5] * 10
    for page in server.pages.values():
        page.body = b"other"
    shutil.rmtree(store)
    fails("cannot get FashionMNIST/raw/train-images-idx3-ubyte.gz (127.0.0.1: it has not the published hash; ",
          name="fashion_mnist")
    assert prepared_in(store) == []


def test_a_cut_archive_without_a_hash_is_passed_over(offer, store, tmp_path):
    said = []
    urls = offer("pacs", pacs_files(tmp_path / "made"), ("half",))
    manifest = get("pacs", 32, said.append)
    assert said[0].startswith("PACS.zip not from 127.0.0.1: ") and "is cut or damaged" in said[0]
    assert manifest["files"][0]["url"] == urls["PACS.zip"] and manifest["domains"]["sketch"]["per_class"] == [3] * 7


def with_member(body: bytes, name: str) -> bytes:
    file = io.BytesIO(body)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr(name, b"evil")
    return file.getvalue()


def test_an_archive_that_would_leave_its_folder_is_refused(offer, server, store, tmp_path):
    bodies = pacs_files(tmp_path / "made")
    offer("pacs", {"PACS.zip": with_member(bodies["PACS.zip"], "../../../evil.txt")}, ("gone",))
    fails("cannot get PACS.zip", "'../../../evil.txt' would leave the folder", name="pacs")
    assert prepared_in(store) == [] and not list(tmp_path.rglob("evil.txt")) and not list(store.rglob("*.jpg"))
    server.pages["/good/PACS.zip"].body = bodies["PACS.zip"]
    assert get("pacs", 32)["domains"]["photo"]["per_class"] == [3] * 7
    assert prepared_in(store) == ["pacs-32.json", "pacs-32.safetensors"]


# Faults of what is in the archives

def test_a_corrupt_image_is_named_or_left_out(offer, server, store, tmp_path):
    made, bad = tmp_path / "made", image_of("infograph", "ant", 6, 2)
    bodies = domainnet_files(made)
    (made / bad).write_bytes((made / bad).read_bytes()[:300])
    bodies["infograph.zip"] = zipped(made, "infograph")
    offer("domainnet_10", bodies)
    fails(f"{store}/raw/domainnet/{bad} is not a readable image", "--skip-corrupt", name="domainnet_10", size=32)
    assert prepared_in(store) == []
    server.asked.clear()
    manifest = get("domainnet_10", 32, skip_corrupt=True)
    assert len(manifest["skipped"]) == 1 and manifest["skipped"][0].startswith(f"{bad}: ") and not server.asked
    assert manifest["domains"]["infograph"] == {"train": 29, "val": 0, "test": 10, "per_class": [4] * 6 + [3] + [4] * 3}
    assert manifest["domains"]["sketch"]["per_class"] == [4] * 10
    prepared = prepare.load_set("domainnet_10", 32)
    assert prepared.manifest == manifest
    levels = [level(c, i) for c in range(10) for i in (1, 2, 3) if (c, i) != (6, 2)]  # the others kept their places
    assert prepared.tensors["infograph/x"][:29, 0, 0, 0].tolist() == levels


def test_a_missing_class_is_named(offer, store, tmp_path):
    made = tmp_path / "made"
    pacs_files(made)
    shutil.rmtree(made / "Homework3-PACS-master" / "PACS" / "sketch" / "person")
    offer("pacs", {"PACS.zip": zipped(made)})
    fails("domain 'sketch' lacks the class 'person'", str(store), "delete that folder to get the files again",
          name="pacs")
    assert prepared_in(store) == []
    shutil.rmtree(store / "raw" / "pacs")       # as it says: then a repaired source is asked
    shutil.rmtree(made)
    pacs_files(made)
    offer("pacs", {"PACS.zip": zipped(made)})
    assert get("pacs", 32)["domains"]["sketch"]["train"]


# Processes

def child(name, size, before="") -> subprocess.Popen:
    """Another process that prepares a set from the files that are on offer here; `before` runs first in it."""
    code = ("import os\n"
            "from fedlib.datasets import prepare, registry\n"
            "from fedlib.datasets.published import File\n"
            "from fedlib.readers import image_folder\n"
            f"vars(registry.reader_of({name!r}))['FILES'] = {reader_of(name).FILES!r}\n"
            f"{before}\n"
            f"prepare.prepare({name!r}, {size}, download=True)\n")
    return subprocess.Popen([sys.executable, "-u", "-c", code], text=True, cwd=ROOT, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)


def test_two_processes_at_once_download_once(offer, server, store, tmp_path):
    offer("fashion_mnist", fashion_files(tmp_path / "made"), ("gone",))
    with download.locked(store / "raw" / "fashion_mnist"):  # until both are there
        both = [child("fashion_mnist", 28) for _ in range(2)]
        assert all("another process is getting the same files; waiting" in p.stdout.readline() for p in both)
        assert server.asked == []
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    asked = [path for path, *_ in server.asked]
    assert len(asked) == len(set(asked)) == 8
    assert prepared_in(store) == ["fashion_mnist-28.json", "fashion_mnist-28.safetensors"]
    assert len(prepare.verify("fashion_mnist", 28)["files"]) == 4


KILLS = {
    "decoding": "first, left = image_folder.channels_first, iter(range(100))\n"
                "def last(*image):\n"
                "    if next(left, None) is None: os.kill(os.getpid(), 9)\n"
                "    return first(*image)\n"
                "image_folder.channels_first = last",
    "writing": "prepare.CHUNK = 2**16\n"
               "prepare.os.fsync = lambda number: os.kill(os.getpid(), 9)",
    "moving": "move = os.replace\n"
              "def last(a, b):\n"
              "    move(a, b)\n"
              "    if b.suffix == '.safetensors': os.kill(os.getpid(), 9)\n"
              "prepare.os.replace = last"}


@pytest.mark.parametrize("at", KILLS)
def test_a_killed_process_leaves_nothing_that_counts(at, offer, server, store, tmp_path):
    offer("domainnet_10", domainnet_files(tmp_path / "made"), ("gone",))
    process = child("domainnet_10", 32, KILLS[at])
    said = process.communicate()[0]
    assert process.returncode == -signal.SIGKILL, said
    assert not list(store.glob("*.json"))
    with pytest.raises(UserError, match="domainnet_10 at 32 px is not prepared; run: fedlib data domainnet_10"):
        prepare.load_set("domainnet_10", 32)
    server.asked.clear()
    manifest = get("domainnet_10", 32)
    assert server.asked == [] and len(manifest["files"]) == 18
    assert json.loads((store / "domainnet_10-32.json").read_text()) == manifest
    assert prepare.verify("domainnet_10", 32)["domains"]["quickdraw"]["per_class"] == [4] * 10
