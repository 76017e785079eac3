"""What stands with a table's numbers: the records behind each, whether a row is evidence, what the seeds can show."""
import shlex

import pandas as pd
from IPython.display import Markdown

from fedlib.datasets.registry import reader_of
from fedlib.experiments import distance, evidence, filled, power, tables
from fedlib.report import text

WORDS = {True: "yes", False: "no", None: "–"}


def marked(page, wide: pd.DataFrame, block: str) -> pd.DataFrame:
    """A block's table of text with the marks of each row, and the rows of the constant answer and of chance below.

    The number that stands for a row opens the records behind the row; the highest of a column is bold, the next
    underlined.
    """
    columns = {s: c for s, c in (page.table.blocks[block]["columns"] | {"avg": "Avg"}).items() if c in wide}
    behind, rows = records_behind(page, block), of_rows(page, block).set_index("row")
    ours = page.cells[(page.cells.block == block) & page.cells.row.isin(wide.index)].set_index(["setting", "row"]).ours
    for setting, column in columns.items():
        places = ours[setting].rank(ascending=False, method="min") if setting != "rounds" else {}
        for row in wide.index:
            stands = setting == column_of(page, row) or column_of(page, row) not in columns
            wide.loc[row, column] = text.opened(wide.loc[row, column], behind.get(row, "") if stands else "",
                                                places.get(row, 0))
    for mark in ("learned", "settled", "tuned"):
        wide[mark] = [WORDS[rows[mark].get(r)] for r in wide.index]
    if page.blocks[block] == "paper":       # its rates count as its authors' choice, which is not a choice of ours
        wide["tuned"] = wide["tuned"].replace("yes", "as printed")
    floors = {name: {c: f"{at[s]:.1f}" for s, c in columns.items() if s in at}
              for name, at in floors_of(page, block).items()}
    below = pd.DataFrame(floors, dtype=object).T.reindex(columns=wide.columns).dropna(how="all")
    return pd.concat([wide.astype(object), below]).fillna("")


def floors_of(page, block: str) -> dict[str, dict[str, float]]:
    """{"constant answer", perhaps the one for all, "chance": accuracy (%) by column} of a block; what has none is left
    out."""
    constant = filled.constants(page.table, page.blocks[block], page.results, page.seeds, page.when)
    constant = constant[constant.block == block].groupby(["row", "setting"]).value.mean()
    name = page.table.blocks[block][page.blocks[block]]["data"]["name"]
    settings = [*page.table.blocks[block]["columns"], "avg"]
    return {**{row: constant[row].to_dict() for row in constant.index.unique("row")},
            "chance": {s: 100 / len(reader_of(name).CLASSES) for s in settings if s != "rounds"}}


def of_rows(page, block: str) -> pd.DataFrame:
    """What makes the rows of a block evidence, by the column that stands for each."""
    found = page.evidence[page.evidence.block == block]
    return found[found.setting == found.row.map(lambda row: column_of(page, row))]


def column_of(page, row: str) -> str:
    """The column that stands for a row: the mean, or that of transfer which it is tuned for."""
    if not page.table.transfer:
        return "avg"
    return tables.IND if row == tables.tuned_name(tables.given_name(row), tables.IND) else "ood"


def records_behind(page, block: str) -> dict[str, str]:
    """{row: its records' files by the commit and hardware that made them, and the command that makes them again}."""
    found = {}
    for planned, record in [line for line in page.found if line[0].block == block]:
        made = record["made"]
        how = f"commit {made.get('commit', 'unknown')}, {made.get('hardware', 'unknown')}"
        files = found.setdefault((planned.row, again(planned)), {}).setdefault(how, [])
        files.append(f"seed {planned.seed}: {planned.run.path('results')}")
    return {row: "\n".join([*(line for how, files in by.items() for line in (*files, how)), command])
            for (row, command), by in found.items()}


def again(planned) -> str:
    """What trains a row's runs again."""
    return shlex.join(["fedlib", "run", planned.table, "--profile", planned.profile, "--only", planned.row,
                       "--results", "again"])


def shows(page, block: str) -> Markdown:
    """What a block's seeds and test images can show, and what speaks against its rows as evidence. A row that stands
    there in tuned form too is as given on purpose."""
    frame = power.of_blocks(page.table, page.blocks[block], page.results, len(page.seeds or []))
    words = [power.in_words(frame[frame.block == block]).partition(": ")[2]]
    rows = of_rows(page, block).to_dict("records")
    tried = {tables.given_name(r["row"]) for r in rows if tables.is_tuned(r["row"])}
    words += evidence.unfinished(rows) + evidence.untuned([r for r in rows if r["row"] not in tried])
    return text.lines(f"{w[0].upper()}{w[1:]}." for w in words if w)


def show_distance(page):
    """How far each block's runs are from the paper's experiment, setting by setting."""
    for block in page.ran:
        frame = distance.of_block(page.table, block, page.blocks[block])
        if len(frame):
            text.titled(f"How far {page.titles[block]} is from the paper's experiment",
                        text.table(frame.astype(str), words=True, index=False))
