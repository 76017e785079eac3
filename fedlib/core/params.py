"""Arithmetic on dicts of tensors: what a net sends, and what a server computes from it.

A message is a dict whose values are tensors or dicts of tensors: {"params": {...}, "n": tensor(120)}. Nothing else
travels.
"""
import functools

import torch
from torch import nn

NORM = (nn.modules.batchnorm._BatchNorm, nn.GroupNorm, nn.LayerNorm, nn.modules.instancenorm._InstanceNorm)


def each(op: str, first: dict, *others) -> dict:
    """{k: op(first[k], other[k], ...)}: entry by entry, but a GPU is asked once for all of them.

    op: one of torch's foreach operations, as "sub" or "lerp". An other that is no dict is a number for all entries.
    """
    others = ([o[k] for k in first] if isinstance(o, dict) else o for o in others)
    return dict(zip(first, getattr(torch, f"_foreach_{op}")(list(first.values()), *others))) if first else {}


def snapshot(net: nn.Module, without=()) -> dict:
    """Copies of the net's floating-point entries, parameters and buffers, except the names in `without`.

    Integer entries (batch-norm's step counter) never travel: averaging them means nothing.
    """
    own = {k: v for k, v in net.state_dict().items() if v.is_floating_point() and k not in without}
    return copied({k: torch.empty_like(v) for k, v in own.items()}, own)


@torch.no_grad()
def load_params(net: nn.Module, params: dict) -> nn.Module:
    """Copy the entries into the net; names that are not in `params` keep their values."""
    copied(net.state_dict(), params)
    return net


def copied(target: dict, source: dict) -> dict:
    """The target, into which the entries of the source were copied."""
    if source:
        torch._foreach_copy_([target[k] for k in source], list(source.values()))
    return target


def mean(dicts: list[dict], weights) -> dict:
    """sum_i w_i d_i / sum_i w_i, entry by entry."""
    weights = torch.as_tensor([float(w) for w in weights], dtype=torch.float64)
    shares = (weights / weights.sum()).tolist()
    parts = (each("mul", d, s) for s, d in zip(shares, dicts, strict=True))
    return functools.reduce(functools.partial(each, "add"), parts)


def names(net: nn.Module, types) -> set[str]:
    """State-dict names that belong to modules of these types."""
    return {f"{prefix}.{k}" if prefix else k
            for prefix, module in net.named_modules() if isinstance(module, types)
            for k in module.state_dict()}


def buffers(net: nn.Module) -> set[str]:
    """State-dict names that are not trainable parameters: batch-norm's running statistics."""
    return set(net.state_dict()) - {k for k, _ in net.named_parameters()}


def flatten(message: dict, prefix: str = "") -> dict:
    """{"params": {"w": t}} -> {"params/w": t}: the flat form that safetensors stores."""
    flat = {}
    for k, v in message.items():
        flat.update(flatten(v, f"{prefix}{k}/") if isinstance(v, dict) else {f"{prefix}{k}": v})
    return flat


def unflatten(flat: dict) -> dict:
    """The inverse of `flatten`."""
    message = {}
    for path, value in flat.items():
        *parents, leaf = path.split("/")
        place = message
        for k in parents:
            place = place.setdefault(k, {})
        place[leaf] = value
    return message


def nbytes(message: dict) -> int:
    """Bytes of the tensors in a message: the communication cost is counted from real messages."""
    return sum(t.numel() * t.element_size() for t in flatten(message).values())


def to_device(message: dict, device) -> dict:
    """The message with every tensor on the device, its entries in the order of their names.

    A transport may keep no order (safetensors does not), and sums over entries round by theirs.
    """
    return {k: to_device(v, device) if isinstance(v, dict) else v.to(device) for k, v in sorted(message.items())}
