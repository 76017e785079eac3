"""Silhouettes by hand, and the features that were kept beside records."""
import math

import torch

from fedlib import Page
from fedlib.report import features

# two classes at a right angle in domain a; in domain b the classes are exchanged
Z = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
Y, DOMAINS = torch.tensor([0, 0, 1, 1]), ["a", "a", "a", "a"]


def test_a_silhouette_sees_directions_alone():
    assert features.silhouette(Z.numpy(), [0, 0, 1, 1]) == 1 and features.silhouette(Z.numpy(), [0, 1, 0, 1]) == -0.5
    assert math.isnan(features.silhouette(Z.numpy(), DOMAINS)) and math.isnan(features.silhouette(Z.numpy(), range(4)))


def test_classes_may_be_apart_in_each_domain_and_mixed_in_all():
    page = type("", (), {"titles": {"block": "Title"}})
    both = torch.cat([Z, Z]), torch.cat([Y, 1 - Y]), DOMAINS + ["b"] * 4
    line = features.silhouettes(page, {("block", "row", 0): both}).iloc[0]
    assert line.tolist()[:4] == ["Title", "row", 0, 8] and line["by class, in a domain"] == 1
    assert line["by class"] < 0 and line["by domain"] < 0


def test_features_beside_records():
    page = Page("i2pfl/figure4", "mini", [0])
    kept = features.collected(page)
    assert [row for _, row, _ in kept] == page.rows
    assert all(len(z) == len(y) == len(domains) for z, y, domains in kept.values())
    made = features.silhouettes(page, kept)
    assert made[["by class", "by class, in a domain", "by domain"]].abs().le(1).all(axis=None)


def test_nothing_was_kept():
    page = Page("i2pfl/figure4", "mini", [7])
    assert features.collected(page) == {} and features.silhouettes(page, {}).empty
