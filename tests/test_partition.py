"""From domains to clients: sizes, no sample twice, every class, and splits that do not overlap."""
import os

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlib import prepare
from fedlib.errors import UserError
from fedlib.partition import Data, draw, federate, repair, splits
from fedlib.seeds import generator

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

    prepared, federation = prepare.load("tiny_digits"), federate(Data(**tiny), 0)
    places = set()          # a stream per domain: the same positions are not drawn from each
    for c in federation.clients[2:]:
        whole = [x.numpy().tobytes() for x in splits(prepared, c.domain, "heldout")[0].x]
        places.add(tuple(whole.index(x.numpy().tobytes()) for x in c.train.x))
    assert len(places) == 3


def images(split):
    return {x.numpy().tobytes() for x in split.x}


def test_splits_do_not_share_an_image():
    prepared = prepare.load("tiny_digits")
    for domain in prepared.manifest["domains"]:
        train, val, test = splits(prepared, domain, "heldout")
        assert [len(s) for s in (train, val, test)] == [50, 20, 30]
        assert len(images(train) | images(val) | images(test)) == 100
        whole = splits(prepared, domain, "all")[2]      # as some released code tests
        assert images(train) | images(val) | images(test) == images(whole) and len(whole) == 100


def test_clients_hold_training_images_of_their_domain():
    prepared, federation = prepare.load("tiny_digits"), federate(Data(**tiny), 0)
    assert [(c.id, c.domain, len(c.train)) for c in federation.clients] == [
        ("0", "scans", 25), ("1", "scans", 25), ("2", "blended", 25), ("3", "printed", 25), ("4", "street", 25)]
    for c in federation.clients:
        train, val, test = splits(prepared, c.domain, "heldout")
        assert images(c.train) <= images(train) and images(c.val) == images(val) and images(c.test) == images(test)
        assert len(images(c.train)) == 25 and set(c.train.y.tolist()) == set(range(10))
    assert federation.domains == ["scans", "blended", "printed", "street"]


def test_public_images_are_in_no_split():
    prepared = prepare.load("tiny_digits")
    part = prepared.tensors["scans/part"].clone()
    part[:7] = prepare.PUBLIC
    hidden = prepare.Prepared(prepared.manifest, prepared.tensors | {"scans/part": part})
    assert sum(map(len, splits(hidden, "scans", "heldout"))) == 93 and len(splits(hidden, "scans", "all")[2]) == 93


@pytest.mark.parametrize("changes, words", [
    ({"domains": ("scan",), "clients": ()}, "unknown domain of tiny_digits 'scan'; did you mean 'scans'? (known: sc"),
    ({"unseen": ("steet",)}, "did you mean 'street'?"),
    ({"clients": (1, 2)}, "clients has 2 numbers for 4 domains (scans, blended, printed, street)"),
    ({"clients": (5, 1, 1, 1), "repair": False}, "no samples are left for client 3 of 5"),
    ({"fraction": 0.01}, "fraction 0.01 of 50 training images is none"),
    ({"unseen": ("scans", "blended", "printed", "street")}, "there are no clients"),
    ({"size": 29}, "tiny_digits has no size 29 (sizes: 28)"),
    ({"name": "tiny_digit"}, "did you mean 'tiny_digits'?")])
def test_mistakes_are_named(changes, words):
    with pytest.raises(UserError) as caught:
        federate(Data(**tiny | changes), 0)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.skipif(not os.environ.get("FEDLIB_RAW"), reason="FEDLIB_RAW names no folder with the real images")
def test_office_caltech_clients_are_the_papers():
    """Clients 3/2/1/4 with 20 % of their domain each, as I2PFL's Table 1 and RethinkFL's sampling give."""
    spec = Data("office_caltech", 32, ("caltech", "amazon", "webcam", "dslr"), (3, 2, 1, 4), 0.2)
    federation = federate(spec, 0)
    sizes = {d: [len(c.train) for c in federation.clients if c.domain == d] for d in federation.domains}
    assert sizes == {"caltech": [179] * 3, "amazon": [153] * 2, "webcam": [47], "dslr": [25] * 4}
    assert all(set(c.train.y.tolist()) == set(range(10)) for c in federation.clients)
