"""The papers' splits: each rule against the numbers that its paper or its released code gives."""
import hashlib
import json

import pytest
import torch
from conftest import needs_raw

from fedlib.core.errors import UserError
from fedlib.datasets import prepare, splits
from fedlib.datasets.partition import Data, partition, parts_of
from fedlib.datasets.prepare import TEST, TRAIN, VAL
from fedlib.datasets.registry import reader_of
from fedlib.datasets.splits import RULES, Domain, cut, split, where
from fedlib.experiments import named_partitions


def split_digest(parts) -> str:
    """12 hex digits over the indices of the three parts."""
    sha = hashlib.sha256()
    for index in parts:
        sha.update(len(index).to_bytes(8, "little") + index.sort().values.numpy().tobytes())
    return sha.hexdigest()[:12]


def domain(set_="any", name="d", classes=4, train=40, val=0, test=20, names=""):
    """A domain with the same number of samples of every class in each part, classes mixed."""
    part = torch.tensor(([TRAIN] * train + [VAL] * val + [TEST] * test) * classes, dtype=torch.uint8)
    y = torch.arange(classes).repeat_interleave(train + val + test)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return Domain(set_, name, y[order], part[order], names)


def kept_apart(parts):
    every = torch.cat(list(parts))
    assert len(set(every.tolist())) == len(every)
    return [len(p) for p in parts]


RELEASED_FLAWS = ("mpft_pacs_released", "mpft_pacs_released_public",        # test images that train
                  "feddtr_digits_released")                             # copies


@pytest.mark.parametrize("rule", [r for r in RULES if not r.endswith("pacs_released")])
def test_every_rule_keeps_its_parts_apart_and_is_the_same_each_time(rule):
    d = domain(next(iter(RULES[rule].sets), "any"), "usps", val=10)
    parts = split(rule, d)
    if rule not in RELEASED_FLAWS:
        kept_apart(parts)
    assert split_digest(split(rule, d)) == split_digest(parts)
    assert (len(parts.test) == 0) == bool(RULES[rule].own_test)
    assert set(d.y[parts.train].tolist()) == {0, 1, 2, 3}


DRAWN = {"published": "6e0638ce33f1", "mpft": "f0abfdfdc635", "mpft_pacs": "b8ac473dedf9",
         "mpft_pacs_public": "df6efaed38ae", "mpft_pacs_printed": "faddf24b7a48", "mpft_pacs_released": "a90c770d34db",
         "mpft_office_public": "0000c06e1823", "mpft_pacs_released_public": "38604f9b5da0",
         "feddeap": "83d930b30e27", "fedpall_office": "071de3865748",
         "fedpall_pacs": "071de3865748", "fedpall_digits": "3daa6b7d71e9", "feddtr": "6211943715a8",
         "feddtr_pacs": "6211943715a8", "own_office": "6211943715a8", "feddtr_digits": "ee3e96cf3143",
         "feddtr_digits_released": "05205d5b649f"}


def test_what_a_rule_draws_is_pinned():
    """If this fails, every committed record with such a split is of another one."""
    of = {rule: domain(next(iter(RULES[rule].sets), "any"), "usps", val=10) for rule in DRAWN}
    assert {rule: split_digest(split(rule, d)) for rule, d in of.items()} == DRAWN
    assert set(RULES) - set(DRAWN) == {"feddeap_pacs_released"}     # of PACS's own files


def test_a_digest_changes_with_any_index():
    parts = split("published", domain())
    moved = parts._replace(train=parts.train[1:], val=parts.train[:1])
    assert len(split_digest(parts)) == 12 and split_digest(moved) != split_digest(parts)


def test_feddeap_takes_the_ceiling_per_class():
    """FedDEAP's released folders: test = ceil(0.2 n_c) of every class."""
    parts = split("feddeap", domain(train=7, test=4))       # 11 a class
    assert kept_apart(parts) == [4 * 8, 0, 4 * 3]
    assert split("feddeap", domain(name="e", train=7, test=4)).test.tolist() != parts.test.tolist()


def test_fedpall_takes_the_first_files():
    y = torch.tensor([0] * 7 + [1] * 8)        # 0.8 n = 5.6 and 6.4
    d = Domain("office_caltech", "dslr", y, torch.zeros(15, dtype=torch.uint8))
    assert split("fedpall_office", d).train.tolist() == [*range(6), *range(7, 13)]
    assert split("fedpall_pacs", d._replace(set="pacs")).train.tolist() == [*range(5), *range(7, 13)]


def test_mpft_divides_the_official_train_list():
    parts = split("mpft", domain("domainnet_50", train=50, test=30))
    assert kept_apart(parts) == [4 * 40, 4 * 10, 4 * 30]


def test_mpft_on_pacs():
    d = domain("pacs", "sketch", train=100, test=50)
    assert kept_apart(split("mpft_pacs", d)) == [4 * 84, 4 * 21, 4 * 45]
    assert kept_apart(split("mpft_pacs_printed", d)) == [4 * 105, 4 * 15, 4 * 30]
    released = split("mpft_pacs_released", d)
    assert len(released.test) == 373 and set(released.train.tolist()) | set(released.val.tolist()) == set(
        released.test.tolist())


def test_tiled_usps_lies_on_both_sides_only_as_released():
    """PFLlib repeats USPS four times and then divides: copies of training images are test images."""
    def shared(rule):
        prepared = prepare.Prepared({"domains": {"usps": {}}, "classes": list("abcd")},
                                    {f"usps/{k}": v for k, v in zip(("y", "part"), domain("digits", "usps")[2:4])})
        (share,), _ = partition(Data("digits", split=rule), prepared, 0)
        return len(set(share.train["usps"].tolist()) & set(share.test["usps"].tolist()))
    assert shared("feddtr_digits") == 0 < 50 < shared("feddtr_digits_released")


def test_a_stored_split_wants_the_same_files():
    file = json.loads((splits.STORED / "feddeap_pacs_released.json").read_text())
    counts = {d: (kept["samples"], int(kept["test"], 16).bit_count()) for d, kept in file["domains"].items()}
    assert counts == {"photo": (1670, 337), "art_painting": (2048, 411), "cartoon": (2344, 471), "sketch": (3929, 788)}
    with pytest.raises(UserError, match="names the files of the complete pacs; the prepared photo has others"):
        split("feddeap_pacs_released", domain("pacs", "photo"))


def test_a_stored_split_by_hand(tmp_path, monkeypatch):
    """One bit for each sample, 1 is test: 0x16 is 010110."""
    monkeypatch.setattr(splits, "STORED", tmp_path)
    monkeypatch.setitem(RULES, "s", splits.Rule("", "", splits.stored("s")))
    tensors = {"photo/y": torch.zeros(6).long(), "photo/part": torch.zeros(6, dtype=torch.uint8)}

    def parts(names="00ff", **changes):
        kept = {"samples": 6, "names": "00ff", "test": "16"} | changes
        (tmp_path / "s.json").write_text(json.dumps({"domains": {"photo": kept}}))
        prepared = prepare.Prepared({"domains": {"photo": {}}, "names": {"photo": names}}, tensors)
        return [p.tolist() for p in parts_of(Data("pacs", split="s"), prepared, "photo")]
    assert parts() == [[0, 2, 5], [], [1, 3, 4]] and parts(test="3e") == [[5], [], [0, 1, 2, 3, 4]]
    assert parts(test="0") == [[0, 1, 2, 3, 4, 5], [], []]
    for changes, words in (({"names": "00fe"}, "names the files of the complete pacs"), ({"samples": 7}, "files of"),
                           ({"test": "40"}, "more bits than samples"), ({"test": "-1"}, "more bits than samples"),
                           ({"test": "x"}, "is not a stored split")):
        with pytest.raises(UserError, match=words):
            parts(**changes)


def test_feddtr_takes_so_many_digits():
    """At most 25,000 train and 9,000 test samples; as released 30 training samples of USPS are 120."""
    large = domain("digits", "mnist", classes=2, train=13_000, test=4_600)
    assert [len(p) for p in split("feddtr_digits", large)] == [34_000, 0, 0]
    assert split_digest(split("feddtr_digits", large)) == "76a0476fb695"     # which of them: drawn
    small = domain("digits", "usps", classes=2, train=15, test=4)
    assert [len(split(rule, small).train) for rule in ("feddtr_digits", "feddtr_digits_released")] == [38, 128]
    assert len(split("feddtr_digits_released", small._replace(name="svhn")).train) == 38


def test_stratified_is_scikit_learns():
    from sklearn.model_selection import StratifiedShuffleSplit
    y = torch.arange(5).repeat(20)
    rest, held = splits.stratified(y, 0.2, 1)
    theirs = next(StratifiedShuffleSplit(1, test_size=0.2, random_state=1).split(y, y))
    assert rest.tolist() == theirs[0].tolist() and held.tolist() == theirs[1].tolist()
    with pytest.raises(UserError, match="two samples of every class"):
        splits.stratified(torch.tensor([0, 0, 1]), 0.5, 1)


def test_cut_pieces():
    pieces = cut(torch.tensor([1, 0, 1, 0, 1]), lambda n: (1, n - 1))
    assert [p.tolist() for p in pieces] == [[0, 1], [2, 3, 4]]


def test_every_named_partition_can_be_read():
    named = named_partitions.all_named()
    assert len(named) > 40 and {n.status for n in named.values()} <= set(named_partitions.STATUS)
    for n in named.values():
        reader_of(n.data.name)
        assert n.data.split in RULES and n.says and n.source
        assert not RULES[n.data.split].sets or n.data.name in RULES[n.data.split].sets
        assert "rendered_digits" not in n.data.domains or "stand-in" in n.says
    with pytest.raises(UserError, match="did you mean 'i2pfl_office'"):
        named_partitions.load_named("i2pfl_ofice")


# the real sets

def sizes(name):
    found = named_partitions.drawn(named_partitions.load_named(name).data)
    return {c["domain"]: (c["train"], c["val"], c["test"]) for c in found["clients"]}


@needs_raw
def test_office_is_fedpalls_and_feddeaps():
    """Test sizes that the papers' own decimals give away (facts of FedPall and FedDEAP)."""
    fedpall = {d: test for d, (_, _, test) in sizes("fedpall_office").items()}
    assert fedpall == {"amazon": 192, "caltech": 225, "dslr": 31, "webcam": 58}
    feddeap = {d: test for d, (_, _, test) in sizes("feddeap_office").items()}
    assert feddeap == {"amazon": 194, "caltech": 228, "dslr": 36, "webcam": 63}


@needs_raw
def test_pacs_is_feddeaps_and_mpfts():
    released = {"art_painting": (1637, 0, 411), "cartoon": (1873, 0, 471), "photo": (1333, 0, 337),
                "sketch": (3141, 0, 788)}
    assert sizes("feddeap_pacs") == released
    prepared = prepare.load_set("pacs")
    for d in prepared.manifest["domains"]:
        theirs, ours = (parts_of(Data("pacs", split=s), prepared, d) for s in ("feddeap_pacs_released", "feddeap"))
        y = prepared.tensors[f"{d}/y"]
        assert y[theirs.test].bincount().tolist() == y[ours.test].bincount().tolist()   # the rule, another draw
        assert theirs.test.tolist() != ours.test.tolist()
    assert [t[2] for t in sizes("mpft_pacs_released").values()] == [1670, 373, 2048, 2344]


@needs_raw
def test_sketch_of_i2pfl_is_120_percent():
    """Four clients with 30 % each: the last one gets what is left."""
    found = named_partitions.drawn(named_partitions.load_named("i2pfl_pacs").data)
    n = [c["train"] for c in found["clients"] if c["domain"] == "sketch"]
    whole = int(where(prepare.load_set("pacs").tensors["sketch/part"] == TRAIN).numel())
    assert n[:3] == [int(0.3 * whole)] * 3 and n[3] == whole - sum(n[:3])


@needs_raw
def test_what_is_stored_is_what_is_drawn():
    """Every stored partition whose set can be prepared here has the digest of a new draw."""
    kept = named_partitions.stored()
    assert kept, "fedlib/partitions.json is empty"
    for name in ("mini", "i2pfl_office", "i2pfl_pacs", "fedpall_office", "feddeap_pacs", "feddtr_amazon_reviews"):
        found = named_partitions.drawn(named_partitions.load_named(name).data)
        if name == "i2pfl_pacs" and found["split"] != kept[name]["split"]:
            continue        # a copy with the official lists: another split, as the page says
        assert found == kept[name], name
