"""The datasets in words, as the page of datasets lists them."""
from types import SimpleNamespace

from fedlib.datasets.registry import DATASETS
from fedlib.experiments import named_partitions
from fedlib.report import catalogue


def test_every_set_has_a_line():
    sets = catalogue.sets().set_index("name")
    assert list(sets.index) == list(DATASETS)
    assert sets["used by"]["office_caltech"] == "I2PFL, FedPall, FedDEAP" and sets["used by"]["mini_reviews"] == "–"
    assert sets.files["mini_digits"] == "built in" and sets.files["ham10000"] == "by hand"
    assert sets.files["pacs"] == "downloads" and sets.samples["pacs"] == "9,991"
    assert all(name in catalogue.terms(name) for name in DATASETS)


def test_samples_say_where_only_the_test_part_is_known():
    assert catalogue.samples(SimpleNamespace()) == "–"
    assert catalogue.samples(SimpleNamespace(PUBLISHED={"a train": 1000, "a test": 20})) == "1,020"
    assert catalogue.samples(SimpleNamespace(PUBLISHED={"a test": 1000, "b test": 20})) == "1,020 in test"
    assert catalogue.samples(SimpleNamespace(PUBLISHED={"a": 5, "b": 7})) == "12"


def test_published_counts_of_domains():
    found = catalogue.domains("digits", "pacs").set_index("domain")
    assert found.loc["mnist", ["train", "test", "all"]].tolist() == ["60,000", "10,000", ""]
    assert found.loc["photo", ["train", "test", "all"]].tolist() == ["", "", "1,670"]


def test_partitions_and_their_overlaps():
    named, stored, seen = named_partitions.all_named(), named_partitions.stored(), catalogue.overlaps()
    assert len(catalogue.partitions()) == len(named) > 40 and set(stored) <= set(named)
    seen, copied = (seen.set_index("partition")[k] for k in ("of these trained on", "copies of one trained on"))
    assert seen["i2pfl_office"] == 0 and seen["mpft_pacs_released"] > 0
    assert copied["fedpall_pacs"] == 0 and copied["fedpall_office"] == 6 and copied["feddtr_amazon_reviews"] == 629
    assert [c["train"] for c in stored["i2pfl_office"]["clients"]] == [179] * 3 + [153] * 2 + [47] + [25] * 4
