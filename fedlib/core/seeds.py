"""Keyed random numbers: a result depends on (seed, purpose, round, client), never on what ran before."""
import hashlib
from contextlib import contextmanager

import torch


def key(*parts) -> int:
    """A 63-bit seed from any parts: key(0, "order", 3, "client 1")."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(*parts) -> torch.Generator:
    """A CPU generator of its own for these parts. Draws are made on the CPU so that every device sees the same ones."""
    return torch.Generator().manual_seed(key(*parts))


@contextmanager
def drawing(seed: int):
    """Inside, torch draws from this seed, as new layers do; outside, as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield
