"""The datasets in words: what there is, how it is split and divided, where it is from."""
import pandas as pd

from fedlib.datasets import prepare
from fedlib.datasets.registry import DATASETS, built_in, reader_of
from fedlib.datasets.splits import RULES
from fedlib.experiments import named_partitions, tables


def sets() -> pd.DataFrame:
    """A line for each dataset: what it is, how large, which papers' partitions are of it, how its files are had."""
    lines = []
    for name in DATASETS:
        reader = reader_of(name)
        lines.append({"name": name, "what": reader.TITLE, "domains": len(reader.DOMAINS),
                      "classes": len(reader.CLASSES), "samples": samples(reader),
                      "size": f"{reader.SIZES[0]} {prepare.UNITS[getattr(reader, 'KIND', 'images')]}",
                      "used by": ", ".join(papers(name)) or "–",
                      "files": "built in" if built_in(name) else "downloads" if reader.FILES else "by hand"})
    return pd.DataFrame(lines)


def samples(reader) -> str:
    """How many samples are published; "in test" where only those are divided from others."""
    counts = getattr(reader, "PUBLISHED", {})
    tests = counts and all(key.endswith(" test") for key in counts)
    return f"{sum(counts.values()):,}{' in test' if tests else ''}" if counts else "–"


def papers(dataset: str) -> list[str]:
    """The papers whose partitions are of a dataset."""
    owners = [n.name.split("_")[0] for n in named_partitions.all_named().values() if n.data.name == dataset]
    about = tables.papers()
    return [about[p]["paper"]["name"] for p in dict.fromkeys(owners) if p in about]


def domains(*names: str) -> pd.DataFrame:
    """Published counts of the domains of some datasets: to train, to test, or all where the publisher has no split."""
    lines = []
    for name in names:
        reader = reader_of(name)
        for domain in reader.DOMAINS:
            found = {"train": reader.PUBLISHED.get(f"{domain} train"), "test": reader.PUBLISHED.get(f"{domain} test"),
                     "all": reader.PUBLISHED.get(domain)}
            lines.append({"set": name, "domain": domain} | {k: f"{v:,}" if v else "" for k, v in found.items()})
    return pd.DataFrame(lines)


def rules() -> pd.DataFrame:
    """A line for each rule of splitting: what it does, where it is from, for which sets."""
    return pd.DataFrame([{"split": name, "what it does": r.says, "from": r.source,
                          "for": ", ".join(r.sets) or "any set"} for name, r in RULES.items()])


def overlaps() -> pd.DataFrame:
    """Of each stored partition: clients' test samples, how many of these some client trains on, how many of the others
    equal a sample that one trains on, and the share of both."""
    lines = [(name, *(sum(c[k] for c in found["clients"]) for k in ("test", "seen", "copied")))
             for name, found in named_partitions.stored().items()]
    held = ["of these trained on", "copies of one trained on"]
    frame = pd.DataFrame(lines, columns=["partition", "test samples", *held])
    share = 100 * frame[held].sum(axis=1) / frame["test samples"]
    return frame.assign(share=share.map("{:.1f} %".format))


def partitions() -> pd.DataFrame:
    """A line for each named partition: its name above the digest of what is stored, what it is, where it is from."""
    stored = named_partitions.stored()
    return pd.DataFrame([{"partition": f"<code>{n.name}</code><br>{stored.get(n.name, {}).get('digest', '–')}",
                          "what": n.says, "from": f"{n.source} ({n.status})"}
                         for n in named_partitions.all_named().values()])


def terms(name: str) -> str:
    """A dataset's citation, licence, command and sources."""
    reader = reader_of(name)
    by_hand = not (built_in(name) or reader.FILES)
    hosts = dict.fromkeys(url.split("/")[2] for f in getattr(reader, "FILES", ()) for url in f.urls)
    return " ".join(filter(None, [
        f"**{name}** — {reader.TITLE}. {reader.ABOUT['citation']}.", f"Licence: {reader.ABOUT['licence']}.",
        f"`fedlib data {name}{' --from DIR' * by_hand}`", f"Sources: {', '.join(hosts)}." if hosts else "",
        getattr(reader, "HOW", "")]))
