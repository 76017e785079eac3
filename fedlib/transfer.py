"""In-domain and out-of-domain accuracy: how well each client's model does on its own data, and on the others'."""


def measured(clients: list, accuracies: list[dict]) -> dict:
    """What a round's record holds: {"cross": by domain and domain, "transfer": see `scores`}.

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
            "transfer": scores(acc, {c.id: len(c.test) for c in clients})}


def scores(acc: dict, n: dict) -> dict:
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
