"""The pages that show a paper at once: their claims are those of the records, their picture is what really travels."""
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
from fedlib.experiments import tables
from fedlib.experiments.claims import NOT_EVIDENCE, NOT_RUN, VERDICTS, judge_all
from fedlib.experiments.results import results_folder
from fedlib.models.nets import Arch
from fedlib.probes.cost import made_up
from fedlib.report import found, overview, schemes, verdicts

ROOT = Path(__file__).resolve().parents[2]
PICTURES = {"net": "cnn4", "width": 4}, (3, 28, 28), {}
METHODS = {"i2pfl": ("I2PFL", *PICTURES), "fedpall": ("FedPall", *PICTURES), "feddtr": ("FedDTR", *PICTURES),
           "mpft": ("MPFT", {"net": "adapter", "head": "frozen"}, (8,), {}),
           "feddeap": ("FedDEAP", {"net": "identity", "head": "prompts"}, (128,), {"tokens": 2, "local_tokens": 2})}
BESIDE = {"n", "of", "counts", "labels", "seen"}        # how many, of which class


@pytest.fixture(scope="module")
def judged():
    return verdicts.every(paper="fedpall")


def test_the_claims_table_is_that_of_the_records(judged):
    """Each claim once, below its verdict, in the words of the record's evidence."""
    shown = overview.claims_table(judged).data
    again = judge_all(results_folder(), "fedpall")
    for verdict in VERDICTS:
        mine = again[again.verdict == verdict]
        part = re.search(rf'>{verdict}</span> (\d+) of (\d+)</summary>(.*?)</details>', shown, re.S)
        assert (part is None) == mine.empty
        if part:
            assert (int(part[1]), int(part[2])) == (len(mine), len(again))
            lines = [line for line in part[3].split("\n") if line.startswith("| ")][1:]
            assert len(lines) == len(mine)
            for claim, line in zip(mine.itertuples(), lines, strict=True):
                assert overview.plain(claim.says) in line and f"](../{overview.page(claim)}.ipynb)" in line
                assert verdict == NOT_RUN or overview.plain(claim.evidence) in line


def test_reasons_are_told_in_few_words(judged):
    kinds = overview.reasons(judged, "not evidence").index.tolist() + overview.reasons(judged, NOT_RUN).index.tolist()
    assert {"too few seeds", "still rising", "compared as given, not tuned"} <= set(kinds)
    assert all(len(kind) < 60 for kind in kinds)
    decided = judged[judged.reason == ""]
    assert all(overview.short(claim) == [] for claim in decided.itertuples())


def test_a_sentence_with_signs_of_markup_stays_one():
    assert overview.plain("a|b *c* [d] $e$ <f>") == r"a\|b \*c\* \[d\] \$e\$ \<f\>"


def test_the_box_counts_every_claim(judged):
    shown = overview.box("fedpall", judged).data
    counted = {v: int(n) for n, v in re.findall(r">(\d+) × ([\w ]+)</span>", shown)}
    assert counted == judged.verdict.value_counts().to_dict() and f"the {len(judged)} claims of FedPall" in shown
    for lead in overview.leads("fedpall"):
        assert f"printed {lead['printed']:+.1f}" in shown and (not lead["n"] or overview.gap(lead) in shown)
        if (more := lead["again"]) and more["n"]:
            assert f"on frozen features {overview.gap(more)}" in shown
        if lead["verdict"] == NOT_EVIDENCE:      # a number that says nothing is not printed
            assert overview.gap(lead) == "" and f"{lead['mean']:+.1f} ±" not in shown
    assert [bool(lead["again"]) for lead in overview.leads("fedpall")] == [True, False, True]     # Digits has none


def test_the_state_has_a_line_for_each_table(judged):
    lines = overview.artefacts("fedpall", judged).split("\n")[2:]
    assert len(lines) == len(tables.papers()["fedpall"]["tables"])
    for line in lines:
        there = re.search(r"\]\(\.\./(.*?)\.ipynb\)", line)[1]
        assert (ROOT / "notebooks" / f"{there}.ipynb").is_file()


@pytest.mark.parametrize("paper", verdicts.PAPERS)
def test_the_picture_shows_what_travels(paper):
    """The entries that a scheme names are those of real messages, but for what only says how many or which."""
    method, arch, shape, values = METHODS[paper]
    data = {"name": "random"} | ({"encoder": "mini_clip"} if arch.get("head") == "prompts" else {})
    run = plan(method, values, data, vars(Arch(**arch)), {"rounds": 2, "batch": 4}, 0)
    tiny = Simulation(run, made_up([4, 4], 2, shape, head=arch.get("head") in ("frozen", "own")))
    tiny.server.aggregate(tiny.exchange([0, 1])[0])
    tiny.rounds.append({"round": tiny.number + 1})
    down = tiny.message(0)
    up, _ = tiny.workers[0].train(down, 1)
    for message, named in ((down, schemes.SCHEMES[paper]["down"]), (up, schemes.SCHEMES[paper]["up"])):
        sent = {k for k, v in message.items() if not isinstance(v, dict) or v}      # FedPall's "params" are empty
        assert sent - BESIDE == set(named)


@pytest.mark.parametrize("paper", verdicts.PAPERS)
def test_the_picture_is_a_drawing_that_says_what_it_shows(paper):
    """Its text lies inside of it, in DejaVu, a wide face, too; and who does not see it hears every line."""
    drawn = ET.fromstring(schemes.picture(paper, "A title").data)
    space = "{http://www.w3.org/2000/svg}"
    width, height = map(float, drawn.get("viewBox").split()[2:])
    said = drawn.find(f"{space}desc").text
    assert drawn.find(f"{space}title").text == "A title" and drawn.get("role") == "img"
    for line in [*schemes.SCHEMES[paper]["client"], *schemes.SCHEMES[paper]["server"]]:
        assert all(part.strip()[2:] in said for part in line.split(";"))
    for text in drawn.iter(f"{space}text"):
        x, kind = float(text.get("x")), text.get("class")
        face = FontProperties(size=15.5 if kind == "name" else 14.5, weight="bold" if kind in ("name", "new") else 400)
        ends = x + TextToPath().get_text_width_height_descent(text.text, face, False)[0]
        beside_the_left_arrow = x in (44, 59)
        assert ends < (width / 2 if beside_the_left_arrow else width - 18) and float(text.get("y")) < height, text.text


@pytest.mark.parametrize("paper", verdicts.PAPERS)
def test_an_overview_links_every_page_of_its_paper(paper):
    contents = (ROOT / "book/_toc.yml").read_text()
    pages = re.findall(rf"file: notebooks/{paper}/(\w+)", contents)
    cells = json.loads((ROOT / f"notebooks/{paper}/overview.ipynb").read_text())["cells"]
    listed = re.findall(r"^- \{doc\}`(\w+)`", "".join(cells[-1]["source"]), re.M)
    assert pages == ["overview", *listed]
    assert f"notebooks/{paper}/overview.ipynb" in (ROOT / "book/index.md").read_text()


@pytest.mark.parametrize("paper", verdicts.PAPERS)
def test_findings_are_computed_and_begin_with_the_finding(paper):
    said = " ".join(lines := found.first(paper, verdicts.every(paper=paper)) + getattr(found, f"of_{paper}")())
    assert len(lines) > 2 and all(line.startswith("**") and "nan" not in line for line in lines)
    assert paper != "fedpall" or "FedPall has 23, 24, 25 right, ADCOL 22, 24, 25" in said
    assert paper != "feddtr" or re.search("local training. Tuned alike: CIFAR-100.*; CIFAR-100, frozen features", said)
