"""Methods in words, for the pages of the method zoo: taken from docstrings, fields, sources and real messages."""
import inspect
import re
import textwrap
import tomllib
import typing
from pathlib import Path

from fedlib.core import settings
from fedlib.core.errors import UserError
from fedlib.experiments.results import results_folder
from fedlib.methods import METHODS, FedAvg

COMPARED = Path(__file__).parent / "compared.toml"
OTHERS = ("FedAvg", "Local")             # what the zoo's methods are measured against
NET = {"net": "cnn4", "width": 16}       # of the table of costs: the mini tables' net on mini_digits


def kind(name: str) -> str:
    """The kind of change: the file below fedlib/methods that holds the method."""
    return METHODS[name].__module__.rsplit(".", 1)[-1].replace("base", "averaging")


def of_kind(wanted: str) -> list[str]:
    """The methods of a kind, in the order of their file."""
    return [name for name in METHODS if kind(name) == wanted]


def used_by(name: str) -> list[str]:
    """The papers that compare with a method."""
    return [paper for paper, rows in tomllib.loads(COMPARED.read_text()).items() if name in rows]


def costs(names: list[str], clients: int = 10, net: dict = NET, shape: tuple = (3, 28, 28)):
    """A DataFrame, one line per method: kilobytes down and up per client and round, passes per sample and epoch.

    Counted from real messages and real passes on a net with ten classes and samples of a shape, images of 28 px.
    """
    import pandas as pd

    from fedlib.models.nets import Arch
    from fedlib.probes.cost import cost
    lines = {name: cost(name, Arch(**net), 10, shape, clients) for name in names}
    frame = pd.DataFrame(lines).T
    return pd.DataFrame({"down (kB)": frame.bytes_down / 1000, "up (kB)": frame.bytes_up / 1000,
                         "forward passes": frame.forward, "backward passes": frame.backward,
                         "compared with in": [", ".join(used_by(n)) or "–" for n in names]}, index=names)


def against(names: list[str], results: Path | None = None):
    """What methods are worth in the zoo's two settings, from its records: a DataFrame, one line per setting and method.

    setting, method, seeds, accuracy (%), half; for FedAvg and Local: the difference in points, paired by seed, and half
    of its 95 % interval. Methods of `names` that the zoo's table has, after FedAvg and Local; nan where nothing ran, or
    where a seed diverged on the way.
    results: where the records lie, unless in the usual folder.
    """
    import pandas as pd

    from fedlib.experiments import filled, tables
    from fedlib.experiments.statistics import interval
    table, results = tables.load_table("zoo/methods"), results or results_folder()
    rows = ["FedAvg", "Local", *[r["name"] for r in table.rows if r["name"] in set(names) - {"FedAvg", "Local"}]]
    found = filled.values(table, "mini", results)
    found = found[found.setting == "avg"].pivot(index=["block", "row"], columns="seed", values="value")
    found = found.reindex(pd.MultiIndex.from_product([table.blocks, rows]))
    seeds, lost = found.notna().sum(axis=1), filled.fallen(table, "mini", results)
    found[found.index.isin(lost)] = float("nan")
    lines = []
    for (block, row), sample in found.iterrows():
        line = {"setting": table.blocks[block]["title"], "method": row, "seeds": int(seeds[block, row])}
        line |= dict(zip(("accuracy", "half"), interval(sample.dropna())))
        for other in OTHERS:
            line |= dict(zip((other, f"{other} half"), interval((sample - found.loc[block, other]).dropna())))
        lines.append(line)
    return pd.DataFrame(lines)


def written(gaps):
    """The frame of `against` as a table to read."""
    import pandas as pd

    def text(line, key, half, form):
        value, half = line[key], line[half]
        if value != value:
            return "diverged" if line["seeds"] else "not run"
        return f"{value:{form}}" + (f" ± {half:.1f}" if half == half else "")
    lines = [{"setting": g["setting"], "method": g["method"], "accuracy": text(g, "accuracy", "half", ".1f")}
             | {f"minus {o}": "–" if g["method"] == o else text(g, o, f"{o} half", "+.1f") for o in OTHERS}
             | {"seeds": g["seeds"]} for g in gaps.to_dict("records")]
    return pd.DataFrame(lines)


def standing(gaps) -> str:
    """In words, by setting: which methods are above FedAvg and Local on average; bold if outside of both intervals."""
    groups = {"above both": (1, 1), "above FedAvg only": (1, 0), "above Local only": (0, 1), "above neither": (0, 0)}
    lines = []
    for setting, part in gaps.groupby("setting", sort=False):
        members = {said: [] for said in groups}
        for g in part[~part.method.isin(OTHERS) & part.accuracy.notna()].to_dict("records"):
            group = next(k for k, v in groups.items() if v == tuple(g[o] > 0 for o in OTHERS))
            sure = all(abs(g[o]) > g[f"{o} half"] for o in OTHERS)
            members[group].append(f"**{g['method']}**" if sure else g["method"])
        said = "; ".join(f"{k}: {', '.join(m)}" for k, m in members.items() if m) or "not run"
        lines.append(f"- *{setting}*: {said}.")
    return "On average over the seeds (bold: outside of both intervals)\n\n" + "\n".join(lines)


def doubts(names: list[str], results: Path | None = None) -> str:
    """Why these differences are no evidence, in words, by setting; "" where nothing ran or nothing speaks against."""
    from fedlib.experiments import evidence, tables
    table = tables.load_table("zoo/methods")
    rows = evidence.of_rows(table, "mini", results or results_folder())
    rows = rows[(rows.setting == "avg") & rows.row.isin({*names, *OTHERS})]
    found = {block: "; ".join(evidence.faults(part.to_dict("records"))) for block, part in rows.groupby("block")}
    lines = [f"- *{content['title']}*: {found[block]}." for block, content in table.blocks.items() if found.get(block)]
    return "\n\nWhat speaks against these rows as evidence:\n\n" + "\n".join(lines) if lines else ""


def otherwise(names: list[str]) -> str:
    """What the rows of `against` have that is no default, as costs and entries list them; and who is no row."""
    from fedlib.experiments import tables
    rows = {r["name"]: r.get("settings", {}) for r in tables.load_table("zoo/methods").rows}
    changed = "; ".join(f"{n} {_words(rows[n])}" for n in names if rows.get(n))
    absent = ", ".join(n for n in names if n not in rows and n != "Constant")
    lines = [f"Costs and settings on this page are the defaults. In this table: {changed}."] * bool(changed)
    lines += [f"Not run in these two settings: {absent}. The [leaderboard](../across/leaderboard.html) has images of "
              "four sets, [Every method, tuned alike](../across/features.html) three of them behind an "
              "encoder."] * bool(absent)
    return "".join(f"\n\n{line}" for line in lines)


def entries(names: list[str]) -> str:
    """The entries of some methods, one after the other."""
    return "\n\n".join(map(entry, names))


def entry(name: str) -> str:
    """A method as Markdown: its docstring, its settings, what it leaves alone, its source."""
    cls = METHODS[name]
    first, _, rest = inspect.getdoc(cls).partition("\n\n")
    lines = [f"### {name}", f"```text\n{textwrap.fill(first, 76)}\n```", _escaped(rest)]
    values = settings.fields(cls)
    if values:
        lines.append("Settings: " + ", ".join(f"`{k} = {default!r}`" for k, (_, default) in values.items()) + ".")
    if cls.presets:
        said = {name: ", ".join(f"`{k} = {v!r}`" for k, v in given.items()) for name, given in cls.presets.items()}
        lines.append("Presets: " + "; ".join(f"`{name}`: {text or 'defaults'}" for name, text in said.items()) + ".")
    lines.append(f"Limit: {limit(cls.limit)}.")
    return "\n\n".join(filter(None, [*lines, f"```python\n{source(cls)}\n```"]))


def choices(name: str):
    """A method's settings as a DataFrame: setting, default, and the alternatives that there are."""
    import pandas as pd

    def others(kind, default):
        if typing.get_origin(kind) is typing.Literal:
            return ", ".join(str(value) for value in typing.get_args(kind) if value != default)
        return str(not default) if kind is bool else "a number"

    lines = [(k, str(default), others(kind, default)) for k, (kind, default) in settings.fields(METHODS[name]).items()]
    return pd.DataFrame(lines, columns=["setting", "default", "alternatives"])


def limit(given) -> str:
    """A method's limit in words."""
    if isinstance(given, str):
        return _escaped(given)
    values, other, *net = given
    how = "with " + ", ".join(f"`{k} = {v!r}`" for k, v in values.items()) if values else "as it is"
    return f"{how} it equals {other} exactly" + "".join(f" on the net `{n}`" for n in net)


def source(cls) -> str:
    """The source of a method without its docstring: the changed lines."""
    lines = inspect.getsource(cls).splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith('"""'))
    end = next(i for i in range(start, len(lines)) if lines[i].rstrip().endswith('"""')
               and (i > start or lines[i].count('"""') == 2))
    return "\n".join(lines[:start] + lines[end + 1:])


def _escaped(text: str) -> str:
    """Plain text as Markdown shows it: outside of backticks the signs of formulas are no markup."""
    pieces = text.split("`")
    for i in range(0, len(pieces), 2):
        pieces[i] = re.sub(r"([\\<>*\[\]])", r"\\\1", pieces[i])
    return "`".join(pieces)


# the command's list

def listing() -> list[dict]:
    """One entry for each method: name, kind of change, its own settings with defaults, limit and summary."""
    shared = settings.fields(FedAvg)
    return [{"name": name, "kind": kind(name),
             "settings": {k: v[1] for k, v in settings.fields(cls).items() if cls is FedAvg or v != shared.get(k)},
             "limit": _limit_words(cls.limit), "summary": cls.__doc__.strip().splitlines()[0]}
            for name, cls in METHODS.items()]


def add_costs(lines: list[dict], net: dict, classes: int, shape: tuple, clients: int):
    """Bytes and passes of a round with a net, by `fedlib.probes.cost`, to each entry; "no_cost": why there are none."""
    from tqdm import tqdm

    from fedlib.models.nets import Arch, build
    from fedlib.probes.cost import cost
    arch = settings.make(Arch, net, "the net")
    build(arch, classes, shape, 0)      # a mistake in the net is said once
    for line in tqdm(lines, desc="Counting", disable=None, leave=False):
        try:
            line |= cost(line["name"], arch, classes, shape, clients)
        except UserError as error:      # a method for other data
            line["no_cost"] = str(error)


def listing_text(lines: list[dict]) -> str:
    """The entries for a reader."""
    parts = []
    for line in lines:
        part = [f"{line['name']:<10} {line['kind']:<11} {_words(line['settings']) or '-'}", line["summary"],
                f"limit: {line['limit']}"]
        if "no_cost" in line:
            part.append(f"not counted: {line['no_cost']}")
        elif "forward" in line:
            part.append(f"a round of a client: {line['bytes_down'] / 1e6:.3g} MB down, {line['bytes_up'] / 1e6:.3g} MB "
                        f"up, {line['forward']:.3g} forward and {line['backward']:.3g} backward passes per sample and "
                        "epoch")
        parts.append(f"\n{'':<11}".join(part) + "\n")
    return "\n".join(parts)


def _limit_words(limit) -> str:
    if isinstance(limit, str):
        return limit
    values, other, *net = limit
    return f"{_words(values) or 'as it is'} equals {other}" + "".join(f" on {n}" for n in net)


def _words(values: dict) -> str:
    return " ".join(f"{k}={v}" for k, v in values.items())
