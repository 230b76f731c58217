"""The privacy of one client in a run: with clipping and noise, by Google's accountant (package dp-accounting)."""

from collections import Counter
from importlib.util import find_spec
from typing import Any, NamedTuple

from ..config import Config
from ..seeds import cohort

REPLACED = 2.0  # replacing one client's clipped update moves the sum by at most twice the clip
FEWEST_MASKED = 3  # fewest uploads in a mean: of two, each client could compute the other's
MOST_MASKED = 1000  # more clients would leave too few whole numbers for each value
MASK_BITS = 28  # bits of the seed of a mask between two clients, in Flower 1.41


class Spent(NamedTuple):
    """A client's (epsilon, delta) after a run, against replacing it by a client with any other images.

    `hidden`: against an adversary with all global models who does not know the participants. `known`: against one who
    also knows them, such as the server and everyone with the seed or the record; then only the rounds of the busiest
    client count.
    """

    hidden: float
    known: float
    delta: float
    rounds: int
    most_rounds: int


def spent(config: Config, rounds: int) -> Spent | None:
    """Return the privacy spent after this many rounds; None without noise, or without the accountant."""
    noise, delta = config.privacy.noise, config.privacy.delta
    if not noise or not find_spec("dp_accounting"):
        return None
    most = most_rounds(config, rounds)
    known = epsilon(noise, most, delta)
    hidden = epsilon(noise, rounds, delta, (config.drawable, config.train.clients_per_round))
    return Spent(min(hidden, known), known, delta, rounds, most)


def most_rounds(config: Config, rounds: int) -> int:
    """Return the number of rounds of the client that is drawn most often."""
    drawn: Counter[int] = Counter()
    for round in range(1, rounds + 1):
        drawn.update(cohort(config.seed, config.drawable, config.train.clients_per_round, round))
    return max(drawn.values())


def epsilon(noise: float, rounds: int, delta: float, sampled: tuple[int, int] | None = None) -> float:
    """Return the epsilon of composed Gaussian mechanisms; `sampled` is (clients, drawn) if the draw is secret."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    event: Any = dp.GaussianDpEvent(noise / REPLACED)
    if sampled and sampled[1] < sampled[0]:
        event = dp.SampledWithoutReplacementDpEvent(*sampled, event)
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp.SelfComposedDpEvent(event, rounds))
    return float(accountant.get_epsilon(delta))


def privacy_notes(config: Config) -> list[str]:
    """Return notes on the guarantee for the user, a line each."""
    privacy = config.privacy
    if privacy.aggregation == "secagg+":
        return [f"privacy: secagg+ hides uploads from a reader, not from an attacker: mask seeds have {MASK_BITS} bits"]
    if privacy.clip is None:
        return []
    if not privacy.noise:
        return ["privacy: updates are clipped, but without privacy.noise there is no guarantee"]
    found = spent(config, config.rounds)
    if found is None:
        return ["privacy: epsilon is not computed; install the accountant with pip install 'fssl[privacy]'"]
    lines = [
        f"privacy of one client after {found.rounds} rounds, delta {found.delta:g}: epsilon {found.hidden:.3g} against"
        f" an adversary with all models, {found.known:.3g} if it also knows the participants (at most"
        f" {found.most_rounds} rounds)"
    ]
    if config.model.norm == "batch":
        lines.append("privacy: BatchNorm's running statistics are not covered; model.norm = 'group' has none")
    return lines
