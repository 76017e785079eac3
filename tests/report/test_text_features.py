"""Texts beside images: margins and distances by hand, and what is kept beside the committed records."""
import numpy as np
import pytest
import torch

from fedlib import Page
from fedlib.report import text_features


def tiny():
    """Two classes in two domains of one image each; both texts of the second domain are swapped."""
    z, y = torch.eye(2)[[0, 1, 0, 1]], torch.tensor([0, 1, 0, 1])
    return z, y, np.array(["a", "a", "b", "b"]), {"a": torch.eye(2), "b": torch.eye(2).flip(0)}


def test_margins_by_hand():
    found = text_features.margins({("mini", "FedDEAP", 0): tiny()}).set_index("domain")
    assert found.loc["a", ["own", "other", "margin", "right"]].tolist() == [1, 0, 1, 100]
    assert found.loc["b", ["own", "other", "margin", "right"]].tolist() == [0, 1, -1, 0]


def test_distances_by_hand():
    """Swapped texts: each class is orthogonal to itself elsewhere, and to the other class at home."""
    found = text_features.spreads({("mini", "FedDEAP", 0): tiny()}).set_index("vectors")
    assert found.loc["texts", ["same class, other domain", "same domain, other class"]].tolist() == [1, 1]
    assert found.loc["images' means", ["same class, other domain", "same domain, other class"]].tolist() == [0, 1]
    assert text_features.spread(torch.tensor([[[1.0, 0], [0, 1]], [[1, 0], [-1, 0]]])) == pytest.approx((0.5, 1.5))


def test_a_gain_is_taken_seed_by_seed():
    z, y, domains, texts = tiny()
    kept = {("mini", "PromptFL", 0): tiny(), ("mini", "PromptFL", 1): tiny(),
            ("mini", "FedDEAP", 0): (z, y, domains, {d: torch.eye(2) for d in texts})}
    found = text_features.gain(text_features.margins(kept), "FedDEAP", "PromptFL")
    assert len(found) == 1 and found.iloc[0].to_dict() == {"own": 0.5, "other": -0.5, "margin": 1, "right": 50}
    assert text_features.gain(text_features.margins(kept), "FedDEAP", "FedAPT").empty


def test_what_is_kept_of_the_committed_records():
    """One set of texts for all with PromptFL, one for each domain with FedDEAP; the same images of a frozen encoder."""
    kept = text_features.collected(Page("feddeap/figure4", "mini", [0, 1, 2]))
    assert len(kept) == 6
    for (block, row, seed), (z, y, domains, texts) in kept.items():
        assert len(z) == len(y) == len(domains) and z.isfinite().all() and set(texts) == set(domains.tolist())
        first, *others = texts.values()
        if row == "PromptFL":
            assert all(torch.equal(first, t) for t in others)
        else:
            assert not any(torch.allclose(first, t, atol=1e-3) for t in others)
            assert torch.equal(z, kept[block, "PromptFL", seed][0])
