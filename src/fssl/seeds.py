"""Random streams by name: each draw depends on (seed, purpose, round, client), never on call order."""

import hashlib
from functools import cache

import numpy as np


def stream(seed: int, purpose: str, round: int = 0, client: int = -1) -> np.random.Generator:
    """Return an independent generator for one purpose, the same on every platform and Python version."""
    key = hashlib.sha256(f"{seed}/{purpose}/{round}/{client}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(key[:16], "little")))


def cohort(seed: int, clients: int, per_round: int, round: int) -> list[int]:
    """Return the clients drawn in a round (counted from 1), in the order drawn.

    One legacy generator walks through the rounds, as in the released code, so that seed 7 draws the
    paper's clients. A resumed run replays the earlier rounds once, so no state has to be saved.
    """
    rng, drawn = walk(seed, clients, per_round)
    while len(drawn) < round:
        drawn.append([int(k) for k in rng.choice(clients, per_round, replace=False)])
    return [*drawn[round - 1]]


@cache
def walk(seed: int, clients: int, per_round: int) -> tuple[np.random.RandomState, list[list[int]]]:
    """Return the generator, and its draws so far."""
    return np.random.RandomState(seed), []
