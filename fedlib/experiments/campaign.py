"""A campaign: many tables in order, each as given, then its tries, then the rows that they choose; no core idles.

The order is a file, so that it can be read and changed: `workflow/campaign.toml`. A part names a table, a profile, its
blocks (all where none are named), the rows to tune (all where none are named; [] for none), and how.
"""
import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from fedlib.core import machine, schema
from fedlib.core.errors import UserError, pick
from fedlib.engine.run import Run
from fedlib.experiments import batch, evidence, status, tables, tune
from fedlib.experiments.tables import Planned

FILE = {"parts": [{"table": str, "profile": str, "blocks?": [str], "rows?": [str], "tries?": int, "seeds?": [int],
                   "halves?": bool}]}
BAR = 20        # characters


@dataclass(frozen=True)
class Part:
    """One table in one profile, as the campaign's file has it."""
    table: str
    profile: str
    blocks: tuple = ()
    rows: tuple | None = None
    tries: int = tune.TRIES
    seeds: tuple = tune.SEEDS
    halves: bool = False        # in half the rounds too, where the rate falls to nothing

    @property
    def name(self) -> str:
        """For a reader: 'i2pfl/table2 lite: office, pacs'."""
        return f"{self.table} {self.profile}" + f": {', '.join(self.blocks)}" * bool(self.blocks)

    @property
    def how(self) -> tuple:
        """Blocks, rows, number and seeds of the tries, as `fedlib.experiments.tune` takes them."""
        return self.blocks or None, self.rows, self.tries, self.seeds


def parts(path: Path) -> list[Part]:
    """The parts of a campaign's file. UserError: it is none, or names what is not there."""
    try:
        found = schema.check(schema.toml(Path(path).read_text(encoding="utf-8")), FILE)["parts"]
        made = [Part(**{k: tuple(v) if isinstance(v, list) else v for k, v in part.items()}) for part in found]
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{path} is no campaign ({error})") from error
    for part in made:
        table = tables.load_table(part.table)
        pick("profile", part.profile, tables.PROFILES)
        for block in part.blocks:
            pick(f"block of {part.table}", block, table.blocks)
        for row in part.rows or ():
            pick(f"row of {part.table}", row, [r["name"] for r in table.rows])
    return made


def tries(part: Part) -> list[Planned]:
    """The tries of a part; of no row where the file says so."""
    return [] if part.rows == () else tune.tries(reached(part), part.profile, *part.how)


def reached(part: Part) -> tables.Table:
    """The part's table, with the rates to try beyond the end of what was tried."""
    return tune.reaching(tables.load_table(part.table))


def planned(part: Part, results: Path) -> list[Planned]:
    """Every run of a part in order: rows as given with the constant answer, tries, and the tuned rows known so far; of
    those that stay, the runs in half the rounds that are asked for.
    """
    table, tried = tables.load_table(part.table), tries(part)
    runs, halves = ([p for p in every if not part.blocks or p.block in part.blocks] for every in (
        table.references(part.profile) + table.runs(part.profile),
        evidence.halves(table, part.profile, results) if part.halves else []))
    to_tune = {(p.block, p.row) for p in tried}
    return ([p for p in runs if not tables.is_tuned(p.row)] + tried + [p for p in runs if tables.is_tuned(p.row)]
            + [p for p in halves if (p.block, p.row) not in to_tune])


def following(campaign: list[Part], results: Path, taken: set) -> list[Planned]:
    """The runs to start next, without those that ended or whose digest is taken: of the first part that lacks any the
    rows as given, else the tries of one row, else what was chosen.

    Rows whose tries have all ended are chosen on the way, and have runs from then on.
    """
    for part in campaign:
        if tried := tries(part):
            batch.keep_choices(reached(part), part.profile, tried, results, *part.how)
        todo = [p for p in planned(part, results) if p.run.digest not in taken and not batch.ended(p, results)]
        if todo:
            chosen = {p.run.digest: p for p in todo if kind(p) == kind(todo[0])}
            taken.update(chosen)
            return list(chosen.values())
    return []


def left(campaign: list[Part], results: Path) -> list[Run]:
    """The runs of all parts that have no record, in order, each once."""
    every = {p.run.digest: p.run for part in campaign for p in planned(part, results)}
    return [run for run in every.values() if not run.path(results).exists()]


def kind(p: Planned) -> tuple:
    """What starts together: the tries of one row, or everything that is none."""
    return (p.block, p.row) if p.run.data.tuning else ()


def run(campaign: list[Part], results: Path, device: str = "cpu", jobs: int | None = None, budget: str | None = None,
        say=print, progress=print) -> int:
    """Train all of it at low priority; returns the exit code. Stopped or killed, the same command goes on."""
    machine.check_device(device)
    lowest_priority()
    taken = set()

    def more():
        todo = following(campaign, results, taken)
        batch.ready(todo, device, say)
        return todo
    outcome = batch.execute([], results, jobs or batch.together(device), device,
                            batch.seconds(budget) if budget else None, progress, more=more)
    say(f"\n{outcome['done']} trained" + f", {len(outcome['failed'])} failed" * bool(outcome["failed"]))
    say("\n".join([*outcome["failed"], *lines(standing(campaign, results))]))
    return 1 if outcome["failed"] else 0


def lowest_priority():
    """Of this process and its children. Linux shares cores between terminals first, and between processes inside one
    after that: started with `setsid`, a campaign has such a group for itself, which steps back as a whole.
    """
    os.nice(19)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):      # kernels without groups
            Path("/proc/self/autogroup").write_text("19")


def standing(campaign: list[Part], results: Path) -> list[dict]:
    """For each part: its name, what `fedlib.experiments.status.summary` says of its runs, and the rows still to choose.

    A tuned row that is not chosen yet will cost what a run of the part usually costs.
    """
    found = []
    for part in campaign:
        every = planned(part, results)
        chosen = {(p.block, tables.given_name(p.row)) for p in every if tables.is_tuned(p.row)}
        waits = {(p.block, p.row) for p in tries(part)} - chosen
        said = status.summary(every, results)
        runs = sum((p.block, p.row) in waits and p.seed not in part.seeds for p in every)
        left = said["left"] + said["usual"] * runs
        found.append({"part": part.name} | said | {"to_choose": len(waits), "left": left})
    return found


def lines(found: list[dict]) -> list[str]:
    """A bar, the share, and the hours left of each part."""
    wide, made = max((len(s["part"]) for s in found), default=0), []
    for s in found:
        every = sum(s[k] for k in status.STATES)
        share = s["done"] / every if every else 0
        choose = f", {s['to_choose']} rows to choose" if s["to_choose"] else ""
        made.append(f"{s['part']:<{wide}} {'█' * int(BAR * share):░<{BAR}} {status.line(s)}{choose}")
    return made
