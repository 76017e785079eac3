"""What tuning chose for each row of a table, and what that changed: rates, accuracies, verdicts."""
import pandas as pd
from IPython.display import Markdown, display

from fedlib.experiments import claims, evidence, filled, tables, tune
from fedlib.report import plots, text


def tries(page, block: str) -> pd.DataFrame:
    """One line for each try of a block with records: row, lr, weight, accuracy (%, on validation samples), given (is it
    the row as it is given?), usual (has it the weight as given?), chosen.
    """
    place = f"{block}.{page.blocks[block]}"
    every = {r["name"]: r["chosen"][place] for r in page.table.rows if place in r.get("chosen", {})}
    chosen = {row: every[tables.tuned_name(row)] for row in map(tables.given_name, every)}
    if not chosen:
        return pd.DataFrame(columns=["row", "lr", "weight", "accuracy", "given", "usual", "chosen"])
    found = pd.concat([tune.scores(page.table, page.blocks[block], page.results, [block], [row], how["tries"],
                                   tuple(how["seeds"])) for row, how in chosen.items()], ignore_index=True)
    found = found[found.n > 0]
    won = {tune.best(part).name for _, part in found.groupby("row")}
    usual = found.weight.isna() | (found.weight == found.row.map(found[found.number == 0].set_index("row").weight))
    found = found.assign(given=found.number == 0, usual=usual, chosen=found.index.isin(won))
    return found.drop(columns=["block", "number", "n", "gain"])


def choices(page, block: str) -> pd.DataFrame:
    """By row: what was chosen, the validation accuracy as given and chosen, and that on test images, ours.

    Where the rate is the lowest or the highest of all tries, a better one may lie beyond: it says so.
    """
    setting, found, lines = "ood" if page.table.transfer else "avg", tries(page, block), {}
    ours = page.cells[(page.cells.block == block) & (page.cells.setting == setting)].set_index("row").ours
    for row, part in found.groupby("row", sort=False):
        first, best = part[part.given], part[part.chosen].iloc[0]
        weight = f", weight {best.weight:g}" if part.weight.nunique() > 1 else ""
        how = next(r for r in page.table.rows if r["name"] == tables.tuned_name(row))
        penalty = tune.PENALTY.get(how.get("method", row))
        at_end = evidence.at_end(page.table, tables.tuned_name(row), page.blocks[block], block)
        end = ", the last one tried" * at_end
        what = f"rate {best.lr:g}{end}{weight}" if not penalty else (
            f"penalty {how['chosen'][f'{block}.{page.blocks[block]}']['settings'][penalty]:g}")
        lines[row] = {"chosen": "as given" if best.given else what,
                      "validation, as given": first.accuracy.iloc[0] if len(first) else float("nan"),
                      "validation, chosen": best.accuracy, "test, as given": ours.get(row, float("nan")),
                      "test, tuned": ours.get(tables.tuned_name(row), float("nan"))}
    return pd.DataFrame(lines).T


def verdicts(page) -> pd.DataFrame:
    """The claims whose rows are all there in tuned form: what the intervals say of the rows as given and as tuned."""
    lines = []
    for profile in page.profiles:
        cells = filled.values(page.table, profile, page.results, seeds=page.seeds, when=page.when)
        rows = evidence.of_rows(page.table, profile, page.results, seeds=page.seeds, when=page.when)
        for claim in [c for c in page.table.claims if page.blocks.get(c["block"]) == profile]:
            given, tuned = (claims.judge(c, cells, rows, page.table)
                            for c in (claim, claims.in_tuned_form(claim, page.table, profile)))
            if tuned["verdict"] != claims.NOT_RUN:
                lines.append({"says": claim["says"], "as given": points(given), "tuned": points(tuned)})
    return pd.DataFrame(lines, columns=["says", "as given", "tuned"])


def points(found: dict) -> str:
    """'supported (+14.1 ± 9.6)': what the intervals alone say, of a comparison that was run."""
    half = f" ± {found['half']:.1f}" if found["half"] == found["half"] else ""
    return f"{found['direction']} ({found['mean']:+.1f}{half})" if found["direction"] else found["verdict"]


def show(page, rows=None):
    """For each block with tuned rows its tries as a figure and in numbers, of all or of `rows`; then the claims, as
    given and as tuned.
    """
    found = {block: tries(page, block) for block in page.ran}
    if not any(map(len, found.values())):
        return Markdown(f"No row of this table is tuned: `fedlib tune {page.table.id} --profile {page.profile}`.")
    for block, part in found.items():
        if len(part):
            chosen = choices(page, block).infer_objects()
            some = [row for row in chosen.index if rows is None or row in rows]
            text.titled(page.titles[block], plots.tries(part[part.row.isin(some)]), text.table(chosen.loc[some]))
    changed = verdicts(page)
    if len(changed):
        display(text.table(changed, words=True, index=False))
