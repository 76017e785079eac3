"""From domains to clients: sizes, no sample twice, every class, and splits that do not overlap."""
import dataclasses

import pytest
import torch
from conftest import needs_raw, quiet, refusal, small_run
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib.core import settings as config
from fedlib.core.errors import UserError
from fedlib.core.seeds import generator
from fedlib.datasets import feature_cache, prepare, splits
from fedlib.datasets.partition import (
    Data,
    chunks,
    dirichlet,
    draw,
    federate,
    held_size,
    partition,
    partition_digest,
    parts_of,
    pathological,
    repair,
)
from fedlib.datasets.prepare import TEST, TRAIN, VAL
from fedlib.engine import records
from fedlib.engine.loop import train
from fedlib.methods.base import FedAvg, Protocol
from fedlib.models.nets import Arch

quick = settings(max_examples=60, deadline=None)
labels = st.lists(st.integers(0, 3), min_size=12, max_size=60).map(torch.tensor)
tiny = {"name": "tiny_digits", "fraction": 0.5, "clients": (2, 1, 1, 1)}


@quick
@given(labels, st.integers(1, 4), st.sampled_from([0.1, 0.25, 0.3, 0.6, 1.0]), st.integers(0, 99))
def test_sizes_and_no_sample_twice(y, clients, fraction, seed):
    size = len(y) // clients if fraction == 1 else int(fraction * len(y))
    sizes = [max(0, min(size, len(y) - k * size)) for k in range(clients)]
    plain, mended = (Data("any", fraction=fraction, repair=r) for r in (False, True))
    if 0 in sizes:
        with pytest.raises(UserError, match="any: "):
            draw(y, clients, plain, 4, generator(seed))
        return
    drawn = draw(y, clients, plain, 4, generator(seed))
    assert [len(d) for d in drawn] == sizes
    assert len(set(torch.cat(drawn).tolist())) == sum(sizes)
    for d, n in zip(draw(y, clients, mended, 4, generator(seed)), sizes, strict=True):
        assert n <= len(d) <= size and len(set(d.tolist())) == len(d)   # the last may also get what repair gave back


@quick
@given(st.lists(st.integers(0, 3), min_size=4, max_size=40).map(torch.tensor), st.integers(1, 3), st.integers(0, 99))
def test_repair_gives_every_class_that_the_domain_has(y, clients, seed):
    """Here a fifth class is in no image, and every class has images that nobody holds."""
    y = torch.cat([y, *[torch.full((1 + clients * 10,), k) for k in range(4)]])
    drawn = draw(y, clients, Data("any", fraction=10 / len(y) + 1e-9), 5, generator(seed))
    assert all(set(y[d].tolist()) == {0, 1, 2, 3} for d in drawn)
    held = torch.cat(drawn).tolist()
    assert len(set(held)) == len(held)


def test_repair_by_hand():
    """A client of 0, 0, 1 lacks 2 and 3: 2 is free, 3 is only in others' hands, 4 does not exist."""
    y = torch.tensor([0, 0, 1, 2, 3, 0, 1, 0])
    mine, left = torch.tensor([0, 1, 2, 5]), torch.tensor([3, 6])
    left = repair(mine, left, y, 5)
    assert sorted(y[mine].tolist()) == [0, 1, 2, 3] and {3, 4} <= set(mine.tolist())
    assert sorted(left.tolist()) == [0, 1, 6]       # the two images it gave back are free again
    single = torch.tensor([2])                      # one image cannot hold two classes
    assert repair(single, torch.tensor([0]), y, 5).tolist() == [0] and single.tolist() == [2]


def test_the_last_client_gets_what_is_left():
    drawn = draw(torch.zeros(100).long(), 4, Data("any", fraction=0.3), 1, generator(0))
    assert [len(d) for d in drawn] == [30, 30, 30, 10]


def test_the_draw_is_keyed_by_the_seed():
    def digests(seed, **changes):
        return [c["digest"] for c in federate(Data(**tiny | changes), seed).about["clients"]]
    first = digests(0)
    assert digests(0) == first and not set(digests(1)) & set(first)
    assert len(set(first)) == 5
    assert digests(0, domains=("scans", "blended"), clients=(2, 1)) == first[:3]
    assert digests(0, partition_seed=7) == digests(1, partition_seed=7) != first
    assert digests(1, partition_seed=0) == first and {len(d) for d in first} == {12}

    prepared = prepare.load_set("tiny_digits")
    shares, _ = partition(Data(**tiny), prepared, 0)
    places = {tuple(s.train[s.domain].tolist()) for s in shares[2:]}
    assert len(places) == 3         # a stream per domain: the same positions are not drawn from each


def images(split):
    return {x.numpy().tobytes() for x in split.x}


def of(prepared, domain, index):
    return {x.numpy().tobytes() for x in prepared.tensors[f"{domain}/x"][index]}


def test_splits_do_not_share_an_image():
    prepared = prepare.load_set("tiny_digits")
    for d in prepared.manifest["domains"]:
        parts = parts_of(Data("tiny_digits"), prepared, d)
        assert [len(p) for p in parts] == [50, 20, 30]
        assert len(set.union(*(of(prepared, d, p) for p in parts))) == 100
        whole = parts_of(Data("tiny_digits", test="all"), prepared, d)      # as some released code tests
        assert sorted(whole.test.tolist()) == list(range(100)) and whole.train.equal(parts.train)


def test_clients_hold_training_images_of_their_domain():
    prepared, federation = prepare.load_set("tiny_digits"), federate(Data(**tiny), 0)
    assert [(c.id, c.domain, len(c.train)) for c in federation.clients] == [
        ("0", "scans", 25), ("1", "scans", 25), ("2", "blended", 25), ("3", "printed", 25), ("4", "street", 25)]
    for c in federation.clients:
        train, val, test = (of(prepared, c.domain, p) for p in parts_of(Data("tiny_digits"), prepared, c.domain))
        assert images(c.train) <= train and images(c.val) == val and images(c.test) == test
        assert len(images(c.train)) == 25 and set(c.train.y.tolist()) == set(range(10))
    assert federation.domains == ["scans", "blended", "printed", "street"]
    assert federation.clients[0].test is federation.clients[1].test and not federation.own_tests


def test_clients_hold_the_frozen_head_of_their_domain():
    feature_cache.ensure_features("tiny_digits", None, "mini_clip", say=quiet)
    spec = {"name": "tiny_digits", "encoder": "mini_clip", "clients": (2, 1, 1, 1)}
    federation, plain = (federate(Data(**spec, head=head), 0) for head in ("texts", ""))
    heads = {c.domain: c.head for c in federation.clients}
    assert federation.clients[0].head is federation.clients[1].head and {h.shape for h in heads.values()} == {(10, 128)}
    assert len({tuple(h.flatten().tolist()) for h in heads.values()}) == 4
    assert torch.equal(federation.head, torch.stack(list(heads.values())).mean(0))
    assert plain.head is None and all(c.head is None for c in plain.clients)


def test_public_images_are_in_no_split():
    prepared = prepare.load_set("tiny_digits")
    part = prepared.tensors["scans/part"].clone()
    part[:7] = prepare.PUBLIC
    hidden = prepare.Prepared(prepared.manifest, prepared.tensors | {"scans/part": part})
    assert sum(map(len, parts_of(Data("tiny_digits"), hidden, "scans"))) == 93
    assert len(parts_of(Data("tiny_digits", test="all"), hidden, "scans").test) == 93


# other ways to divide, on labels alone

sets = st.lists(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([TRAIN, TRAIN, TRAIN, VAL, TEST])),
                         min_size=30, max_size=80), min_size=2, max_size=3)


def made_up(domains, name="any"):
    """A prepared set with these (label, part) pairs; every class and part is in every domain."""
    fill = [(k, p) for k in range(4) for p in (TRAIN, TRAIN, VAL, TEST)]
    tensors = {}
    for i, pairs in enumerate(domains):
        y, part = zip(*fill, *pairs)
        tensors |= {f"d{i}/y": torch.tensor(y), f"d{i}/part": torch.tensor(part, dtype=torch.uint8),
                    f"d{i}/x": torch.arange(len(y), dtype=torch.float32)[:, None]}
    names = {f"d{i}": {} for i in range(len(domains))}
    return prepare.Prepared({"domains": names, "classes": list("abcd"), "size": 1, "digest": name}, tensors)


def flat(shares, part):
    """All (domain, index) that the clients hold in a part."""
    return [(d, int(i)) for s in shares for d, index in getattr(s, part).items() for i in index]


def check(shares, prepared, clients):
    """What every partition keeps: no training sample twice, and none of it in anybody's validation or test part."""
    train, val, test = (flat(shares, p) for p in ("train", "val", "test"))
    assert len(shares) == clients and len(train) == len(set(train))
    assert not set(train) & (set(val) | set(test)) and not set(val) & set(test)
    assert all(held_size(s.train) and held_size(s.test) for s in shares)
    for d, i in train:
        assert prepared.tensors[f"{d}/part"][i] == TRAIN


kinds = st.sampled_from([
    {"clients": (1, 1)}, {"clients": (2, 3), "fraction": 0.3, "repair": False},
    {"mixed": 0.3}, {"mixed": 0.7}, {"chunks": "disjoint", "clients": (2, 2)},
    {"dirichlet": 0.1, "clients": (3, 2), "minimum": 2}, {"dirichlet": 10.0, "clients": (2, 4), "minimum": 1},
    {"spread": 0.3, "clients": (2, 3)}, {"spread": 1.0},
    {"pathological": 2, "clients": (2, 2)}, {"pathological": 2, "clients": (2, 2), "balanced": False, "minimum": 1}])


@quick
@given(st.lists(sets.map(lambda d: d[0]), min_size=2, max_size=2), kinds, st.integers(0, 99))
def test_every_partition_keeps_apart_what_must_be(domains, kind, seed):
    domains = [[*pairs, *((k, TEST) for k in range(4))] for pairs in domains]       # enough for two clients' chunks
    prepared, spec = made_up(domains), Data("any", **kind)
    shares, _ = partition(spec, prepared, seed)
    check(shares, prepared, sum(spec.clients or (1, 1)))
    again, _ = partition(spec, prepared, seed)
    assert partition_digest(again) == partition_digest(shares)
    others = {partition_digest(partition(spec, prepared, s)[0]) for s in range(seed + 1, seed + 6)}
    if spec.fraction < 1 or spec.dirichlet or spec.spread:
        assert others - {partition_digest(shares)}            # a draw
    elif spec.balanced and kind != {"clients": (1, 1)}:
        assert others == {partition_digest(shares)}           # file order: the same for every seed
    every = sum(int((prepared.tensors[f"d{i}/part"] == TRAIN).sum()) for i in range(2))
    assert (len(flat(shares, "train")) == every) == (spec.fraction == 1)


PINNED = [({"clients": (1, 1)}, "ed33d565db0f"), ({"clients": (2, 3), "fraction": 0.3}, "e4253d9175b4"),
          ({"clients": (2, 2), "pool": 0.5}, "a00198d034ed"), ({"mixed": 0.3}, "1c70b1c1afd4"),
          ({"chunks": "disjoint", "clients": (2, 2)}, "688c8833f3a3"),
          ({"chunks": "released", "clients": (3, 2)}, "024d9a035d37"),
          ({"dirichlet": 0.5, "clients": (3, 2), "minimum": 2}, "0183c7579f08"),
          ({"pathological": 2, "clients": (4, 4)}, "2c1763bde781"),
          ({"pathological": 2, "clients": (4, 4), "balanced": False, "minimum": 1}, "b46ded1a6817"),
          ({"tuning": 0.3}, "0ba53ca4ddc9"), ({"spread": 0.3, "clients": (2, 3)}, "67a130ef8c84")]


@pytest.mark.parametrize("kind, digest", PINNED)
def test_what_a_partition_draws_is_pinned(kind, digest):
    """If this fails, every committed record that was divided so is of other clients."""
    prepared = made_up([[(k * k % 4, p) for k in range(20) for p in (TRAIN, TRAIN, TEST)],
                        [(k % 3, (TRAIN, TRAIN, TEST)[k % 7 % 3]) for k in range(60)]])
    assert partition_digest(partition(Data("any", **kind), prepared, 5)[0]) == digest


def test_chunks_by_hand():
    """MPFT's appendix F: per class ceil(n / s) samples in file order; as released the last chunk may overlap."""
    y = torch.tensor([0, 1, 0, 0, 1, 0, 0])         # class 0 at 0, 2, 3, 5, 6; class 1 at 1, 4
    index = torch.arange(7)
    assert [c.tolist() for c in chunks(y, index, 3, "disjoint")] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [c.tolist() for c in chunks(y, index, 3, "released")] == [[0, 1, 2], [3, 4, 5], [4, 5, 6]]


def test_mixed_by_hand():
    """Ten training samples of a class and a ratio of 0.3: three go to the client before, seven stay."""
    prepared = made_up([[(0, TRAIN)] * 8, [(1, TRAIN)] * 8, [(2, TRAIN)] * 8])
    shares, _ = partition(Data("any", mixed=0.3), prepared, 0)
    assert [list(s.train) for s in shares] == [["d0", "d1"], ["d1", "d2"], ["d2", "d0"]]
    assert [[len(i) for i in s.train.values()] for s in shares] == [[13, 3], [13, 3], [13, 3]]
    own, given_away = shares[0].train["d0"], shares[2].train["d0"]
    assert given_away.tolist() == [0, 1, 16] and not set(own.tolist()) & {0, 1, 16}


@pytest.mark.parametrize("lam, counts", [
    (0.5, [[5 + 7, 5], [4 + 6, 5], [4, 5 + 15]]),       # 13 of 26 and 15 of 30 go to all three, the rest to the own
    (1.0, [[9, 10], [9, 10], [8, 10]])])
def test_spread_by_hand(lam, counts):
    prepared = made_up([[(0, TRAIN)] * 18, [(1, TRAIN)] * 22])      # which adds eight to each
    shares, _ = partition(Data("any", spread=lam, clients=(2, 1)), prepared, 0)
    assert [(s.domain, *s.test) for s in shares] == [("d0", "d0"), ("d0", "d0"), ("d1", "d1")]
    assert [[len(s.train[d]) for d in ("d0", "d1")] for s in shares] == counts


def test_pathological_is_pfllibs():
    """20 clients, 10 classes, 2 each: clients 0-3 share classes 0 and 1, 4-7 share 2 and 3 (facts of FedDTR)."""
    y = torch.arange(10).repeat_interleave(43)
    drawn = pathological(y, 20, Data("any", pathological=2), 10, 0)
    assert [sorted(set(y[d].tolist())) for d in drawn] == [[2 * (i // 4), 2 * (i // 4) + 1] for i in range(20)]
    assert [len(d) for d in drawn] == [20, 20, 20, 26] * 5      # 43 over four: 10, 10, 10 and 13 of each of two classes
    with pytest.raises(UserError, match="leave client 4 without a class"):
        pathological(y[y < 2], 20, Data("any", pathological=2), 10, 0)
    unequal = pathological(y, 20, Data("any", pathological=2, balanced=False), 10, 0)
    assert sorted(torch.cat(unequal).tolist()) == list(range(430)) and len({len(d) for d in unequal}) > 5


@quick
@given(st.sampled_from([0.01, 0.1, 1.0, 100.0]), st.integers(2, 6), st.integers(0, 999))
def test_dirichlet_divides_everything_and_keeps_the_minimum(beta, clients, seed):
    y = torch.arange(10).repeat(30)
    drawn = dirichlet(y, clients, Data("any", dirichlet=beta, minimum=5), seed)
    assert sorted(torch.cat(drawn).tolist()) == list(range(300)) and min(map(len, drawn)) >= 5


def test_a_dirichlet_partition_that_no_draw_gives(monkeypatch):
    monkeypatch.setattr("fedlib.datasets.partition.TRIES", 3)
    with pytest.raises(UserError, match=r"any: 3 draws of Dirichlet\(0.001\) left a client with fewer than 49 samples"):
        dirichlet(torch.zeros(100).long(), 2, Data("any", dirichlet=0.001, minimum=49), 0)


def test_dirichlet_concentrates_as_beta_falls():
    """The mean share of a client's largest class: near 1/10 for large beta, large for small beta."""
    def largest(beta):
        y = torch.arange(10).repeat(100)
        drawn = [d for s in range(20) for d in dirichlet(y, 5, Data("any", dirichlet=beta, minimum=10), s)]
        return sum(float(y[d].bincount(minlength=10).max() / len(d)) for d in drawn) / len(drawn)
    strong, weak, none = largest(0.1), largest(1.0), largest(1000.0)
    assert strong > 0.4 > weak > 0.15 > none > 0.1


def test_every_client_holds_out_its_own_test_part():
    """FedDTR: pooled, divided, then 25 % of each client's samples."""
    prepared = made_up([[(k, TRAIN) for k in range(4)] * 10, [(k, TEST) for k in range(4)] * 10])
    shares, _ = partition(Data("mnist", split="feddtr", dirichlet=1.0, clients=(3, 3), minimum=4), prepared, 0)
    train, test = flat(shares, "train"), flat(shares, "test")
    assert not set(train) & set(test) and len(set(test)) == len(test)
    for s in shares:
        n = held_size(s.train) + held_size(s.test)
        assert held_size(s.test) == -(-n // 4) and not held_size(s.val)
    assert len(train) + len(test) == 2 * 56


def test_a_pool_is_drawn_before_clients_divide_it():
    spec = {"name": "mini_digits", "domains": ("printed",), "split": "feddtr", "clients": (4,), "dirichlet": 0.5}
    shares = {p: partition(Data(**spec, pool=p), prepare.load_set("mini_digits"), 3)[0] for p in (1.0, 0.25)}
    held = {p: torch.cat([i for s in shares[p] for i in (*s.train.values(), *s.test.values())]) for p in shares}
    assert len(held[0.25]) == round(0.25 * len(held[1.0])) == len(held[0.25].unique())
    assert set(held[0.25].tolist()) < set(held[1.0].tolist())
    again, other = (partition(Data(**spec, pool=0.25), prepare.load_set("mini_digits"), seed)[0] for seed in (3, 4))
    assert partition_digest(again) == partition_digest(shares[0.25]) != partition_digest(other)


def test_own_tests_are_all_tested_and_count_by_their_size(tmp_path, monkeypatch):
    """The accuracy of a domain is the share of right answers over all its clients' test samples."""
    rules = splits.RULES["feddtr"]
    monkeypatch.setitem(splits.RULES, "feddtr", splits.Rule(rules.says, rules.source, rules.make, (), 0.25))
    run = small_run(data={"split": "feddtr", "dirichlet": 0.5, "fraction": 1.0, "clients": (3, 2, 1, 1)}, rounds=1)
    federation = federate(run.data, run.seed)
    assert federation.own_tests
    record = records.read_record(train(run, tmp_path))
    n = [len(c.test) for c in federation.clients if c.domain == "scans"]
    assert len(set(n)) > 1 and all(abs(v * sum(n) / 100 - round(v * sum(n) / 100)) < 1e-4 * sum(n)
                                   for v in [record["rounds"][0]["acc"]["scans"]])


def test_leave_one_domain_out():
    federation = federate(Data("tiny_digits", unseen=("street",)), 0)
    assert federation.domains == ["scans", "blended", "printed"] and list(federation.unseen) == ["street"]
    assert len(federation.unseen["street"]) == 30
    assert len(federate(Data("tiny_digits", unseen=("street",), test="all"), 0).unseen["street"]) == 100


def test_later_fields_leave_old_digests_alone():
    """A field that came later is part of a run's digest only away from its default."""
    old = {"name", "size", "domains", "clients", "fraction", "repair", "test", "unseen"}
    assert set(config.spec(Data())) == old
    assert set(config.spec(Data(dirichlet=0.1, split="feddeap"))) == old | {"dirichlet", "split"}
    assert small_run(data={"partition_seed": 3}).digest != small_run().digest == small_run(data={"chunks": ""}).digest


def test_the_defaults_of_later_fields_stay():
    """A digest leaves them out: another default would change what old records mean, and no name would say it."""
    def later(cls):
        return {f.name: f.default for f in dataclasses.fields(cls) if f.metadata.get("later")}
    assert later(Protocol) == {
        "order": "random", "participation_low": 0.0, "stop": "accuracy", "keep_optimiser": False, "warmup": 0,
        "initial": False, "least_batch": 2, "cross": False, "cohort": 0, "test_every": 1,
        "test_clients": 0}
    assert later(Data) == {
        "normalise": "imagenet", "split": "published", "mixed": 0.0, "chunks": "", "dirichlet": 0.0, "minimum": 10,
        "pathological": 0, "spread": 0.0, "natural": False, "balanced": True, "partition_seed": -1, "pool": 1.0,
        "tuning": 0.0,
        "encoder": "", "head": ""}
    assert later(FedAvg) == {"weights": "samples"}
    assert later(Arch) == {"head": "linear", "start": "random", "normalisation": "batch", "tower": "mini_clip"}


@pytest.mark.parametrize("changes", [
    {"partition_seed": -2}, {"clients": (0,)}, {"minimum": 0}, {"fraction": 1.01}, {"mixed": 1}, {"pool": 1.01},
    {"spread": 1.01},
    {"tuning": 0.91}, {"name": "a/b"}, {"name": "a" * 61}, {"rounds": 0}, {"epochs": 0}, {"batch": 0},
    {"participation": 1.01}, {"participation_low": 1.01}, {"momentum": -0.1}])
def test_a_setting_beyond_its_bounds_is_refused(changes):
    data = {k: v for k, v in changes.items() if k in config.fields(Data)}
    refusal(lambda: small_run(data=data, **{k: v for k, v in changes.items() if k not in data}), next(iter(changes)))


def test_a_setting_at_its_bounds_is_taken():
    data = {"partition_seed": -1, "clients": (1, 1, 1, 1), "minimum": 1, "fraction": 1, "mixed": 0.99, "pool": 1,
            "tuning": 0.9, "name": "a" * 60}
    protocol = {"rounds": 1, "epochs": 1, "batch": 1, "participation": 1, "participation_low": 1, "momentum": 0}
    run = small_run(data=data, **protocol)
    assert all(getattr(run.data, k) == v for k, v in data.items())
    assert all(getattr(run.protocol, k) == v for k, v in protocol.items())


@pytest.mark.parametrize("changes, words", [
    ({"domains": ("scan",), "clients": ()}, "unknown domain of tiny_digits 'scan'; did you mean 'scans'? (known: sc"),
    ({"unseen": ("steet",)}, "did you mean 'street'?"),
    ({"clients": (1, 2)}, "clients has 2 numbers for 4 domains (scans, blended, printed, street)"),
    ({"clients": (5, 1, 1, 1), "repair": False}, "no samples are left for client 3 of 5"),
    ({"fraction": 0.01}, "50 samples are too few for 2 clients or fraction 0.01"),
    ({"fraction": 1.0, "clients": (99, 1, 1, 1)}, "50 samples are too few for 99 clients or fraction 1.0"),
    ({"unseen": ("scans", "blended", "printed", "street")}, "there are no clients"),
    ({"size": 29}, "tiny_digits has no size 29 (sizes: 28)"),
    ({"name": "tiny_digit"}, "did you mean 'tiny_digits'?"),
    ({"split": "feddep"}, "unknown split of tiny_digits 'feddep'; did you mean 'feddeap'?"),
    ({"split": "mpft"}, "the split 'mpft' is for domainnet, domainnet_10"),
    ({"dirichlet": 0.1}, "dirichlet and fraction are two ways to divide; name one"),
    ({"dirichlet": 0.1, "mixed": 0.3}, "mixed and dirichlet are two ways"),
    ({"dirichlet": 0.1, "spread": 0.3, "fraction": 1.0}, "dirichlet and spread are two ways"),
    ({"dirichlet": 0.1, "fraction": 1.0, "minimum": 30}, "2 clients cannot have 30 of 50 samples each"),
    ({"pathological": 1, "fraction": 1.0, "clients": (99, 1, 1, 1)}, "class 0 has 5 samples for 10 clients"),
    ({"chunks": "disjoint", "fraction": 1.0, "clients": (9, 1, 1, 1)}, "has 10 training and 0 test samples"),
    ({"mixed": 0.3, "fraction": 1.0, "domains": ("scans",), "clients": ()}, "mixed needs two domains")])
def test_mistakes_are_named(changes, words):
    with pytest.raises(UserError) as caught:
        federate(Data(**tiny | changes), 0)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@needs_raw
def test_office_caltech_clients_are_the_papers():
    """Clients 3/2/1/4 with 20 % of their domain each, as I2PFL's Table 1 and RethinkFL's sampling give."""
    spec = Data("office_caltech", 32, ("caltech", "amazon", "webcam", "dslr"), (3, 2, 1, 4), 0.2)
    federation = federate(spec, 0)
    sizes = {d: [len(c.train) for c in federation.clients if c.domain == d] for d in federation.domains}
    assert sizes == {"caltech": [179] * 3, "amazon": [153] * 2, "webcam": [47], "dslr": [25] * 4}
    assert all(set(c.train.y.tolist()) == set(range(10)) for c in federation.clients)


def test_settings_are_chosen_on_samples_that_no_test_uses():
    """A share of each client's training samples stands in for its test split; unseen domains are not looked at."""
    prepared = prepare.load_set("tiny_digits")
    plain = partition(Data(**tiny), prepared, 0)[0]
    spec = Data(**{**tiny, "clients": ()}, tuning=0.2, unseen=("street",))
    shares, unseen = partition(Data(**tiny, tuning=0.2), prepared, 0)
    assert partition(spec, prepared, 0)[1] == {} == unseen
    for before, after in zip(plain, shares, strict=True):
        d = before.domain
        held, kept, whole = (set(i[d].tolist()) for i in (after.test, after.train, before.train))
        assert held | kept == whole and not held & kept and len(held) == -(-len(whole) // 5)
        assert not held & set(before.test[d].tolist())
    again = partition(Data(**tiny, tuning=0.2), prepared, 0)[0]
    assert all(torch.equal(a.test[a.domain], b.test[b.domain]) for a, b in zip(shares, again, strict=True))
