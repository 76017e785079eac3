"""A table's page: the numbers that a notebook shows, each with one short call."""
import copy
import dataclasses
import functools
from functools import cached_property

import pandas as pd
from IPython.display import HTML, Markdown, display

from fedlib.experiments import batch, claims, evidence, filled, tables
from fedlib.experiments.results import absent
from fedlib.experiments.statistics import interval
from fedlib.report import answer, marks, plots, text, tuning


class Page:
    """What the records say about a table, by its name or a `tables.Table`, in the profile asked for and in mini beside
    it.

    Each block of columns is shown in one profile: the one asked for where it has the block, else mini. seeds: those
    that are read; () or None: the table's. mode = "run" trains what is missing first. when: tested "before" or "after"
    the local training of a round; "": as each row says.

    profiles   those shown               blocks   {block: its profile}         titles   {block: in words}
    rows       names of the rows         found    [(planned run, record)]      ran      blocks that have records
    cells      printed and ours          averages the same of the means        values   a line for each seed
    """

    def __init__(self, ident, profile: str = "lite", seeds=None, mode: str = "read", device: str = "auto",
                 when: str = ""):
        self.table, self.profile, self.seeds, self.when = tables.load_table(ident), profile, seeds or None, when
        self.results = batch.ensure(self.table, profile, self.seeds, mode, device)
        self.rows = [row["name"] for row in self.table.rows]
        self.titles = {b: content["title"] for b, content in self.table.blocks.items()}
        self.profiles = [p for p in dict.fromkeys([profile, "mini"]) if p == profile or self._found(p)]
        self.blocks = {b: p for p in self.profiles for b in filled.shown_blocks(self.table, p)}

    def at(self, when: str) -> "Page":
        """The same page with all rows tested "before" or "after" local training."""
        return self._but(when=when)

    def chosen(self, rule: str) -> "Page":
        """The same page by another rule of selection, as `rules.select` knows them."""
        return self._but(table=dataclasses.replace(self.table, select=rule))

    @cached_property
    def printed_protocol(self) -> "Page":
        """The same page with what was trained as the paper says."""
        return self._but(profile="paper", profiles=["paper"],
                         blocks=dict.fromkeys(filled.shown_blocks(self.table, "paper"), "paper"))

    def _but(self, **changed) -> "Page":
        """The same page with other attributes, and what follows from them."""
        other = copy.copy(self)
        for name in [k for k in vars(other) if isinstance(getattr(Page, k, None), cached_property)]:
            delattr(other, name)
        vars(other).update(changed)
        return other

    # numbers

    def _found(self, profile: str) -> list:
        return filled.records_of(self.table, profile, self.results, self.seeds, self.when)

    def _each(self, compute) -> pd.DataFrame:
        """compute(table, profile, results, ...) in each profile, of the blocks that the profile shows."""
        frames = [compute(self.table, p, self.results, seeds=self.seeds, when=self.when).assign(profile=p)
                  for p in self.profiles]
        every = text.joined(frames)
        return every[every.profile == every.block.map(self.blocks)]

    @cached_property
    def found(self) -> list:
        return [line for p in self.profiles for line in self._found(p) if self.blocks.get(line[0].block) == p]

    @cached_property
    def cells(self) -> pd.DataFrame:
        return self._each(filled.compare)

    @cached_property
    def averages(self) -> pd.DataFrame:
        return self.cells[self.cells.setting == "avg"]

    @cached_property
    def values(self) -> pd.DataFrame:
        return self._each(filled.sound)

    @cached_property
    def ran(self) -> list[str]:
        return [b for b in self.blocks if (self.cells[self.cells.block == b].n > 0).any()]

    @cached_property
    def printed(self) -> pd.DataFrame:
        """The paper's numbers: a line for each of its blocks and rows, a column for each setting."""
        return self.table.printed.pivot(index=["dataset", "method"], columns="setting", values="value")

    @property
    def printed_rows(self) -> list[str]:
        """The rows that the paper has."""
        return [row for row in self.rows if row in set(self.table.printed.method)]

    def clients(self, block: str) -> pd.DataFrame:
        """The clients of a block as a record counted them: id, domain, and training, validation and test samples."""
        record = next(record for planned, record in self.found if planned.block == block)
        return pd.DataFrame(record["made"]["data"]["clients"])

    def held(self) -> pd.DataFrame:
        """Training and test samples of each dataset and client's domain, as the records counted them."""
        lines = [(self.titles[b], c.domain, c.train, c.test) for b in self.ran for c in self.clients(b).itertuples()]
        return pd.DataFrame(lines, columns=["dataset", "domain", "train", "test"]).set_index(["dataset", "domain"])

    def by(self, columns: str = "row", setting: str = "avg", index: tuple = ("block", "seed")) -> pd.DataFrame:
        """Ours, a line for each block and seed, a column for each row; or with other columns and lines."""
        part = self.values if setting is None else self.values[self.values.setting == setting]
        return part.pivot(index=list(index), columns=columns, values="value")

    def gaps(self, row: str, others, setting: str = "avg") -> dict[str, dict[str, pd.Series]]:
        """{block: {other: row minus other, seed by seed}} where both have records."""
        wide, made = self.by(setting=setting), {}
        for block in [b for b in self.blocks if b in wide.index.unique("block") and row in wide]:
            pairs = {o: (wide.loc[block][row] - wide.loc[block][o]).dropna() for o in others if o in wide}
            made[block] = {o: gap for o, gap in pairs.items() if len(gap)}
        return {block: pairs for block, pairs in made.items() if pairs}

    def differences(self, row: str, others, setting: str = "avg") -> pd.DataFrame:
        """The same as a frame: block, dataset, row, other, mean, half of the 95 % interval, n."""
        lines = [(block, self.titles[block], row, other, *interval(gap), len(gap))
                 for block, pairs in self.gaps(row, others, setting).items() for other, gap in pairs.items()]
        return pd.DataFrame(lines, columns=["block", "dataset", "row", "other", "mean", "half", "n"])

    def by_domain(self, row: str, other: str) -> pd.DataFrame:
        """Row minus other in each domain and the mean, block by block: lines of `compared` whose rows are domains."""
        domains = {d: d for block in self.blocks for d in self.table.blocks[block]["columns"]} | {"mean": "avg"}
        found = text.joined(self.compared({name: (row, other)}, d) for name, d in domains.items())
        return found.sort_values("block", key=lambda block: block.map(list(self.blocks).index), kind="stable")

    def compared(self, pairs: dict[str, tuple[str, str]], setting: str = "avg", beside: "Page | None" = None):
        """Row minus other, {name: (row, other)}, printed and ours by seed, a line for each block and name: block,
        dataset, row, printed, mean, half, n, rounds.

        row: the name; half: of the 95 % interval; rounds: of both where they differ, for rounds make a difference too.
        Where nothing is printed and nothing ran there is no line, nor for a tuned row that was not run. beside: the
        table that has the other rows, where it is not this one.
        """
        lines, two = [], (self, beside or self)
        lasted = [{(p.block, p.row): p.run.protocol.rounds for p, _ in page.found} for page in two]
        ours = [page.by(setting=setting).reindex(columns=page.rows) for page in two]
        printed = [page.cells[page.cells.setting == setting].set_index(["block", "row"]).printed for page in two]
        for block in [b for b in self.blocks if b in two[1].blocks]:
            here = [wide[wide.index.get_level_values("block") == block] for wide in ours]
            for name, rows in pairs.items():
                theirs = [there.get((block, row), float("nan")) for there, row in zip(printed, rows, strict=True)]
                sample = (here[0][rows[0]] - here[1][rows[1]]).dropna()
                long = [known.get((block, row)) for known, row in zip(lasted, rows, strict=True)]
                lines.append((block, self.titles[block], name, theirs[0] - theirs[1], *interval(sample), len(sample),
                              "" if len(set(long)) == 1 or not len(sample) else f"{long[0]} and {long[1]}"))
        frame = pd.DataFrame(lines, columns=["block", "dataset", "row", "printed", "mean", "half", "n", "rounds"])
        given = ~frame.row.map(lambda name: any(map(tables.is_tuned, pairs[name])))
        return frame[frame.printed.notna() & given | (frame.n > 0)].reset_index(drop=True)

    def against(self, row: str) -> pd.DataFrame:
        """Every other row minus this one, of tuned rows minus its tuned form: lines of `compared`."""
        return self.compared({other: (other, mine) for other, mine in self._partners(row).items()})

    def ahead(self, row: str) -> pd.DataFrame:
        """This row minus every other, its tuned form minus tuned rows: lines of `compared`."""
        return self.compared({other: (mine, other) for other, mine in self._partners(row).items()})

    def _partners(self, row: str) -> dict[str, str]:
        """{other row: this one, or its tuned form where the other is tuned}."""
        tuned = tables.tuned_name(row)
        return {other: tuned if tables.is_tuned(other) and tuned in self.rows else row
                for other in self.rows if tables.given_name(other) != row}

    def orders(self) -> pd.DataFrame:
        """Printed and ours as orders of the rows, by dataset: Spearman's rank correlation, and the first of each."""
        both = self.averages.dropna(subset=["printed", "ours"])
        lines = {self.titles[block]: {
            "rows": len(part), "rank correlation": part.printed.corr(part.ours, method="spearman"),
            "first in the paper": part.row[part.printed.idxmax()], "first here": part.row[part.ours.idxmax()]}
            for block, part in both.groupby("block", sort=False) if len(part) > 2}
        return pd.DataFrame.from_dict(lines, orient="index")

    def settings(self, row: str) -> dict[str, dict]:
        """What a row sets of its method and protocol, and was chosen for a tuned one: {"": everywhere, "PACS, lite":
        there, ...}.
        """
        given = next(r for r in self.table.rows if r["name"] == row)
        own = self.table.methods.get(given.get("method", row), {})
        every = {"": own.get("settings", {}) | given.get("settings", {}) | given.get("protocol", {})}
        chosen = {place: c["settings"] | c["protocol"] for place, c in given.get("chosen", {}).items()}
        for at in (own.get("at", {}), given.get("at", {}), given.get("protocol_at", {}), chosen):
            for place, changed in at.items():
                block, _, only = place.partition(".")       # "pacs.lite": in this profile only
                if changed and (block in self.titles or block in tables.PROFILES):      # a block may have its name
                    name = block if block in tables.PROFILES else self.titles[block].removesuffix(" (not in the paper)")
                    name += f", {only}" * bool(only)
                    every[name] = every.get(name, {}) | changed
        return every

    @property
    def times(self) -> dict[str, str]:
        """{row: when the printed table tests it}, "before" or "after" local training."""
        return {row["name"]: row.get("when", "before") for row in self.table.rows}

    def settings_in_words(self, row: str) -> str:
        """'mu = 5; PACS: mu = 1'."""
        return "; ".join((f"{place}: " if place else "") + text.settings(values)
                         for place, values in self.settings(row).items())

    def between(self, block: str, other: str) -> pd.DataFrame:
        """Block `other` minus `block` as text, seed by seed: a line for each row, a column for each setting."""
        wide = self.by("block", None, ("row", "seed", "setting")).reindex(columns=[block, other]).dropna()
        gaps = (wide[other] - wide[block]).groupby(["row", "setting"]).agg(list).map(text.points).unstack()
        columns = self.table.blocks[block]["columns"] | {"avg": "Avg"}
        gaps = gaps.reindex([r for r in self.rows if r in gaps.index], columns=[c for c in columns if c in gaps])
        return gaps.rename(columns=columns).rename_axis(index=None, columns=None)

    def by_rule(self, *rules: str) -> pd.DataFrame:
        """The averages under several rules of selection, and what the last rule gains over the second."""
        made = {}
        for rule in rules:
            part = self._each(functools.partial(filled.compare, rule=rule))
            part = part[(part.setting == "avg") & (part.n > 0)].assign(dataset=lambda t: t.block.map(self.titles))
            made[rule] = part.rename(columns={"row": "method"}).set_index(["dataset", "method"]).ours
        frame = pd.DataFrame(made)
        return text.table(frame.assign(gain=frame[rules[-1]] - frame[rules[-2]]), "{:.2f}")

    def run(self, row: str, block: str, profile: str | None = None, seed: int | None = None):
        """The planned run of a row and block with a seed, else with the first; None where there is none."""
        seeds = (self.seeds or self.table.seeds)[:1] if seed is None else [seed]
        planned = self.table.runs(profile or self.blocks[block], seeds)
        return next((p.run for p in planned if (p.row, p.block) == (row, block)), None)

    # what a notebook shows

    def about(self, *others):
        """The answer in a box, of this table and of others on the page; then which profiles are shown."""
        display(answer.box(self, *others))
        held = {p: "; ".join(self.titles[b] for b in self.ran if self.blocks[b] == p) for p in self.profiles}
        lines = [f"profile **{p}** ({tables.PROFILES[p]}). Records of: {held[p] or 'nothing yet'}."
                 for p in self.profiles]
        return text.lines([*filter(None, [absent(self.results)]), *lines])

    def show_settings(self):
        """A line for each row: its settings, and when it is tested, where that is not the same for all."""
        frame = pd.DataFrame({"tested": self.times, "settings": {r: self.settings_in_words(r) for r in self.rows}})
        return text.table(frame if frame.tested.nunique() > 1 else frame[["settings"]], words=True)

    def show(self, *blocks: str, rows=None):
        """Printed above ours ± half of the 95 % interval, n seeds: a table for each block, of these rows or all.

        A block without records comes last and folded, with what is printed alone. Rows without any number are left out,
        and a variant of ours without records: its printed numbers stand with the block that it varies. "→ SVHN": nobody
        trained on it.
        """
        wanted = [b for b in blocks or self.blocks if b in self.blocks]
        for block in sorted(wanted, key=lambda b: b not in self.ran):
            if block in self.ran or "printed" not in self.table.blocks[block]:
                wide = filled.wide(self.table, self.cells, block, join="<br>")
                wide = wide.loc[[r for r in rows or self.rows if r in wide.index]]
                if block not in self.ran:
                    own = [r for r in wide.index if self.table.printed_row(r) == r]
                    wide = wide.loc[own].drop(columns="n").replace("<br>–$", "", regex=True)
                wide = wide[~wide.drop(columns="n", errors="ignore").isin(["–", "–<br>–"]).all(axis=1)]
                wide = marks.marked(self, wide, block) if block in self.ran else wide
                arrows = {c: f"→ {c}" for c in self.table.blocks[block]["columns"].values() if self.table.leave_one_out}
                made = text.table(wide.rename(columns=arrows))
                if block in self.ran:
                    text.titled(f"{self.titles[block]}, profile {self.blocks[block]}", made, marks.shows(self, block))
                elif len(wide):
                    display(HTML(text.fold(f"{self.titles[block]}: printed, and not run", made.to_html())))

    def show_each(self, content, empty: str = text.EMPTY):
        """What content(block) gives below the title of each block with records; nothing where that is None."""
        made = {block: content(block) for block in self.ran}
        for block in [b for b in made if made[b] is not None]:
            text.titled(self.titles[block], made[block])
        if all(one is None for one in made.values()):
            display(Markdown(empty))

    def show_averages(self, setting: str = "avg"):
        """The blocks' averages, or another of their settings, side by side: printed, ours, and ours in tuned form."""
        part = self.cells[self.cells.setting == setting]
        if part.empty:
            return Markdown(text.EMPTY)
        wide = filled.side_by_side(self.table, part, "<br>", setting)
        wide = wide.astype(object)      # a row of one column of strings takes no series
        for block, title in self.titles.items():
            if title in wide and part[part.block == block].printed.isna().all():
                wide[title] = wide[title].str.removeprefix("–<br>")     # nothing is printed for it
        for row in filter(tables.is_tuned, wide.index):
            given, ours = tables.given_name(row), wide.loc[row].str.rpartition("<br>")[2]
            wide.loc[given] += (f"<br>{row.removeprefix(f'{given}, ')} " + ours).where(~ours.isin(["", "–"]), "")
        return text.table(wide.loc[~wide.index.map(tables.is_tuned).astype(bool)])

    def differences_to_printed(self):
        """The averages with both numbers: printed, ours, half of the interval, n, difference."""
        part = self.averages.dropna(subset="difference").assign(dataset=lambda t: t.block.map(self.titles))
        part = part.rename(columns={"row": "method", "half": "±"}).set_index(["dataset", "method"])
        return text.table(part[["printed", "ours", "±", "n", "difference"]], "{:.2f}")

    def show_holdings(self):
        """Training images of the clients, as a record counted them when it was made."""
        def draw(found):
            planned, record = found[0]
            clients = pd.DataFrame(record["made"]["data"]["clients"])
            sizes = pd.DataFrame({"images": clients.train.values}, index=clients.domain + ", client " + clients.id)
            return plots.holdings(sizes, label=f"training images, {self.titles[planned.block]}")
        return text.or_empty(self.found, draw)

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """The mean over the domains after each round: block, method, round, mean, half of the 95 % interval."""
        return text.joined(filled.curves(self.table, p, self.results, self.seeds, self.when) for p in self.profiles)

    def few(self, rows=None, block: str | None = None) -> list[str]:
        """The rows that a figure has in colour: the paper's own, FedAvg and the best of its others, by mean rank over
        the blocks or in one; all of them where there are no more than four."""
        part = self.averages[(self.averages.n > 0) & self.averages.row.isin(list(rows or self.rows))]
        part = part if block is None else part[part.block == block]
        wide = part.pivot(index="row", columns="block", values="ours")
        wide = wide.reindex([row for row in self.rows if row in wide.index])
        if len(wide) <= 4:
            return list(wide.index)
        name = self.table.about.get("name", "")
        own = [*(answer.subject_of(self, b) for b in wide), *wide.index[wide.index.str.startswith(f"{name} (")][:1]]
        known = [row for row in own if row in wide.index][:1] + [row for row in ("FedAvg",) if row in wide.index]
        others = wide[[self.table.printed_row(r) == r and r.split(", ")[0] not in known for r in wide.index]]
        others = others if others.dropna().empty else others.dropna()
        places = others.rank(ascending=False).mean(axis=1).sort_values(kind="stable")
        return [*known, *places.index[:1]]

    def curves(self, rows=None, blocks=None):
        """The mean over the domains after each round, a panel for each block. rows: some, or {row: its name here}."""
        wanted = blocks or [b for b in self.blocks if "printed" not in self.table.blocks[b]]
        order, names = [*self.blocks, *(rows or self.rows)], rows if isinstance(rows, dict) else {}
        frame = self.rounds[self.rounds.block.isin(wanted) & self.rounds.method.isin(list(rows or self.rows))]
        frame = frame.sort_values(["block", "method"], key=lambda names: names.map(order.index), kind="stable")
        frame = frame.replace({"block": self.titles, "method": names})
        few = [names.get(row, row) for row in self.few(rows)]
        return text.or_empty(frame, lambda f: plots.curves(f, panel="block", few=few))

    def show_domains(self, names=None, rows=None):
        """Ours by domain: a figure for each block with records, of these rows or all, a few of them in colour.

        names: of the rows, as the legend has them.
        """
        for block in [b for b in self.ran if "printed" not in self.table.blocks[b]]:
            few = [(names or {}).get(row, row) for row in self.few(rows, block)]
            part = self.cells[(self.cells.block == block) & (self.cells.setting != "avg") & (self.cells.n > 0)]
            part = part[part.row.isin(list(rows or self.rows))]
            order = {"index": [r for r in rows or self.rows if r in set(part.row)],
                     "columns": list(self.table.blocks[block]["columns"])}
            ours, half = (part.pivot(index="row", columns="setting", values=v).reindex(**order).rename(names or {})
                          for v in ("ours", "half"))
            display(plots.domains(ours, half, few, f"accuracy (%), {self.titles[block]}"))
        if not self.ran:
            display(Markdown(text.EMPTY))

    @cached_property
    def evidence(self) -> pd.DataFrame:
        """What makes each row evidence: `fedlib.experiments.evidence.of_rows`."""
        return self._each(evidence.of_rows)

    def settling(self):
        """Where a row ends in half its rounds and in all, a panel for each block whose rate falls to nothing."""
        names = {"half": "half the rounds", "whole": "all rounds"}
        found = self._each(evidence.doubled).replace({"block": self.titles}).rename(columns=names)
        return text.or_empty(found, lambda f: plots.pairs(f, panel="block", names=tuple(names.values())))

    def judge(self, block: str, setting: str, better: str, than: list[str]) -> dict:
        """A claim of ours about the rows of a block, judged as the paper's are: `claims.judge_tuned`."""
        claim = {"block": block, "setting": setting, "better": better, "than": than}
        return claims.judge_tuned(claim, self.values, self.evidence, self.table, self.blocks[block])

    @cached_property
    def judged(self) -> pd.DataFrame:
        """The table's claims with their verdicts, each in the profile that shows its block, or the one asked for."""
        place = {c["id"]: self.blocks.get(c["block"], self.profile) for c in self.table.claims}
        frames = [claims.judge_claims(self.table, p, self.results, when=self.when).assign(profile=p)
                  for p in self.profiles]
        every = text.joined(frames)
        every = every[every.profile == every.id.map(place)].reset_index(drop=True)
        again = {p: claims.said_before(self.table, p, self.results) for p in self.profiles}
        for i, line in every.iterrows():
            if line.verdict != claims.NOT_RUN and line.id in again[line.profile]:
                every.loc[i, ["verdict", "reason"]] = again[line.profile][line.id]
        return every

    def show_claims(self, columns=("says", "verdict", "evidence", "reason", "note"), every: bool = True):
        """The claims with their verdicts, all or those that are decided, after the number of each verdict."""
        judged = self.judged
        part = judged if every else judged[judged.verdict != "not run"]
        display(judged.verdict.value_counts().rename("claims").to_frame(),
                text.table(part[list(columns)], words=True, index=False))

    def show_tuning(self, rows=None):
        """What tuning chose for each row, or for these, and what that changed, where there are tuned rows."""
        return tuning.show(self, rows)

    def made(self) -> pd.DataFrame:
        """How the numbers were made: protocol, code, hardware, data and cost of each block's records."""
        return text.joined(filled.provenance(self.table, p, self.results) for p in self.profiles)

    def provenance(self):
        """The distance from the paper's experiment; then how the numbers were made, a column for each block."""
        marks.show_distance(self)
        return text.or_empty(self.made(), lambda frame: frame.T)


def provenance(*pages: Page):
    """How the numbers of several tables were made: a line for each table and block."""
    frames = {page.table.title: page.made() for page in pages}
    frames = {title: frame for title, frame in frames.items() if len(frame)}
    return text.or_empty(frames, lambda found: pd.concat(found, names=["table"]))
