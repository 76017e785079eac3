"""The embedded texts: counts, no review twice, determinism, labels that follow from the text, and a domain shift."""
import re

import numpy as np
import pytest
from conftest import quiet
from sklearn.linear_model import LogisticRegression

from fedlib.core.errors import UserError
from fedlib.datasets import prepare
from fedlib.engine import records
from fedlib.engine.loop import train
from fedlib.engine.run import plan
from fedlib.experiments import named_partitions
from fedlib.readers import mini_reviews

TRAIN, TEST = 0, 2
ALIKE = {a: b for pair in mini_reviews.OF_TWO for a, b in (pair, pair[::-1])}
SIGNS = {domain: {word: sign for sign, kinds in enumerate(mini_reviews.opinion_words(domain))
                  for group in kinds for word in group} for domain in mini_reviews.DOMAINS}


@pytest.fixture(scope="module")
def made():
    return mini_reviews.read(None, 24, quiet)


@pytest.fixture(scope="module")
def domains(made):
    return made[0]


@pytest.fixture(scope="module")
def words(made):
    return made[1]["words"]


def bags(domain, code):
    """Counts of the words, without padding, and the labels of one part."""
    x, y, part = domain
    return np.stack([np.bincount(row, minlength=400)[1:] for row in x[part == code]]), y[part == code]


def opinions(text: str) -> str:
    """A review without its opening."""
    return next((text.removeprefix(o + " ") for group in mini_reviews.OPENINGS.values() for o in group
                 if text.startswith(o + " ")), text)


def main_clauses(text: str) -> list[str]:
    """Of a review without its opening: what its label follows from."""
    if text.startswith("although "):
        return [text.partition(" , ")[2]]
    main = text.removesuffix(" .").partition(" although ")[0].rpartition(" but ")[2]
    return re.split(r" and | \. ", main)


def test_shapes_and_types(domains):
    assert tuple(domains) == mini_reviews.DOMAINS
    for x, y, part in domains.values():
        assert x.dtype == np.int32 and y.dtype == np.int64 and part.dtype == np.uint8
        assert x.shape == (len(y), 24) and part.shape == y.shape


@pytest.mark.parametrize("domain", mini_reviews.DOMAINS)
def test_counts_are_the_listed_ones(domains, domain):
    _, y, part = domains[domain]
    for code, n in enumerate(mini_reviews.PER_CLASS[domain]):
        assert np.bincount(y[part == code], minlength=2).tolist() == [n] * 2
    assert len(y) == 2 * sum(mini_reviews.PER_CLASS[domain])


def test_the_ids_are_the_texts(domains, words):
    """Words first, nothing cut off, then padding with 0; and every word of the vocabulary is used."""
    assert words[0] == "<pad>" and words[1:] == sorted(set(words[1:])) and 150 < len(words) < 400
    for domain, (x, _, _) in domains.items():
        assert [" ".join(words[i] for i in row if i) for row in x] == mini_reviews.texts(domain)
        assert not ((x[:, :-1] == 0) & (x[:, 1:] != 0)).any() and (x[:, 0] > 0).all()
    assert set(np.unique(np.concatenate([x for x, _, _ in domains.values()]))) == set(range(len(words)))


def test_two_builds_are_equal(domains):
    again, updates = mini_reviews.read(None, 24, quiet)
    assert all(np.array_equal(a, b) for d in domains for a, b in zip(domains[d], again[d], strict=True))
    assert list(updates) == ["words"]


def test_a_domain_depends_neither_on_the_others_nor_on_numpys_global_state(domains, monkeypatch):
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    monkeypatch.setattr(mini_reviews, "DOMAINS", ("kitchen",))
    alone, _ = mini_reviews.read(None, 24, quiet)
    assert list(alone) == ["kitchen"] and np.array_equal(alone["kitchen"][0], domains["kitchen"][0])
    assert np.array_equal(np.random.get_state()[1], before)


def test_no_review_twice():
    """Not in another part, not under the other label, not in another domain, and not behind another opening."""
    said = [opinions(text) for domain in mini_reviews.DOMAINS for text in mini_reviews.texts(domain)]
    assert len(set(said)) == len(said) == 8 * sum(mini_reviews.PER_CLASS["books"])


@pytest.mark.parametrize("domain", mini_reviews.DOMAINS)
def test_the_label_is_what_the_text_says(domain):
    for text, label in zip(mini_reviews.texts(domain), mini_reviews.labels(domain)[0], strict=True):
        for clause in main_clauses(opinions(text)):
            said = clause.split()
            sign, = (SIGNS[domain][word] for word in said if word in SIGNS[domain])
            assert sign ^ bool({"not", "never"} & set(said)) == label, text


@pytest.mark.parametrize("word, sides", mini_reviews.TURNED.items())
def test_some_words_mean_the_opposite_elsewhere(domains, words, word, sides):
    """In the training data, too: most reviews with the word are negative in some domains and positive in others."""
    for sign, group in enumerate(sides):
        for domain in group:
            x, y, part = domains[domain]
            with_it = y[(part == TRAIN) & (x == words.index(word)).any(1)]
            assert len(with_it) >= 5 and (with_it == sign).mean() > 0.7, (domain, with_it)


def test_opinion_words_of_a_domain_are_told_apart():
    for domain in mini_reviews.DOMAINS:
        assert len(SIGNS[domain]) == sum(len(w) for kinds in mini_reviews.opinion_words(domain) for w in kinds)
    nouns = [noun for group in mini_reviews.NOUNS.values() for noun in group]
    assert len(set(nouns)) == len(nouns) and not set(nouns) & {word for signs in SIGNS.values() for word in signs}


@pytest.mark.parametrize("domain", mini_reviews.DOMAINS)
def test_domain_shift(domains, domain):
    """A linear classifier of one domain's words knows it well, not fully, and of the others most the one alike."""
    net = LogisticRegression(max_iter=500).fit(*bags(domains[domain], TRAIN))
    accuracy = {other: net.score(*bags(domains[other], TEST)) for other in mini_reviews.DOMAINS}
    own = accuracy.pop(domain)
    assert 0.85 < own < 0.97
    assert all(0.57 < other < 0.87 and other < own - 0.05 for other in accuracy.values()), (own, accuracy)
    assert np.mean(list(accuracy.values())) < own - 0.15 and max(accuracy, key=accuracy.get) == ALIKE[domain]


def test_it_is_registered_and_called_synthetic(tmp_path, monkeypatch, words):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    manifest = prepare.load_set("mini_reviews").manifest
    assert manifest["kind"] == "tokens" and manifest["words"] == words
    assert tuple(manifest["domains"]) == mini_reviews.DOMAINS
    assert manifest["domains"]["dvd"] == {"train": 400, "val": 160, "test": 200, "public": 200, "per_class": [480, 480]}
    assert "synthetic" in mini_reviews.TITLE and "synthetic" in manifest["source"]
    assert prepare.verify("mini_reviews")["digest"] == manifest["digest"]


def test_the_stored_partition_is_what_is_drawn():
    drawn = named_partitions.drawn(named_partitions.load_named("mini_reviews").data)
    assert drawn == named_partitions.stored()["mini_reviews"]
    assert [(c["domain"], c["train"], c["seen"]) for c in drawn["clients"]] == [(d, 400, 0) for d in SIGNS]


def test_training_learns(tmp_path):
    """FedAvg with fasttext, a client per domain: above chance in each after three rounds."""
    run = plan("FedAvg", {}, {"name": "mini_reviews"}, {"net": "fasttext", "width": 16},
                       {"rounds": 3, "epochs": 3, "batch": 16, "lr": 0.5, "momentum": 0.9}, 0)
    record = records.read_record(train(run, tmp_path))
    accuracy = record["rounds"][-1]["acc"]
    assert set(accuracy) == set(mini_reviews.DOMAINS) and min(accuracy.values()) > 60, accuracy


@pytest.mark.parametrize("size", [28, 0, "24"])
def test_another_size_is_refused(size):
    with pytest.raises(UserError, match=f"no size {size}.*allowed: 24"):
        mini_reviews.read(None, size, quiet)
