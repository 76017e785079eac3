"""Prepared sets: what is written is what is read, and whatever is damaged is one clear line."""
import errno
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from conftest import ROOT, one_line, quiet

from fedlib import cli
from fedlib.core.errors import UserError
from fedlib.datasets import prepare
from fedlib.datasets.registry import DATASETS, reader_of

RNG = np.random.default_rng(0)
N = 40
DOMAINS = {d: (RNG.integers(0, 256, (N, 3, 4, 4), dtype=np.uint8), np.arange(N, dtype=np.int64) % 2,
               (np.arange(N) % 4).astype(np.uint8)) for d in ("u", "v")}


def tiny_module(name):
    """A data set of random pixels with the interface of the real ones."""
    made = types.ModuleType(name)
    made.NAME, made.TITLE, made.CLASSES, made.DOMAINS, made.SIZES = name, name, ("a", "b"), ("u", "v"), (4, 8)
    made.ABOUT = dict(source="s", licence="l", citation="c", split="by index")
    made.FILES, made.HOW = (), "Ask for the files at tiny.example."

    def read(root, size, say, skip=None):
        if skip is not None:
            skip.append("u/a/broken.png: cut")
        return DOMAINS, {"transform": "none", "notice": "tiny", "names": {"u": ["a/1", "b/2"]}}

    made.read = read
    return made


@pytest.fixture
def store(tmp_path, monkeypatch):
    """An empty folder of prepared sets, and two tiny data sets: one built in, one that needs raw files."""
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "store"))
    monkeypatch.delenv("FEDLIB_RAW", raising=False)
    for name in ("tiny", "tiny_raw"):
        monkeypatch.setitem(DATASETS, name, name)
        monkeypatch.setitem(sys.modules, name, tiny_module(name))
    sys.modules["tiny"].BUILT_IN = True
    return tmp_path / "store"


def files(folder) -> list:
    return sorted(f.name for f in folder.iterdir()) if folder.is_dir() else []


def test_round_trip(store):
    manifest = prepare.prepare("tiny", say=quiet)
    again = prepare.load_set("tiny")
    assert again.manifest == manifest == prepare.verify("tiny")
    for d, arrays in DOMAINS.items():
        for key, array in zip(("x", "y", "part"), arrays, strict=True):
            tensor = again.tensors[f"{d}/{key}"]
            assert tensor.dtype == (torch.int64 if key == "y" else torch.uint8)
            assert np.array_equal(tensor.numpy(), array)
    assert manifest["domains"]["u"] == {"train": 10, "val": 10, "test": 10, "public": 10, "per_class": [20, 20]}
    assert list(manifest["domains"]) == ["u", "v"] and manifest["transform"] == "none" and manifest["notice"] == "tiny"
    assert files(store) == ["tiny-4.json", "tiny-4.safetensors"]
    assert "train     10" in prepare.summary(manifest) and "notice: tiny" in prepare.summary(manifest)


def test_same_arrays_same_bytes(store):
    first = prepare.prepare("tiny")
    before = (store / "tiny-4.safetensors").read_bytes()
    assert prepare.prepare("tiny") == first
    assert (store / "tiny-4.safetensors").read_bytes() == before


def test_files_follow_the_umask(store):
    before = os.umask(0o027)
    try:
        prepare.prepare("tiny")
    finally:
        os.umask(before)
    assert {f.stat().st_mode & 0o777 for f in store.iterdir()} == {0o640}


def test_built_in_set_is_made_on_the_spot(store, capsys):
    assert prepare.load_set("tiny").manifest["size"] == 4
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "preparing tiny at 4 px" in said.err
    prepare.load_set("tiny")
    assert capsys.readouterr().err == ""


def test_mini_digits_is_registered_and_built(store):
    prepared = prepare.load_set("mini_digits")
    assert set(prepared.manifest["domains"]) == {"scans", "blended", "printed", "street"}
    assert prepared.tensors["street/x"].shape[1:] == (3, 28, 28)


def test_absent_real_set(store, monkeypatch, tmp_path):
    with pytest.raises(UserError) as caught:
        prepare.load_set("tiny_raw")
    assert one_line(caught) == "tiny_raw at 4 px is not prepared; run: fedlib data tiny_raw --size 4 --from DIR"
    monkeypatch.setattr(sys.modules["tiny_raw"], "FILES", ("something",))
    with pytest.raises(UserError, match=r"run: fedlib data tiny_raw --size 4 \(or with --from DIR\)"):
        prepare.load_set("tiny_raw")
    monkeypatch.setattr(sys.modules["tiny_raw"], "FILES", ())
    monkeypatch.setenv("FEDLIB_RAW", str(tmp_path))
    assert prepare.load_set("tiny_raw").manifest["name"] == "tiny_raw"


def test_unknown_name_size_and_root(store, tmp_path):
    for call, words in {
        lambda: reader_of("ofice_caltech"): "did you mean 'office_caltech'?",
        lambda: prepare.prepare("tiny", 5): "tiny has no size 5 (sizes: 4, 8)",
        lambda: prepare.load_set("tiny", 5): "tiny has no size 5 (sizes: 4, 8)",
        lambda: prepare.prepare("tiny_raw"): "tiny_raw cannot be downloaded by a program. Ask for the files at tiny.ex"
                                             "ample. Then: fedlib data tiny_raw --from DIR",
        lambda: prepare.prepare("tiny_raw", domains=("w",)): "unknown domain of tiny_raw 'w'",
        lambda: prepare.prepare("tiny_raw", root=tmp_path / "none"): "no such folder",
    }.items():
        with pytest.raises(UserError) as caught:
            call()
        assert words in one_line(caught)
    assert files(store) == []


def truncate(data, listing):
    data.write_bytes(data.read_bytes()[:-10])
    return data, "bytes, its manifest says"


def flip_a_pixel(data, listing):
    raw = bytearray(data.read_bytes())
    raw[-1] ^= 1
    data.write_bytes(raw)
    return data, "sha256"


def foreign_tensors(data, listing):
    safetensors.numpy.save_file({"weight": np.zeros((3, 3), np.float32)}, data)
    return data, trust(data, listing) or "its tensors are not those of its manifest"


def other_shapes(data, listing):
    arrays = safetensors.numpy.load_file(data)
    safetensors.numpy.save_file({k: v[:-1] for k, v in arrays.items()}, data)
    return data, trust(data, listing) or "its tensors are not those of its manifest"


def cut_header(data, listing):
    data.write_bytes(data.read_bytes()[:20])
    return data, trust(data, listing) or "damaged"


def no_safetensors(data, listing):
    data.write_bytes(b"PK\3\4 not tensors at all")
    return data, trust(data, listing) or "damaged"


def empty_data(data, listing):
    data.write_bytes(b"")
    return data, trust(data, listing) or "damaged"


def no_json(data, listing):
    listing.write_text('{"format": 1, "na')
    return listing, "is not the manifest of tiny at 4 px"


def no_object(data, listing):
    listing.write_text("[1, 2]")
    return listing, "is not the manifest of tiny at 4 px"


def binary_manifest(data, listing):
    listing.write_bytes(b"\xff\xfe\x00")
    return listing, "is not the manifest of tiny at 4 px"


def other_format(data, listing):
    edit(listing, format=99)
    return listing, "format is 99, not 1"


def other_set(data, listing):
    edit(listing, name="pacs")
    return listing, "name is 'pacs', not 'tiny'"


def no_digest(data, listing):
    manifest = json.loads(listing.read_text())
    del manifest["digest"]
    listing.write_text(json.dumps(manifest))
    return listing, "no 'digest'"


def wrong_counts(data, listing):
    manifest = json.loads(listing.read_text())
    manifest["domains"]["u"]["train"] += 1
    listing.write_text(json.dumps(manifest))
    return listing, "its counts by part and by class differ"


def domain_without_counts(data, listing):
    edit(listing, domains={"u": 3})
    return listing, "is not the manifest of tiny at 4 px"


def edit(listing, **changes):
    listing.write_text(json.dumps(json.loads(listing.read_text()) | changes))


def trust(data, listing):
    """Make the manifest agree with the bytes, so that the fault must be found inside the file."""
    edit(listing, bytes=data.stat().st_size, digest=hashlib.sha256(data.read_bytes()).hexdigest())


@pytest.mark.parametrize("damage", [
    truncate, flip_a_pixel, foreign_tensors, other_shapes, cut_header, no_safetensors, empty_data, no_json, no_object,
    binary_manifest, other_format, other_set, no_digest, wrong_counts, domain_without_counts])
def test_damage_is_named(store, damage):
    prepare.prepare("tiny")
    path, words = damage(*prepare.paths("tiny", 4))
    with pytest.raises(UserError) as caught:
        prepare.load_set("tiny")
    text = one_line(caught)
    assert str(path) in text and words in text and text.endswith("make it again: fedlib data tiny --size 4")
    prepare.prepare("tiny")  # and that does mend it
    assert prepare.load_set("tiny").manifest["size"] == 4


def test_large_files_are_hashed_by_verify_only(store, monkeypatch):
    prepare.prepare("tiny")
    flip_a_pixel(*prepare.paths("tiny", 4))
    monkeypatch.setattr(prepare, "HASH_LIMIT", 100)
    prepare.load_set("tiny")
    with pytest.raises(UserError, match="sha256"):
        prepare.verify("tiny")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
@pytest.mark.parametrize("failing", ["tensors", "manifest", "move"])
def test_a_failed_write_leaves_nothing(store, monkeypatch, code, failing):
    def half_then_fail(tensors, path, title):
        Path(path).write_bytes(b"half")
        raise OSError(code, os.strerror(code))

    def fail(*_, **__):
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        target = {"tensors": (prepare, "save", half_then_fail), "manifest": (Path, "write_text", fail),
                  "move": (os, "replace", fail)}[failing]
        patch.setattr(*target)
        with pytest.raises(UserError) as caught:
            prepare.prepare("tiny")
    text = one_line(caught)
    assert str(store / "tiny-4.safetensors") in text and os.strerror(code) in text
    assert files(store) == []


def test_the_manifest_moves_last(store, monkeypatch):
    """Who finds a manifest finds its tensors: cut between the two moves, a new set is none."""
    moves, real = [], os.replace

    def once(source, target):
        moves.append(Path(target).suffix)
        if len(moves) == 2:
            raise OSError(errno.ENOSPC, "full")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", once)
        with pytest.raises(UserError):
            prepare.prepare("tiny")
    assert moves == [".safetensors", ".json"] and not (store / "tiny-4.json").exists()


def test_a_label_beyond_the_classes_is_refused(store):
    x, y, part = DOMAINS["u"]
    for wrong in (2, -1):
        labels = y.copy()
        labels[0] = wrong
        with pytest.raises(ValueError, match=r"u/y is not int64 .* in 0..1"):
            prepare.write_set("tiny", 4, ["a", "b"], {"u": (x, labels, part)}, {})


def test_a_failed_write_keeps_the_old_set(store, monkeypatch):
    first = prepare.prepare("tiny")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        with pytest.raises(UserError):
            prepare.prepare("tiny")
    assert prepare.load_set("tiny").manifest == first and len(files(store)) == 2


def test_what_a_killed_process_left_goes_after_a_day(store):
    prepare.prepare("tiny")
    old, new = (store / f".tiny-4.safetensors.1-{k}.tmp" for k in ("aaaa", "bbbb"))
    for stray in (old, new):
        stray.write_bytes(b"half")
    os.utime(old, (0, 0))
    prepare.prepare("tiny")
    assert new.exists() and not old.exists()


def test_a_real_write_limit(store):
    """The system itself refuses the bytes (a file size limit): one line, exit code 2, nothing left."""
    code = (
        "import resource, signal, numpy as np\n"
        "from fedlib.datasets import prepare\nfrom fedlib.core.errors import UserError\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "x, y = np.zeros((90, 3, 4, 4), np.uint8), np.zeros(90, np.int64)\n"
        "try: prepare.write_set('tiny', 4, ['a'], {'u': (x, y, y.astype(np.uint8))}, {})\n"
        "except UserError as error: print(error); raise SystemExit(2)\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 2, done.stderr
    assert "File too large" in done.stdout and done.stdout.count("\n") == 1
    assert files(store) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_folder_without_permission(store):
    store.mkdir()
    store.chmod(0o500)
    with pytest.raises(UserError, match="Permission denied"):
        prepare.prepare("tiny")


def test_folder_that_is_a_file(store):
    store.write_text("")
    with pytest.raises(UserError) as caught:
        prepare.load_set("tiny")
    assert f"cannot write {store}" in one_line(caught)


def _prepare_often(folder, start):
    os.environ["FEDLIB_DATA"] = folder
    start.wait()
    for _ in range(20):
        prepare.write_set("tiny", 4, ["a", "b"], DOMAINS, {})


def test_two_processes_at_once(store):
    spawn = multiprocessing.get_context("fork")
    start = spawn.Barrier(2)
    both = [spawn.Process(target=_prepare_often, args=(str(store), start)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert prepare.load_set("tiny").manifest["domains"]["u"]["train"] == 10 and len(files(store)) == 2


@pytest.mark.parametrize("key, wrong", [(0, np.float32), (1, np.int32), (2, np.int64)])
def test_arrays_of_another_type_are_refused(store, key, wrong):
    arrays = list(DOMAINS["u"])
    arrays[key] = arrays[key].astype(wrong)
    with pytest.raises(ValueError, match="u/"):
        prepare.write_set("tiny", 4, ["a", "b"], {"u": arrays}, {})
    assert files(store) == []


def test_command_line(store, tmp_path, capsys):
    assert cli.call(["data", "tiny_raw", "--from", str(tmp_path), "--size", "4"]) == 0
    assert "tiny_raw at 4 px" in capsys.readouterr().out
    assert cli.call(["data", "tiny_raw", "--from", str(tmp_path), "--size", "5"]) == 2
    assert capsys.readouterr().err == "fedlib: tiny_raw has no size 5 (sizes: 4, 8)\n"
    assert cli.call(["data", "tiny_raw", "--from", str(tmp_path), "--skip-corrupt"]) == 0
    out = capsys.readouterr().out
    assert "left out, not readable: 1 images, the first is u/a/broken.png: cut" in out
    assert "skipped: 1 unreadable" in out
    assert prepare.load_set("tiny_raw").manifest["skipped"] == ["u/a/broken.png: cut"]


@pytest.mark.parametrize("x", [np.arange(35, dtype=np.int32).reshape(5, 7), RNG.random((5, 3)).astype(np.float16),
                               RNG.random((5, 3)).astype(np.float32), np.zeros((5, 3, 2, 2), np.uint8)])
def test_the_file_is_safetensors_own_byte_for_byte(tmp_path, x, monkeypatch):
    monkeypatch.setattr(prepare, "CHUNK", 16)
    tensors = {f"{d}/{k}": v for d in ("b", "a", "é") for k, v in
               {"x": x, "y": np.arange(5), "part": np.zeros(5, np.uint8)}.items()}
    digest = prepare.save(tensors, tmp_path / "ours", "t-1")
    safetensors.numpy.save_file(tensors, tmp_path / "theirs", metadata={"fedlib": "t-1"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert digest == hashlib.sha256((tmp_path / "ours").read_bytes()).hexdigest()


@pytest.mark.parametrize("kind, x", [("tokens", np.ones((N, 4), np.int32)), ("features", np.ones((N, 4), np.float16))])
def test_tokens_and_features(store, kind, x):
    _, y, part = DOMAINS["u"]
    prepare.write_set("tiny", 4, ["a", "b"], {"u": (x, y, part)}, {"kind": kind, "words": ["<pad>", "it"]})
    found = prepare.load_set("tiny")
    assert found.tensors["u/x"].numpy().dtype == x.dtype and found.manifest["words"] == ["<pad>", "it"]
    with pytest.raises(ValueError, match="u/x is"):
        prepare.write_set("tiny", 4, ["a", "b"], {"u": (x.astype(np.int64), y, part)}, {"kind": kind})


def test_a_class_that_nobody_holds_is_an_error(store):
    with pytest.raises(UserError, match="tiny: no sample of the class 'c' and of 1 others; the raw files"):
        prepare.write_set("tiny", 4, ["a", "b", "c", "d"], DOMAINS, {})
    assert files(store) == []


def test_what_the_manifest_says_of_file_names(store):
    names = prepare.prepare("tiny", say=quiet)["names"]
    assert list(names) == ["u"] and len(names["u"]) == 16 != names["u"]
