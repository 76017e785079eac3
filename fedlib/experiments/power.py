"""What a table can show before it is run: the least difference that its seeds find, and one test image in points."""
from pathlib import Path

import pandas as pd

from fedlib.experiments import claims, filled
from fedlib.experiments.statistics import least_difference, seeds_needed
from fedlib.experiments.tables import Table, is_tuned

COLUMNS = ["block", "dataset", "seeds", "sd", "least", "domain", "images", "image", "printed", "needs"]


def of_blocks(table: Table, profile: str, results: Path, seeds: int | None = None) -> pd.DataFrame:
    """One line for each block of a profile: COLUMNS. seeds: how many, instead of the block's own.

    sd: the median deviation of rows' differences to the first row over the seeds at hand (points; nan without records);
    least: what so many seeds find at 80 % power; domain, images, image: the smallest test split and the points that one
    of its images is worth; printed: the smallest lead that a claim on the mean states, needs: the seeds that find it.
    """
    cells, lines = filled.values(table, profile, results), []
    found = {p.block: r for p, r in filled.records_of(table, profile, results)}
    for block in [b for b, content in table.blocks.items() if profile in content]:
        setting = "ood" if table.transfer else "avg"
        wide = cells[(cells.block == block) & (cells.setting == setting)].pivot(index="seed", columns="row",
                                                                              values="value")
        wide = wide[[r["name"] for r in table.rows if r["name"] in wide and not is_tuned(r["name"])]]
        sds = pd.Series(dtype=float)
        if len(wide) > 1 and len(wide.columns) > 1:
            sds = wide.drop(columns=wide.columns[0]).sub(wide[wide.columns[0]], axis=0).std().dropna()
        sd = sds.median() if len(sds) else float("nan")
        domain, images = smallest(found.get(block))
        printed, n = lead(table, block), seeds or len(table.drawn(block, profile))
        lines.append((block, table.blocks[block]["title"], n, sd, least_difference(sd, n), domain, images,
                      100 / images if images else float("nan"), printed, seeds_needed(printed, sd)))
    return pd.DataFrame(lines, columns=COLUMNS)


def smallest(record: dict | None) -> tuple[str, int]:
    """(domain, test images) of the smallest test split of a record's data; ("", 0) without a record, and of one that
    was tested on domains that no client has, whose images it does not count.

    Clients of a domain whose tests differ in size have tests of their own, which count together.
    """
    tests, unseen = {}, any("unseen" in row for row in (record or {}).get("rounds", []))
    for c in [] if unseen else (record or {}).get("made", {}).get("data", {}).get("clients", []):
        tests.setdefault(c["domain"], []).append(c.get("test", 0))
    sizes = {domain: sum(of) if len(set(of)) > 1 else of[0] for domain, of in tests.items()}
    domain = min(sizes, key=sizes.get, default="")
    return domain, sizes.get(domain, 0)


def lead(table: Table, block: str) -> float:
    """The smallest printed lead (points) that a claim about the block's mean states; nan where none does."""
    found = [claims.printed_difference(c, rival, table) for c in table.claims
             if c["block"] == block and c["setting"] in ("avg", "ood") for rival in c["than"]]
    return min((gap for gap in found if gap > 0), default=float("nan"))


def in_words(frame: pd.DataFrame) -> str:
    """The frame for a reader of a terminal."""
    lines = []
    for line in frame.itertuples():
        what = [f"{line.seeds} seeds find {line.least:.1f} points or more (80 % power, deviation {line.sd:.1f})"
                if line.sd == line.sd else "no records yet to judge the noise by"]
        what += [f"one of {line.images} test images of {line.domain} is {line.image:.1f} points"] * bool(line.images)
        if line.printed == line.printed and line.sd == line.sd:
            what.append(f"the smallest printed lead, {line.printed:.2f}, needs "
                        + (f"{line.needs} seeds" if line.needs else "more than 1,000 seeds"))
        lines.append(f"{line.dataset}: {'; '.join(what)}")
    return "\n".join(lines)
