"""The pages about all papers: every claim with its verdict."""
import pandas as pd
import pytest

from fedlib.experiments import tables
from fedlib.experiments.claims import (
    CONTRADICTED,
    DECIDED,
    NOT_EVIDENCE,
    NOT_RUN,
    SUPPORTED,
    UNDECIDED,
    judge_claims,
)
from fedlib.experiments.results import results_folder
from fedlib.report import verdicts


@pytest.fixture(scope="module")
def claims():
    return verdicts.every()


def test_every_claim_stands_there_once(claims):
    assert set(claims.verdict) <= set(verdicts.SIGNS) == set(verdicts.INKS) and claims.id.is_unique
    written = [c["id"] for content in tables.papers().values() for c in content.get("claims", [])]
    again = claims[claims.block.str.endswith("_features")]
    assert len(claims) == len(written) + len(again) and set(claims.id) - set(again.id) == set(written) and len(again)
    assert set(claims.paper) == set(verdicts.PAPERS)
    counts = verdicts.counts(claims)
    assert counts.to_numpy().sum() == len(claims) and list(counts) == list(verdicts.SIGNS)


def test_a_claim_without_a_verdict_has_a_reason(claims):
    run, without = claims.verdict != NOT_RUN, claims.verdict.isin([NOT_RUN, NOT_EVIDENCE])
    assert ((claims.profile != "") == run).all() and ((claims.kind != "") == without).all()
    passing = claims.reason.str.startswith(("going on as the curves rise", "the best of all tests"))     # undecided
    assert ((claims.reason != "") == without | passing).all() and (claims.verdict[passing] == UNDECIDED).all()
    assert claims.reason[~run].str.contains("not at hand|not trained to the end: |not started: 0 of ").all()


def test_a_verdict_once_more_from_the_records(claims):
    for c in claims[claims.profile != ""].groupby("paper").head(1).itertuples():
        table = tables.load_table(f"{c.paper}/{c.table}")
        again = judge_claims(table, c.profile, results_folder()).set_index("id").loc[c.id]
        assert (again.verdict, again.evidence, again.reason) == (c.verdict, c.evidence, c.reason), c.id


def test_the_summary_counts_verdicts_and_what_the_intervals_alone_say():
    lines = [(SUPPORTED, SUPPORTED), (NOT_RUN, ""), (CONTRADICTED, CONTRADICTED), (NOT_EVIDENCE, CONTRADICTED),
             (NOT_EVIDENCE, UNDECIDED), (NOT_EVIDENCE, SUPPORTED)]
    made = pd.DataFrame(lines, columns=["verdict", "direction"])
    made = made.assign(reason=[""] * 3 + ["only 1 seed", "not tuned: a", "the same runs already stand behind b"])
    said = verdicts.summary(made.assign(data=verdicts.KINDS[0], holm=[0.04, float("nan"), 0.06, 0.01, 0.01, 1.0])).data
    assert "**1** are supported, **1** contradicted, 0 undecided; 3 have records that are not evidence" in said
    assert "would call 0 supported and 1 contradicted" in said and "1 of these 2 verdicts" in said


def test_a_fold_says_how_its_claims_stand(claims):
    folded = verdicts.folds(claims, "i2pfl").data
    part = claims[claims.paper == "i2pfl"]
    folds = part.table.nunique()
    assert folded.count("<details>") == folds and folded.count("<tr>") == len(part) + folds
    assert "fedlib run i2pfl/table2 --profile lite" in folded
    part, folded = claims[claims.paper == "mpft"], verdicts.folds(claims, "mpft").data
    assert folded.count("together with the paper's other claims") == part.verdict.isin(DECIDED).sum() > 0
