"""What pages say by hand stands on something: of a figure on an assertion, of a method on a source, of print on print.

Pages that say what records show compute their sentences. Where a caption or an alt text claims an order or a number
none the less, a comment with the figure's name stands with what asserts it: in a hidden cell of the page, or in a test.
"""
import ast
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from fedlib import METHODS, Page
from fedlib.experiments import filled, named_partitions, tables
from fedlib.experiments.statistics import interval
from fedlib.report import feddeap, printed, tuning

ROOT = Path(__file__).resolve().parents[2]
PAGES = {f"{p.parent.name}/{p.stem}": json.loads(p.read_text())["cells"]
         for p in sorted((ROOT / "notebooks").glob("*/*.ipynb")) if p.parent.name != "concepts"}

# A line at zero is read so, whatever is drawn; a ring marks the paper's best; a rule of selection has its name.
READING = re.compile(r"(left|right) of zero: [^.]*\.|that the paper calls the best|best on the test images|95 %", re.I)
ORDER = re.compile(r"\b(highest|lowest|largest|smallest|best|worst|most|least|longest|shortest|nearest|furthest|higher|"
                   r"lower|larger|smaller|better|worse|more|less|fewer|longer|shorter|nearer|further|rise\w*|rising|"
                   r"fall\w*|grow\w*|drops?|flatten\w*|steep\w*|jumps?|clearly|(?<!so )far)\b", re.I)
NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*")
FIRST = re.compile(rf"\b(?:{'|'.join(map(re.escape, METHODS))})\b(?:'s \w+)? (?:leads|wins|beats|outperforms|helps|is "
                   r"(?:ahead|above|below|the first|the best|better|worse|superior))\b")
SOURCE = re.compile(r"print|paper|\btext\b|says|claim|released|quoted|abstract|Right of zero", re.I)


def written(cell: dict) -> list[str]:
    """Sentences of a cell that are typed: its text, or its strings without a value put in."""
    source = "".join(cell["source"])
    if cell["cell_type"] == "code":
        tree = ast.parse(re.sub(r"^(\s*)[!%].*", r"\1pass", source, flags=re.M))
        parts = {id(v) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for v in node.values}
        source = "\n\n".join(node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)
                             and isinstance(node.value, str) and id(node) not in parts)
    return [" ".join(s.split()) for part in re.split(r"\n\n|\n(?=[-|*#])", source)
            for s in re.split(r"(?<=[.!?]) ", part)]


def guarded(cells: list[dict]) -> set[str]:
    """The figures that hidden cells of a page and the tests of pages name."""
    code = ["".join(c["source"]) for c in cells if "nbval-check-output" in c["metadata"].get("tags", [])]
    code += [path.read_text() for path in (ROOT / "tests/report").glob("test_*.py")]
    return set(re.findall(r"fig-[\w-]+", " ".join(re.findall(r"# (fig-.*)", "\n".join(code)))))


@pytest.mark.parametrize("name", PAGES)
def test_what_is_said_of_a_figure_is_drawn_or_asserted(name):
    """A number may also be a setting: then the page's text or code has it too."""
    cells = PAGES[name]
    known = set(NUMBER.findall(" ".join("".join(c["source"]) for c in cells)))
    for cell in cells:
        drawn = cell["metadata"].get("mystnb", {})
        figure, image = drawn.get("figure", {}), drawn.get("image", {})
        for said in filter(None, (figure.get("caption"), image.get("alt"))):
            plain = READING.sub("", said)
            claims = ORDER.findall(plain) + [n for n in NUMBER.findall(plain) if n not in known]
            assert not claims or figure.get("name") in guarded(cells), (cell["id"], claims, said)


@pytest.mark.parametrize("name", PAGES)
def test_no_method_is_put_first_by_hand(name):
    """Who leads is said by the paper or computed: a verdict may forbid what a mean suggests."""
    for cell in PAGES[name]:
        for sentence in written(cell):
            assert not FIRST.search(sentence) or SOURCE.search(sentence), (cell["id"], sentence)


@pytest.mark.parametrize("name", PAGES)
def test_verdicts_have_the_names_of_today(name):
    """A claim is no longer reproduced, partly or not; and one without evidence stands with its reason."""
    for cell in PAGES[name]:
        source, drawn = "".join(cell["source"]), json.dumps(cell["metadata"])
        assert not re.search(r"not reproduced|two seeds in common|\bpartly\b.*reproduced", source + drawn), cell["id"]
        shown = re.search(r"show_claims\([\[(](.*?)[\])]", source)
        assert not shown or '"reason"' in shown[1], cell["id"]


# hand-written sentences about printed numbers that no page's own check reads

def says(page: str, *sentences: str):
    text = " ".join(" ".join("".join(c["source"]) for c in PAGES[page] if c["cell_type"] == "markdown").split())
    for sentence in sentences:
        assert sentence in text, sentence


def of(paper: str, table: str, metric: str = "accuracy") -> pd.DataFrame:
    return printed.of_paper(paper, metric).loc[table]


def test_what_mpfts_pages_say_of_the_print():
    one, six = of("mpft", "table1"), of("mpft", "table6").xs("FedAvg", level="method")
    for block in ("domainnet_50", "domainnet_100", "domainnet_150"):
        assert one.loc[block].ood_printed.idxmax() == "MPFT (Random, rate=0.3)"
        assert one.loc[block].ind.idxmax() == "local"
    says("mpft/attack", "which has the highest printed ood on DomainNet in Table 1")
    says("mpft/table1", "Why does *local* with its own head have the highest ind on DomainNet in print")
    assert (six[["ood_printed", "ind"]].iloc[1:] < six[["ood_printed", "ind"]].iloc[0]).all(axis=None)
    says("mpft/clients", "In print FedAvg loses with more clients")
    assert one.loc["pacs"].ind["local"] == 99.84
    says("mpft/findings", "local training has 99.84 in domain")


def test_what_feddtrs_pages_say_of_beta():
    beta = of("feddtr", "table2").avg.unstack("method").loc[["tiny_b001", "tiny", "tiny_b05"]]
    drawn = beta[["FedAvg", "FedAMP", "FedPer", "Ditto", "FedALA", "FedDTR"]].diff().dropna()
    assert (drawn.drop(columns="FedAvg") < 0).all(axis=None) and (drawn.FedAvg > 0).all()
    says("feddtr/clients", "FedAvg has one net for all, and its line rises.")


def test_what_feddeaps_pages_say_of_the_print():
    sketch = of("feddeap", "table1").loc["pacs"].sketch
    behind = sketch[["CLIP-FC", "FedCLIP", "FACMIC", "PromptFL", "FedAPT"]]
    assert behind.max() - behind.min() < 3 and sketch["FedDEAP"] == 98.86
    says("feddeap/modulation", "methods that train behind CLIP's towers lie within three points of each other there")
    five, three = of("feddeap", "table5").avg, of("feddeap", "table3").avg.unstack("method")
    gaps = five.max() - five.droplevel(0).drop("local 16, global 16")
    assert sorted(gaps.round(1)) == [0.1, 0.3]
    says("feddeap/ablations", "from differences of 0.1 and 0.3 points and one seed")
    own = three[["w/ Personalized Prompt", "w/o Semantic Align.", "w/o Domain Align."]].rsub(three["FedDEAP"], axis=0)
    says("feddeap/ablations", f"differ from FedDEAP by {own.min().min():.2f} to {own.max().max():.2f} points in print")
    seconds = feddeap.costs().seconds
    assert seconds["PromptFL"] == seconds["FedDEAP"] and round(seconds["FedAPT"] / seconds["PromptFL"], 1) == 2.5
    says("feddeap/costs", "In print both take the same time, and FedAPT 2.5 times as long.")


def test_what_feddeaps_pages_say_of_tuned_rows():
    """Means over the domains in the last round on mini_digits: of the seeds, and of parts beside the whole."""
    table, seeds = tables.load_table("feddeap/table5"), {}
    for planned, record in filled.records_of(table, "mini", ROOT / "results"):
        acc = record["rounds"][-1]["acc"].values()
        seeds.setdefault(planned.row, []).append(sum(acc) / len(acc))
    apart = {row: max(some) - min(some) for row, some in seeds.items()}
    assert all((3.5 < v < 4.5) if row.startswith("local 12") else v < 2 for row, v in apart.items()) and len(apart) == 6
    says("feddeap/ablations", "With twelve of its own the five seeds lie about four points apart")
    found = tuning.verdicts(Page("feddeap/table3", "mini", [], "read", "cpu"))
    aligned = found[found.says.str.contains("alignment")]
    assert len(aligned) == 2 and aligned[["as given", "tuned"]].apply(
        lambda column: column.str.startswith("undecided")).all(axis=None)
    says("feddeap/ablations", "What the alignments add lies within the interval with the given settings")


def test_what_fedpalls_pages_say_of_the_print():
    nats, best = of("fedpall", "privacy", "nats").avg.loc["office"], of("fedpall", "figure5").avg.max()
    says("fedpall/privacy", f"Printed are {nats['mask']:.2f} for the mask alone, {nats['mixture']:.2f} for the mixture "
         f"alone and {nats['mixture and mask']:.2f} for both together.")
    says("fedpall/figures", f"({best} and {of('fedpall', 'table1').avg['office', 'FedPall']})")


# hand-written sentences about our records and partitions

def test_a_prompt_tuned_at_home_draws_a_diagonal_too():
    leads = feddeap.leads(feddeap.maps(Page("feddeap/figure3", "mini", [0, 1, 2])))
    for _, sample in leads.xs("all", level="images of").iterrows():
        mean, half = interval(sample)
        assert mean > half
    says("feddeap/cross", "an epoch at home draws a diagonal as well")


def test_what_the_released_order_does_in_mini():
    page = Page("feddeap/modulation", "mini", [0, 1, 2])
    honest = "train mean, as released, shuffled"
    price, leak = (page.compared({"": pair}).iloc[0] for pair in (
        ("train mean, as released", honest), ("batch sorted, as released", "batch shuffled, as released")))
    assert price["mean"] + price.half < 0 < leak["mean"] - leak.half
    says("feddeap/findings", "The unshuffled training makes an honest test worse in our records")


def test_what_clients_hold():
    clients = Page("i2pfl/table2", "lite", [0]).clients("office").groupby("domain").train
    assert clients.sum()["dslr"] == pytest.approx(100, abs=2) and clients.sum()["caltech"] > 500
    assert (clients.size()["dslr"], clients.size()["caltech"]) == (4, 3)
    says("i2pfl/table2", "The four DSLR clients hold a hundred images together, the three Caltech clients more than "
         "five hundred.")
    stored = pd.DataFrame(named_partitions.stored()["i2pfl_office"]["clients"]).groupby("domain").train
    assert set(stored.get_group("dslr")) == {25}
    says("data/datasets", "A DSLR client holds 25 images.")


def test_how_many_claims_there_are():
    assert sum(len(p.get("claims", [])) for p in tables.papers().values()) > 200
    says("across/claims", "once for each set that they name")
