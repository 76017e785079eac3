"""Grad-CAM maps as numbers and pictures: the middle of a map, two maps alike, an image under its map."""
import pytest
import torch

from fedlib import Page
from fedlib.report import heat_maps

EVEN = torch.full((1, 32, 32), 9, dtype=torch.uint8)


def point(row, column):
    heat = torch.zeros(1, 32, 32, dtype=torch.uint8)
    heat[0, row, column] = 255
    return heat


def test_an_even_map_has_a_quarter_of_its_heat_in_the_middle():
    assert float(heat_maps.middle(EVEN)) == pytest.approx(25)
    assert float(heat_maps.middle(point(16, 16))) == 100 and float(heat_maps.middle(point(7, 16))) == 0
    assert float(heat_maps.middle(torch.zeros_like(EVEN))) == 0


def test_maps_that_are_alike_correlate():
    found = heat_maps.alike(torch.cat([point(3, 3), point(3, 3), EVEN]), torch.cat([point(3, 3), point(9, 9), EVEN]))
    assert float(found[0]) == pytest.approx(1, abs=1e-5) and -0.01 < float(found[1]) < 0 and found[2].isnan()


def test_an_image_lies_in_grey_under_its_map():
    white = torch.full((3, 8, 8), 255, dtype=torch.uint8)
    cold, hot = (heat_maps.heated(white, torch.full((4, 4), v, dtype=torch.uint8)) for v in (0, 255))
    assert cold.shape == (3, 8, 8) and len(cold.flatten(1).unique(dim=1).T) == 1
    assert hot[0, 0, 0] > hot[2, 0, 0] and cold[2, 0, 0] > cold[0, 0, 0]       # yellow, and dark blue


def test_what_is_kept_of_the_committed_records():
    pytest.importorskip("open_clip")
    pytest.importorskip("pytorch_grad_cam")
    page = Page("feddeap/figure5", "mini", [0])
    kept = heat_maps.collected(page)
    (run, maps), = kept.values()
    for found in maps.values():
        assert found["semantic"].shape == found["domain"].shape and len(found["y"].unique()) == len(found["index"])
    rows = heat_maps.pictures(run, maps)
    assert list(rows) == list(maps) and all(x.shape[:2] == (6, 3) for x in rows.values())
    looks = heat_maps.looks(kept)
    assert looks.groupby("networks").size().to_dict() == {"trained": 16, "random": 16}
    assert looks[["T_S (%)", "T_D (%)"]].stack().between(0, 100).all()
