"""Which rounds of a record count. A rule is applied on reading, so one set of records answers every rule."""
from fedlib.core.errors import UserError, pick


def select(record: dict, rule: str) -> dict[str, float]:
    """Accuracy (%) per domain by a rule of selection."""
    chosen = SELECT[pick("selection", rule, SELECT)](record["rounds"])
    sample = {d: [r["acc"][d] for r in chosen if d in r["acc"]] for d in chosen[-1]["acc"]}
    return {d: sum(values) / len(values) for d, values in sample.items()}


def _best(rounds, key):
    if key not in rounds[0]:
        raise UserError(f"these runs have no validation split, so '{key}' cannot choose a round "
                        f"(choose last, last5 or best-test)")
    return max(rounds, key=lambda r: sum(r[key].values()) / len(r[key]))


def _least_loss(rounds):
    if "val_loss" not in rounds[0]:
        raise UserError("these runs have no validation split, so its loss cannot choose a round")
    return min(rounds, key=lambda r: (r["val_loss"] != r["val_loss"], r["val_loss"]))   # the first of equal ones


SELECT = {"last": lambda rounds: rounds[-1:],
          "last5": lambda rounds: rounds[-5:],
          "best-val": lambda rounds: [_best(rounds, "val")],
          "best-val-loss": lambda rounds: [_least_loss(rounds)],
          "best-test": lambda rounds: [_best(rounds, "acc")]}
