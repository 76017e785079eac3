"""One look for the whole book: colours, markers and dashes by name, sizes, legends."""
import functools

WIDTH = 5.8      # inches
# Colours that have another value on a dark page, and what the book's style sheet calls them (book/figures.py). Every
# other colour is the same on both: text on a piece of colour is DARK or LIGHT.
THEMED = {"#000000": "ink", "#ffffff": "ground", "#e4e4e4": "grid", "#808080": "line", "#b0b0b0": "pale",
          "#4d4d4d": "dim", "#0072b2": "blue", "#56b4e9": "sky", "#8c6d00": "olive"}
INK, LINE, PALE, DIM, DARK, LIGHT = "#000000", "#808080", "#b0b0b0", "#4d4d4d", "#1a1a1a", "#fdfdfd"
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#4D4D4D", "#8C6D00")
MARKERS = "os^DvPX*"
DASHES = ("-", "--", "-.", ":")
DEALT = {}       # names without a look of their own, as they come
# (colour, marker, dash) of the names that share a figure most often; the domains as on the book's first page.
METHOD_LOOKS = ("FedAvg", "FedProto", "FedBN", "I2PFL", "MOON", "FedProx", "Local", "Ditto")
DOMAIN_LOOKS = (("scans", "caltech", "photo", "mnist"), ("blended", "amazon", "art_painting", "usps"),
                ("printed", "webcam", "cartoon", "mnist_m"), ("street", "dslr", "sketch", "svhn"), ("syn",))
DOMAIN_INKS = (3, 2, 1, 4, 5)
# Further names that share figures, as (ink, marker, dash): data sets, and the other methods of the papers' tables.
MORE_LOOKS = {"Digits": (0, "o", "-"), "Office-10": (3, "D", "-"), "PACS": (2, "^", "-"), "mini_digits": (6, "s", "-"),
              "MPFT, average": (3, "D", "-"), "MPFT, cluster": (2, "s", "-"), "MPFT, random": (4, "^", "-"),
              "Fed3R": (1, "v", "-"), "AFL": (6, "X", "-"), "FedCGS": (7, "*", "-"),
              "MPFT": (3, "D", "-"), "DBE": (2, "^", "-"), "mean": (3, "D", "-"), "r = 0.1": (5, "o", ":"),
              "r = 0.3": (0, "s", "-"), "r = 0.5": (2, "^", "--"), "r = 0.7": (1, "v", "-."), "r = 0.9": (6, "P", "-"),
              "FedDyn": (2, "*", ":"), "FedPLVM": (2, "X", "-."), "FedProc": (6, "s", "-."), "COPA": (6, "o", ":"),
              "FPL": (7, "D", "-."), "FedGA": (7, "^", ":"), "FedPall": (3, "D", "-"), "ADCOL": (7, "P", "-"),
              "FedPall, one rate": (3, "v", ":"),
              "FedAvg, own statistics": (2, "v", ":"), "FedAvg, tested after training": (0, "X", "-."),
              "FedRep": (1, "*", "-."), "PerFedAvg": (6, "s", "-."), "RUCR": (5, "o", ":"), "FedHEAL": (0, "^", ":"),
              "CE": (6, "s", "-"), "CE + InfoNCE": (1, "^", "-"), "CE + KL": (5, "v", "-"),
              "CE + InfoNCE + KL": (3, "D", "-"), "without": (5, "s", "-"), "with": (3, "D", "-"),
              "FedDTR": (3, "D", "-"), "FedPer": (2, "^", "-"), "FedALA": (4, "v", "-"), "FedAMP": (6, "P", "-"),
              "pFedMe": (7, "X", ":"), "FedFomo": (5, "o", ":"), "FedPHP": (0, "^", ":"), "FedRoD": (2, "s", "-."),
              "ood": (0, "o", "-"), "ind": (3, "s", "-"), "Average": (0, "o", "-"), "Random 0.1": (3, "D", "-"),
              "β = 0": (6, "o", "-"), "β = 10": (0, "s", "-."), "β = 100": (2, "^", "-"), "β = 1000": (3, "D", ":"),
              "printed formula": (3, "D", "-"), "exact": (0, "o", "-"), "one image": (0, "o", "-"),
              "class mean": (3, "s", "-"), "CLIP-zs": (6, "X", ":"), "CLIP-FC": (5, "P", "-."),
              "FedCLIP": (1, "s", ":"), "FACMIC": (4, "v", "-."), "PromptFL": (0, "o", "-"),
              "FedAPT": (2, "^", "-."), "FedDEAP": (3, "D", "-"), "KgCoOp": (5, "P", "--"), "FedPGP": (6, "*", ":"),
              "FedTPG": (7, "s", "-."),
              "DomainNet-126": (0, "o", "-"), "Office-Caltech10": (3, "D", "-"), "DDR": (1, "v", "-"),
              "Office-Caltech-10": (3, "D", "-"), "Fashion-MNIST": (2, "P", "-"), "Amazon Review": (5, "D", "-"),
              "mini_digits with mini_clip": (6, "s", "-"), "λ1": (0, "o", "-"), "λ2": (3, "s", "--"),
               "class by class": (3, "D", "-"), "random order": (0, "o", "-"), "paper mode": (2, "^", "-"),
               "64 neurons": (5, "s", ":"), "256 neurons": (0, "o", "-"), "1024 neurons": (3, "D", "-"),
               "with the picture": (3, "D", "-"), "with another": (0, "o", "-"), "trained on": (3, "D", "-"),
               "not": (0, "o", "-"), "held out": (0, "o", "-"), "paired by seed": (3, "D", "-"),
               "as if unrelated": (6, "s", "--"), "added up": (6, "s", "-."), "SCAFFOLD": (3, "D", "-"),
               "APFL": (0, "P", "-."), "FedAvgM": (1, "s", "-."), "FedAdam": (6, "X", ":"), "head": (1, "^", "-"),
               "adapter": (0, "o", "-"),
               "MPFT's adapter": (3, "D", "-"), "prompt": (2, "v", "--"), "FedDEAP's prompts": (4, "P", "-."),
               "cluster": (0, "s", "--"), "random": (2, "^", "-."), "as the server sent it": (6, "*", "-"),
               "whole net": (6, "s", "-"), "zero-shot": (5, "X", ":"),
               "PFLlib": (5, "s", "-"), "fedlib": (6, "o", ":")}
RC = {"figure.dpi": 150, "figure.facecolor": "white", "savefig.facecolor": "white", "axes.facecolor": "none",
      "figure.constrained_layout.use": True, "font.size": 11, "axes.titlesize": 11, "axes.labelsize": 11,
      "xtick.labelsize": 10, "ytick.labelsize": 10, "legend.fontsize": 10, "legend.title_fontsize": 10,
      "legend.frameon": False,
      "legend.handletextpad": 0.5, "legend.columnspacing": 1.2, "axes.edgecolor": "#808080", "grid.color": "#e4e4e4",
      "axes.axisbelow": True, "lines.linewidth": 1.8, "lines.markersize": 5}


def look(name: str) -> dict:
    """Colour, marker and dash of a method or a domain. They depend on the name alone, never on what else is drawn, but
    that names without a look of their own, like a user's sites, are dealt one after the other.

    A variant of a method, "MOON, mu = 1", that has no look of its own is drawn as the method with a broken line and
    the marker of its whole name; a remark in brackets, "PACS (not run)", changes nothing.
    """
    from fedlib.core.seeds import key  # it loads PyTorch, and the book's build needs the colours alone
    name = name.split(" (")[0]
    if ", " in name and name not in MORE_LOOKS:
        return look(name.split(", ")[0]) | {"linestyle": "--", "marker": MARKERS[key("marker", name) % len(MARKERS)]}
    name = {"alone": "Local", "SingleSet": "Local"}.get(name, name)
    if name == "pooled":
        return {"color": "black", "marker": "P", "linestyle": "--"}
    if name in METHOD_LOOKS:
        i = METHOD_LOOKS.index(name)
        return {"color": OKABE_ITO[i], "marker": MARKERS[i], "linestyle": "-"}
    if name in MORE_LOOKS:
        ink, marker, dash = MORE_LOOKS[name]
        return {"color": OKABE_ITO[ink], "marker": marker, "linestyle": dash}
    for i, names in enumerate(DOMAIN_LOOKS):
        if name in names:
            return {"color": OKABE_ITO[DOMAIN_INKS[i]], "marker": MARKERS[i], "linestyle": "-"}
    turn = DEALT.setdefault(name, len(DEALT))
    return {"color": OKABE_ITO[turn % len(OKABE_ITO)], "marker": MARKERS[turn % len(MARKERS)],
            "linestyle": DASHES[1 + turn % 3]}


def colour(name: str) -> str:
    """The colour of a method or a domain."""
    return look(name)["color"]


def class_colours(classes: int) -> list:
    """As many colours as classes: seaborn's "colorblind" up to ten, then steps of viridis."""
    import seaborn as sns
    return sns.color_palette("colorblind" if classes <= 10 else "viridis", classes)


def styled(draw):
    """Draw in the book's look; the figure is closed, so that a notebook shows it once: where it is returned."""
    @functools.wraps(draw)
    def drawn(*args, **kwargs):
        import matplotlib.pyplot as plt
        with plt.rc_context(RC):
            figure = draw(*args, **kwargs)
            figure.canvas.draw()        # text takes its size from the look now, not when the figure is shown
        plt.close(figure)
        return figure
    return drawn


def legend(figure, *axes, title=None, columns: int = 4):
    """One legend for the figure, below it: beside it there is no room on a phone. Long names take fewer columns."""
    handles = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if len(handles) > 1:
        fitting = max(1, 88 // max(map(len, handles)))
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(columns, len(handles), fitting),
                      title=title, handlelength=1.2 if columns > 4 else 1.8)


def inside(mean, half, low: float | None, high: float | None):
    """Lengths of interval bars `(2, N)` down and up from the means, which end at what is possible at all."""
    import numpy as np
    mean, half = np.asarray(mean, float), np.asarray(half, float)
    down = half if low is None else np.minimum(half, np.maximum(mean - low, 0))
    up = half if high is None else np.minimum(half, np.maximum(high - mean, 0))
    return np.stack([down, up])
