"""Figures: one look for the whole book. Every function returns a matplotlib Figure; nothing is shown or saved here.

The book shows them as SVG in the colours of its theme (THEMED); elsewhere they stand on solid white. They are drawn
small (5.8 inches wide, type of 11 points), so that they read on a phone. Colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/),
which people with colour-blindness tell apart; a marker, a dash or a printed number says the same again.
"""
from fedlib.report.plots.images import boxes, exchange, grid, holdings, shares, words
from fedlib.report.plots.looks import (
           DASHES,
           DOMAIN_INKS,
           DOMAIN_LOOKS,
           MARKERS,
           METHOD_LOOKS,
           MORE_LOOKS,
           OKABE_ITO,
           RC,
           THEMED,
           WIDTH,
           class_colours,
           colour,
           look,
           styled,
)
from fedlib.report.plots.over_rounds import curves, lines, sensitivity, tries
from fedlib.report.plots.scores import (
           bars,
           differences,
           domains,
           draws,
           effects,
           lengths,
           matrix,
           pairs,
           runs,
           tally,
)
from fedlib.report.plots.spaces import (
           chosen,
           contest,
           drift,
           maps,
           plane,
           planes,
           prototypes,
           rays,
           shadows,
           tsne,
           tsnes,
           ways,
)

__all__ = ["DASHES", "DOMAIN_INKS", "DOMAIN_LOOKS", "MARKERS", "METHOD_LOOKS", "MORE_LOOKS", "OKABE_ITO", "RC",
           "THEMED", "WIDTH", "bars", "boxes", "chosen", "class_colours", "colour", "contest", "curves",
           "differences", "domains", "draws", "drift", "effects", "exchange", "grid", "holdings", "lengths", "lines",
           "look", "maps", "matrix", "pairs", "plane", "planes", "prototypes", "rays", "runs", "sensitivity",
           "shadows", "shares", "styled", "tally", "tries", "tsne", "tsnes", "ways", "words"]
