"""The pages about all papers: every claim with its verdict."""
import pandas as pd
import pytest

from fedlib.engine import records
from fedlib.experiments import tables
from fedlib.experiments.claims import judge
from fedlib.report import verdicts


@pytest.fixture(scope="module")
def claims():
    return verdicts.every()


def test_every_claim_stands_there_once(claims):
    assert set(claims.verdict) <= set(verdicts.SIGNS) == set(verdicts.INKS) and claims.id.is_unique
    assert len(claims) == sum(len(content.get("claims", [])) for content in tables.papers().values())
    assert set(claims.paper) == set(verdicts.PAPERS)
    counts = verdicts.counts(claims)
    assert counts.to_numpy().sum() == len(claims) and list(counts) == list(verdicts.SIGNS)


def test_a_claim_without_a_verdict_has_a_reason_and_no_profile(claims):
    undecided = claims.verdict == verdicts.OPEN
    assert ((claims.profile == "") == undecided).all() and ((claims.reason != "") == undecided).all()
    assert claims.evidence[undecided].str.contains("not at hand|not trained to the end: ").all()


def test_a_verdict_once_more_from_the_records(claims):
    for c in claims[claims.profile != ""].groupby("paper").head(1).itertuples():
        table = tables.load_table(f"{c.paper}/{c.table}")
        given = next(x for x in table.claims if x["id"] == c.id)
        cells = tables.values(table, c.profile, records.results_folder())
        assert judge(given, cells) == {"verdict": c.verdict, "evidence": c.evidence}, c.id


def test_the_summary_counts_what_is_surely_the_other_way_round():
    lines = [("reproduced", "+2.00 ± 1.00 points over A, n = 3"), ("not run", "no records of A"),
             ("not reproduced", "-2.00 ± 1.00 points over A, n = 3"),
             ("not reproduced", "-1.00 ± 2.00 points over A, n = 3")]
    made = pd.DataFrame(lines, columns=["verdict", "evidence"]).assign(data=verdicts.KINDS[0], profile="lite")
    made.loc[1, "profile"] = ""
    said = verdicts.summary(made).data
    assert "decide **3** of these (3 in lite): 1 reproduced, 0 partly, 2 not reproduced" in said
    assert "Of the latter, 1 surely" in said and "1 are not run" in said


def test_a_fold_says_how_its_claims_stand(claims):
    folded = verdicts.folds(claims, "i2pfl").data
    part = claims[claims.paper == "i2pfl"]
    folds = part.table.nunique()
    assert folded.count("<details>") == folds and folded.count("<tr>") == len(part) + folds
    assert "fedlib run i2pfl/table2 --profile lite" in folded
