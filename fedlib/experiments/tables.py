"""A paper's table is data: TOML -> runs. `fedlib.experiments.filled` has what comes of their records."""
import functools
import re
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from fedlib.core import schema
from fedlib.core.errors import UserError, nearest, pick
from fedlib.engine.run import Run, plan
from fedlib.experiments.rules import SELECT
from fedlib.methods import own_code

PAPERS = resources.files("fedlib") / "papers"
CONSTANT, COMMON = "constant answer", "one constant answer for all"     # the rows of `Table.references`
IND = "ind"         # the column of a table of transfer that says how well the clients do at home
TUNED = "tuned.json"                # what `fedlib tune` has chosen, by table, block and profile, and row
WON = {"settings": dict, "protocol": dict, "accuracy": float, "given": float}
# A table of transfer chooses by ood, and by ind; further: factors of the rate, beyond the grid (`tune.reaching`).
CHOICE = WON | {"tries": int, "seeds": [int], "further?": [float], "lost?": int, "ind?": WON}
PROFILES = {"mini": "embedded data, minutes on a laptop: shows that all works, is not the paper's experiment",
            "lite": "the real data with a smaller net, less training or smaller images",
            "paper": "the paper's protocol in full"}

# What a table may want beside a record: the module of fedlib.probes that measures and stores it.
MEASURES = {"leakage": "leakage", "budget": "privacy", "attack": "inversion", "cams": "grad_cam"}

# What a paper's file holds, as `schema.check` reads it; settings are checked where runs are planned.
VALUES = {"settings?": dict, "at?": {str: dict}}
ROW = VALUES | {"name": str, "method?": str, "printed?": str, "profiles?": [str], "when?": str, "tuned?": bool,
                "aside?": bool, "data?": dict, "net?": dict, "net_at?": {str: dict}, "protocol?": dict,
                "protocol_at?": {str: dict}}
HOW = {"data": dict, "net": dict, "protocol": dict}
CHANGES = {f"{part}?": dict for part in HOW} | {"seeds?": [int]}
PAPER = {"paper?": dict, "code?": [str], "methods?": {str: VALUES},
         "blocks": {str: {"title": str, "columns": {str: str}, "printed?": str, "claims_of?": str}
                    | {f"{p}?": HOW | {"seeds?": [int]} for p in PROFILES}},
         "tables": {str: {"title": str, "blocks": [str], "rows?": [ROW], "rows_of?": str, "seeds": [int], "select": str,
                          "measure?": str, "question?": str, "page?": str, "columns?": {str: str}, "data?": {str: dict},
                          "changes?": {str: CHANGES}, "shows?": {str: [str]}, "leave_one_out?": bool, "transfer?": bool,
                          "rates_only?": bool}},
         "claims?": [{k: str for k in ("id", "source", "says", "table", "block", "setting", "better", "note?")}
                     | {"than": [str], "rank?": int, "beyond?": bool, "margin?": float}]}

PRINTED = ["table", "dataset", "setting", "method", "metric", "value"]      # columns of a paper's CSV

class Planned(NamedTuple):
    """One run of a table: the row and block it belongs to.

    unseen: the domain that a leave-one-out run leaves out. What is wanted beside the record: features, of these
    domains; measure, one of MEASURES. table, profile: where it is planned.
    """
    row: str
    block: str
    seed: int
    run: Run
    unseen: str = ""
    features: tuple = ()
    measure: str = ""
    table: str = ""
    profile: str = ""

    def files(self, results: Path) -> list[Path]:
        """The record, and what is wanted beside it."""
        beside = (["features"] if self.features else []) + ([self.measure] if self.measure else [])
        return [self.run.path(results), *(self.run.beside(results, k) for k in beside)]

    def done(self, results: Path) -> bool:
        """Is everything there?"""
        return all(file.exists() for file in self.files(results))


@dataclass(frozen=True)
class Table:
    """A printed table: its rows (methods), its blocks (groups of columns), its seeds and rule of selection.

    data: what a table changes in the data of its blocks, by block. leave_one_out: each column is a training of its own,
    without the column's domain, tested on it. methods: settings of the paper's methods in all its tables. shows: by
    block, the domains whose features a figure draws. measure: what is measured beside the record. transfer: the columns
    are what `fedlib.engine.evaluate` measures, and the round, instead of domains. question: that it answers. page:
    the notebook that shows it. rates_only: it is about a weight, so that tries change the rate alone.
    """
    id: str
    title: str
    blocks: dict
    rows: list
    seeds: list
    select: str
    printed: pd.DataFrame
    claims: list
    data: dict
    leave_one_out: bool
    methods: dict
    shows: dict
    measure: str
    transfer: bool
    question: str = ""
    page: str = ""
    rates_only: bool = False
    about: dict = field(default_factory=dict)       # the paper, as its file has it

    def runs(self, profile: str, seeds=None) -> list[Planned]:
        """The runs that fill the table. Rows of other profiles have none."""
        pick("profile", profile, PROFILES)
        return [Planned(row["name"], name, seed, self.plan(row, name, profile, seed, unseen), unseen,
                        tuple(self.shows.get(self.printed_as(name), ())), self.measure, self.id, profile)
                for name, block in self.blocks.items() if profile in block
                for seed in (self.drawn(name, profile) if seeds is None else seeds)
                for row in self.rows
                if profile in row.get("profiles", PROFILES)
                and ("chosen" not in row or f"{name}.{profile}" in row["chosen"])
                for unseen in (block["columns"] if self.leave_one_out else [""])]

    def drawn(self, block: str, profile: str) -> list[int]:
        """The seeds of a block: its own at this profile, or the table's."""
        return self.blocks[block][profile].get("seeds", self.seeds)

    def halves(self, profile: str, seeds=None) -> list[Planned]:
        """The runs whose rate falls to nothing, in half the rounds: what the other half adds says if more would help.

        Such a curve is flat at its end whatever was learned, since nothing moves any more.
        """
        return [p._replace(run=replace(p.run, protocol=replace(p.run.protocol, rounds=p.run.protocol.rounds // 2)),
                           features=(), measure="")
                for p in self.runs(profile, seeds) if p.run.protocol.warmup and p.run.protocol.rounds > 1]

    def references(self, profile: str, seeds=None) -> list[Planned]:
        """The runs of the constant answer on each block's data: what a row must be above to have learned.

        Where clients hold different classes, each one's own answer is out of reach for a row with one model for all:
        there it stands beside one answer for all.
        """
        made = []
        for name, block in self.blocks.items():
            how = block.get(profile, {})
            given = how.get("data", {}) | self.data.get(self.printed_as(name), {})
            data = {k: v for k, v in given.items() if k not in ("encoder", "head")}
            net = {"net": "fasttext"} if how.get("net", {}).get("net") == "fasttext" else {"net": "linear"}
            protocol = {"rounds": 1} | {k: v for k, v in how.get("protocol", {}).items() if k in ("evaluate", "cross")}
            for seed in (self.drawn(name, profile) if seeds is None else seeds) if how else ():
                for unseen in block["columns"] if self.leave_one_out else [""]:
                    for row in (CONSTANT, COMMON) if data.keys() & {"dirichlet", "pathological"} else (CONSTANT,):
                        run = plan("Constant", {"common": row == COMMON},
                                   data | ({"unseen": [unseen]} if unseen else {}), net, protocol, seed)
                        made.append(Planned(row, name, seed, run, unseen, (), "", self.id, profile))
        return made

    def tuned(self, row: str, profile: str, block: str, setting: str) -> bool:
        """Was the row's rate chosen on validation data, for this column, or is this the paper's own experiment?"""
        own = next(r for r in self.rows if r["name"] == row)
        other = is_tuned(row) and self.tuned_form(given_name(row), profile, block, setting) != row
        return profile == "paper" or own.get("tuned", False) and not other

    def headed(self, profile: str) -> list[str]:
        """The blocks that answer for themselves: those that are no variant of another, and of these the ones in which
        rows were tuned."""
        return [b for b, content in self.blocks.items() if "printed" not in content
                or any(f"{b}.{profile}" in r.get("chosen", {}) for r in self.rows)]

    def chosen_by(self, row: str, profile: str, block: str) -> list:
        """[tries, *seeds] behind the choice of a tuned row; [] of another."""
        chosen = self.choice(row, profile, block) if is_tuned(row) else {}
        return [chosen["tries"], *chosen["seeds"]] if "tries" in chosen else []

    def choice(self, row: str, profile: str, block: str) -> dict:
        """What was chosen for a row, by its own name or that of a tuned form; {}: nothing."""
        name = row if is_tuned(row) else tuned_name(row)
        return next((r["chosen"].get(f"{block}.{profile}", {}) for r in self.rows if r["name"] == name), {})

    def tuned_form(self, row: str, profile: str, block: str, setting: str = "") -> str:
        """The name of a row's tuned form for a column: ind has one of its own where it chooses another try than ood."""
        own = {r["name"]: r["chosen"] for r in self.rows if "chosen" in r}
        for_ind = tuned_name(row, IND)
        return for_ind if setting == IND and f"{block}.{profile}" in own.get(for_ind, {}) else tuned_name(row)

    def plan(self, row: dict, block: str, profile: str, seed: int, unseen: str = "", chosen: dict | None = None) -> Run:
        """One run: the method's settings, at this block, at this profile, at both ("pacs.lite"); then the row's alike.

        chosen: {"settings", "protocol", "data"} that come last; a tuned row has its own. A row may change the block's
        data, net and protocol, and with `net_at` and `protocol_at` those of one profile, or of a block at it.
        """
        how, method, printed = self.blocks[block][profile], row.get("method", row["name"]), self.printed_as(block)
        values, places = {}, (printed, profile, f"{printed}.{profile}")
        for given in (self.methods.get(method, {}), row):
            for some in (given.get("settings", {}), *(given.get("at", {}).get(k, {}) for k in places)):
                values |= some
        data = how["data"] | self.data.get(printed, {}) | row.get("data", {}) | ({"unseen": [unseen]} if unseen else {})
        chosen = chosen or row.get("chosen", {}).get(f"{block}.{profile}", {})
        net, protocol = (how[part] | row.get(part, {}) for part in ("net", "protocol"))
        for place in places[1:]:
            net |= row.get("net_at", {}).get(place, {})
            protocol |= row.get("protocol_at", {}).get(place, {})
        return plan(method, values | chosen.get("settings", {}), data | chosen.get("data", {}), net,
                    protocol | chosen.get("protocol", {}), seed)

    def printed_row(self, row: str) -> str:
        """The paper's row whose numbers stand beside this one: a variant of a method has those of the method."""
        return next(r.get("printed", row) for r in self.rows if r["name"] == row)

    def settings(self, block: str) -> list[str]:
        """The columns of a block: domains and their mean, or measures of transfer."""
        return [*self.blocks[block]["columns"], *([] if self.transfer else ["avg"])]

    def mean_column(self, block: str) -> str:
        """The column of a row's mean over domains; of transfer ood as it is printed, which the paper's equation is not.
        """
        return next(c for c in ("ood_printed", "ood") if c in self.settings(block)) if self.transfer else "avg"

    def printed_as(self, block: str) -> str:
        """The paper's name of a block: a variant of the data stands beside the same printed numbers."""
        return self.blocks[block].get("printed", block)


def papers() -> dict[str, dict]:
    """Every paper's TOML, by id. UserError: one of them is something else."""
    return {f.name[:-5]: paper(f) for f in sorted(PAPERS.iterdir(), key=lambda f: f.name) if f.name.endswith(".toml")}


def paper(path) -> dict:
    """One paper's TOML. UserError: it is not what PAPER says, or names a row twice or a block that is not there."""
    try:
        return checked(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} does not describe a paper's tables ({error})") from error


@functools.lru_cache        # of a text, not of a file: a changed one is parsed again
def checked(text: str) -> dict:
    """A paper's TOML as plain data, for reading only. ValueError: it is something else."""
    content = schema.check(schema.toml(text), PAPER)
    _all_known(content, PAPER)
    for name, table in content["tables"].items():
        if ("rows" in table) == ("rows_of" in table):
            raise ValueError(f"{name} needs rows or rows_of, and only one of them")
        if "rows_of" in table:          # another table's: where their blocks are the same, so are their runs
            table["rows"] = content["tables"].get(table["rows_of"], {}).get("rows", [])
        rows = [r["name"] for r in table["rows"]]
        if not rows:
            raise ValueError(f"{name} has no rows")
        if len(rows) > len(set(rows)):
            raise ValueError(f"two rows of {name} have one name")
        if taken := [r for r in rows if is_tuned(r)]:
            raise ValueError(f"the row '{taken[0]}' of {name} has the name of a tuned form")
        places = {f"{b}.{p}" for b in table["blocks"] for p in PROFILES if p in content["blocks"].get(b, {})}
        if unknown := set(table.get("changes", {})) - places:
            raise ValueError(f"{name} changes '{min(unknown)}', which it does not have")
        if absent := set(table["blocks"]) - set(content["blocks"]):
            raise ValueError(f"{name} has a block '{min(absent)}' that is not there")
    return content


def _all_known(value, form, at: str = "it"):
    """ValueError: a name that the form does not have. A misspelt setting would leave a row that is not what it says."""
    if isinstance(form, list):
        for v in value:
            _all_known(v, form[0], at)
    elif isinstance(form, dict) and str in form:
        for k, v in value.items():
            _all_known(v, form[str], f"{at}.{k}")
    elif isinstance(form, dict):
        known = {k.removesuffix("?"): kind for k, kind in form.items()}
        for k, v in value.items():
            if k not in known:
                raise ValueError(f"{at} has '{k}', which nothing reads{nearest(k, known)}")
            _all_known(v, known[k], f"{at}.{k}")


def tuned_file(ident: str) -> Path:
    """Where the choices of `fedlib tune` lie: of a paper's table in the package, of one's own beside its file."""
    own = Path(ident).parent
    return own.with_suffix(".tuned.json") if own.suffix == ".toml" else Path(str(PAPERS)) / TUNED


def tuned_settings(path: Path | None = None) -> dict:
    """{table: {"block.profile": {row: CHOICE}}} that were chosen, for reading only; UserError: the file holds something
    else.
    """
    path = path or Path(str(PAPERS)) / TUNED
    try:
        return checked_choices(path.read_text()) if path.is_file() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} does not say what was chosen ({error})") from error


@functools.lru_cache(8)
def checked_choices(text: str) -> dict:
    """What `tuned_settings` gives. ValueError: it is something else."""
    return schema.check(schema.parsed(text), {str: {str: {str: CHOICE}}})


def tuned_rows(rows: list[dict], chosen: dict) -> list[dict]:
    """"FedAvg, tuned", ...: the rows that have chosen settings, with them; "FedAvg, tuned for ind" where ind chose
    others.
    """
    made = []
    for row in rows:
        mine = {place: of[row["name"]] for place, of in chosen.items() if row["name"] in of}
        other = {place: {k: v for k, v in won.items() if k != IND} | won[IND] for place, won in mine.items()
                 if IND in won and any(won[IND][k] != won[k] for k in ("settings", "protocol"))}
        made += [row | {"name": name, "method": row.get("method", row["name"]), "tuned": True,
                        "printed": row.get("printed", row["name"]), "chosen": places}
                 for name, places in ((tuned_name(row["name"]), mine), (tuned_name(row["name"], IND), other)) if places]
    return made


def tuned_name(row: str, setting: str = "") -> str:
    """The name of a row's tuned form; of that for one column: "FedAvg, tuned for ind"."""
    return f"{row}, tuned" + f" for {setting}" * bool(setting)


def given_name(row: str) -> str:
    """The name of the row as it is given."""
    return row.removesuffix(tuned_name("", IND)).removesuffix(tuned_name(""))


def is_tuned(row: str) -> bool:
    """Is it the name of a tuned form?"""
    return given_name(row) != row


def idents() -> list[str]:
    """All tables, as paper/table."""
    return [f"{paper}/{table}" for paper, content in papers().items() for table in content["tables"]]


def load_table(ident: "str | Table") -> Table:
    """The table "paper/table", or "FILE.toml/table" of a file of one's own; a Table as it is. UserError with the
    nearest name when there is none.

    A file is as those of the papers are. `code` names Python files beside it that register methods and datasets; in
    FILE.csv may lie printed numbers.
    """
    if isinstance(ident, Table):
        return ident
    paper_id, _, name = ident.rpartition("/")
    if paper_id.endswith(".toml"):
        content, typed = paper(Path(paper_id)), Path(paper_id).with_suffix(".csv")
        pick(f"table of {paper_id}", name, content["tables"])
        for file in content.get("code", []):
            own_code.load(Path(paper_id).parent / file)
    else:
        pick("table", ident, idents())
        content, typed = papers()[paper_id], PAPERS / f"{paper_id}.csv"
    table = content["tables"][name]
    printed = pd.read_csv(typed) if typed.is_file() else pd.DataFrame(columns=PRINTED)
    printed = printed[printed.metric.isin(["accuracy", *(["rounds"] if table.get("transfer") else [])])]
    claims = [c for c in content.get("claims", []) if c["table"] == name]
    claims += [asked_of(b, content["blocks"][b]["title"], c) for b in table["blocks"] for c in claims
               if c["block"] == content["blocks"][b].get("claims_of")]
    columns = {"columns": table["columns"]} if "columns" in table else {}
    blocks = {b: content["blocks"][b] | columns for b in table["blocks"]}
    for place, parts in table.get("changes", {}).items():
        block, profile = place.rsplit(".", 1)
        how = blocks[block][profile]
        changed = {k: v if k == "seeds" else how[k] | v for k, v in parts.items()}
        blocks[block] |= {profile: how | changed}
    return Table(ident, table["title"], blocks,
                 [*table["rows"], *tuned_rows(table["rows"], tuned_settings(tuned_file(ident)).get(ident, {}))],
                 table["seeds"], pick("selection", table["select"], SELECT), printed[printed.table == name], claims,
                 table.get("data", {}), table.get("leave_one_out", False), content.get("methods", {}),
                 table.get("shows", {}), pick("measure", table.get("measure", ""), ["", *MEASURES]),
                 table.get("transfer", False), table.get("question", ""),
                 table.get("page", ""), table.get("rates_only", False), content.get("paper", {}))


def asked_of(block: str, title: str, claim: dict) -> dict:
    """A claim about another block (`claims_of`), asked of this one, which nothing printed stands beside: who is ahead,
    not by how much.
    """
    size = ", the direction alone" * bool(re.search(r"\d points", claim["says"]))
    named = claim["block"].replace("_", "[-_]")
    return {k: v for k, v in claim.items() if k not in ("margin", "note")} | {
        "id": re.sub(f"-{named}-", f"-{block}-", claim["id"]), "block": block,
        "says": f"{claim['says']} Asked of: {title}{size}."}


# the command's list

def listing(results: Path) -> list[dict]:
    """One entry for each table: its id and title, and how many of its runs have a record, by profile."""
    lines = []
    for table in map(load_table, idents()):
        planned = {p: [x.done(results) for x in table.runs(p)] for p in PROFILES}
        lines.append({"table": table.id, "title": table.title,
                      "records": {p: f"{sum(there)}/{len(there)}" for p, there in planned.items()}})
    return lines


def listing_text(lines: list[dict]) -> str:
    """The entries for a reader."""
    return "\n".join(f"{line['table']:<16} {line['title']:<40} "
                     + " ".join(f"{p}={n}" for p, n in line["records"].items()) for line in lines)
