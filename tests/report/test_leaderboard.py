"""The leaderboard: who is ahead among the committed records, and how orders are compared."""
import pandas as pd
import pytest

from fedlib import Page
from fedlib.report import leaderboard


@pytest.fixture(scope="module")
def board():
    return leaderboard.Board(Page("across/methods", "lite"))


def test_ranks_of_the_records(board):
    assert set(board.lines.method) <= set(board.methods) and board.lines.accuracy.between(0, 100).all()
    assert (board.lines.worst <= board.lines.accuracy + 1e-9).all()
    middle = (len(board.methods) + 1) / 2           # ranks have the same sum in every problem
    assert abs(board.ranked.mean(axis=1) - middle).max() < 1e-9 and abs(board.ranks.mean() - middle).max() < 1e-9
    assert list(board.ranks) == ["all", *(board.page.titles[b] for b in board.blocks)]


def test_the_best_has_learnt_on_every_set(board):
    for block in board.blocks:
        assert board.of(block).groupby("method").accuracy.mean().max() > 2 * board.chance(block), block
        leaders = leaderboard.leaders(board.of(block))
        assert leaders.index[0] == board.of(block).groupby("method").accuracy.mean().idxmax()


def test_the_protocol_is_the_same_on_all_sets(board):
    given = {k for b, p in board.page.blocks.items() for k in board.page.table.blocks[b][p]["protocol"]}
    assert given < set(board.alike()) and "net" in board.alike()


def test_leaders():
    lines = pd.DataFrame({"method": ["A", "A", "B", "B"], "accuracy": [10.0, 20, 40, 60], "worst": [1.0, 3, 2, 2],
                          "up": [1000, 1000, 5000, 5000], "seconds": [2.0, 1.0, 3.0, 4.0]})
    found = leaderboard.leaders(lines, passes={"A": 2, "B": 4})
    assert list(found.index) == ["B", "A"] and list(found.passes) == [4, 2] and list(found.n) == [2, 2]
    assert list(found["up (kB)"]) == [5, 1] and list(found.seconds) == [3, 1]
    assert found["worst (%)"]["B"] == "2.0 ± 0.0" and found["accuracy (%)"]["A"].startswith("15.0 ± ")


def test_groups_of_methods():
    ranks = pd.DataFrame({"all": [1.0, 2, 6], "PACS": [3.0, 1, 2]}, index=["Local", "FedPer", "FedAvg"])
    found = leaderboard.grouped(ranks, leaderboard.nets)
    assert found.loc["with personal nets"].tolist() == [2, 1.5, 2.0] and found.loc["with one net"].tolist() == [1, 6, 2]


def test_an_order_has_four_methods_at_least():
    one, other = pd.Series([1, 2, 3, 4], list("abcd")), pd.Series([4, 3, 2, 1, 9], list("abcde"))
    found = leaderboard.order(one, other)
    assert found.tau == -1 and found.n == 4 and str(found).startswith("-1.00 (n = 4, p = ")
    assert str(leaderboard.order(one[:3], other)) == "–"
