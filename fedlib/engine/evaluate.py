"""What a round measures: accuracy by domain, losses, in-domain and out-of-domain accuracy; when it has stalled."""
import torch

from fedlib.core.errors import UserError
from fedlib.core.seeds import generator


def asked(simulation) -> list[int]:
    """Positions of the clients that are tested after this round: all, or some of each domain, drawn by the protocol."""
    clients, run, by_domain = simulation.federation.clients, simulation.run, {}
    order = torch.randperm(len(clients), generator=generator(run.seed, "tested", simulation.number)).tolist()
    for i in order:
        by_domain.setdefault(clients[i].domain, []).append(i)
    few = 0 if run.protocol.cross or simulation.number + 1 >= run.protocol.rounds else run.protocol.test_clients
    return sorted(i for some in by_domain.values() for i in some[:few or None])


def measure_round(simulation, said: list, test: bool = True) -> dict:
    """Accuracy per domain (%), test loss and mean training loss of one round; without a test that loss only.

    A personal method is tested with every client's model on its domain, and a domain's value is the mean over its
    clients. Otherwise all clients hold the same model and the first client of each domain speaks for it, unless the
    clients have test splits of their own: then each counts by its size.
    """
    server, workers, federation = simulation.server, simulation.workers, simulation.federation
    protocol = server.protocol

    def weight(client):
        return len(client.test) if federation.own_tests else 1

    losses = [i["loss"] for _, i in said if "loss" in i]
    row = {"train_loss": round(sum(losses) / len(losses), 6) if losses else 0.0}
    if not test:
        return row
    if protocol.evaluate != "before":
        row["after"] = _by_domain((c.domain, i["after"]["acc"], weight(c)) for c, i in said)
    if protocol.evaluate == "after":
        tested = _by_domain((c.domain, i["after"]["loss"], weight(c)) for c, i in said)
        return {"acc": row["after"], "loss": _mean(tested), **row}
    personal = server.personal or protocol.buffers == "keep"
    clients = federation.clients
    speakers = asked(simulation)
    if not personal and not federation.own_tests:
        speakers = list({clients[i].domain: i for i in reversed(speakers)}.values())[::-1]
    others = {c.id: c.test for c in clients} if protocol.cross else {}
    tested = workers.test(speakers, ((simulation.message(i), *((federation.unseen, others)
                                      if personal or k == 0 else ({}, {}))) for k, i in enumerate(speakers)))
    scores = [(clients[i], s) for i, s in zip(speakers, tested, strict=True) if s]
    if not scores:
        raise UserError("no client answered a test; start it again to continue")
    row["acc"] = _by_domain((c.domain, s["test"]["acc"], weight(c)) for c, s in scores)
    row["loss"] = _mean(_by_domain((c.domain, s["test"]["loss"], weight(c)) for c, s in scores))
    if all("val" in s for _, s in scores):
        row["val"] = _by_domain((c.domain, s["val"]["acc"], 1) for c, s in scores)
        row["val_loss"] = _by_domain(("", s["val"]["loss"], len(c.val)) for c, s in scores)[""]
    if protocol.cross:
        row |= cross_tested(federation.clients, [s["others"] for _, s in scores if s["others"]])
    if federation.unseen:
        row["unseen"] = _by_domain((d, s["acc"], 1) for _, every in scores for d, s in every["unseen"].items())
    return row


def _mean(values: dict) -> float:
    """Over the domains with a finite value: batch-norm may overflow in one of them and recover in the next round."""
    values = [v for v in values.values() if abs(v) < float("inf")] or [float("nan")]
    return round(sum(values) / len(values), 6)


def _by_domain(scores) -> dict:
    """Weighted means of (domain, value, weight)."""
    sums = {}
    for domain, value, weight in scores:
        total, weights = sums.get(domain, (0, 0))
        sums[domain] = total + weight * value, weights + weight
    return {d: round(total / weights, 6) for d, (total, weights) in sums.items()}


def stalled(rounds: list[dict], protocol) -> bool:
    """Has validation accuracy (mean over domains) or loss (over samples) not improved in the last `patience` rounds?"""
    if not protocol.patience or not rounds or "val" not in rounds[-1]:
        return False
    marks = {r["round"]: -r["val_loss"] if protocol.stop == "loss" else sum(r["val"].values())
             for r in rounds if "val" in r}
    return rounds[-1]["round"] - max(marks, key=marks.get) >= protocol.patience


def cross_tested(clients: list, accuracies: list[dict]) -> dict:
    """What a round's record holds: {"cross": by domain and domain, "transfer": see `transfer_scores`}.

    accuracies: for each client {client: accuracy (%) of its model there}, or one such dict where all share a model.
    """
    ids, domain = [c.id for c in clients], {c.id: c.domain for c in clients}
    shared = len(accuracies) == 1
    acc = {i: accuracies[0 if shared else k] for k, i in enumerate(ids)}
    cells = {}
    for i in ids:
        for j in ids:
            cells.setdefault(domain[i], {}).setdefault(domain[j], []).append(acc[i][j])
    cross = {a: {b: round(sum(v) / len(v), 4) for b, v in row.items()} for a, row in cells.items()}
    return {"cross": {"all": next(iter(cross.values()))} if shared else cross,
            "transfer": transfer_scores(acc, {c.id: len(c.test) for c in clients})}


def transfer_scores(acc: dict, n: dict) -> dict:
    """Four means of ACC_i^(j), the accuracy (%) of client i's model on the n_j test samples of client j.

    ind = sum_i n_i ACC_i^(i) / sum_i n_i;  ood = sum_i sum_{j != i} n_j ACC_i^(j) / sum_i sum_{j != i} n_j (MPFT's
    Eq. 3);  ood_printed = sum_i n_i mean_{j != i} ACC_i^(j) / sum_i n_i, which is what its printed tables hold;
    ood_plain: every pair counts the same. With one model for all, ood equals ind: Eq. 3 then weighs each domain by its
    size, as ind does. Zhang et al., ICLR 2025, arXiv:2410.07738.
    """
    pairs = [(i, j) for i in n for j in n if i != j]
    total = sum(n.values())
    away = {i: [acc[i][j] for j in n if j != i] for i in n}
    if not pairs:
        return {"ind": round(next(acc[i][i] for i in n), 4)}
    made = {"ind": sum(n[i] * acc[i][i] for i in n) / total,
            "ood": sum(n[j] * acc[i][j] for i, j in pairs) / sum(n[j] for _, j in pairs),
            "ood_printed": sum(n[i] * sum(away[i]) / len(away[i]) for i in n) / total,
            "ood_plain": sum(acc[i][j] for i, j in pairs) / len(pairs)}
    return {k: round(v, 4) for k, v in made.items()}
