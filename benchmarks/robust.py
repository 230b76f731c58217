"""What malicious clients do to each rule of the server: the table of docs/robust.md.

    python benchmarks/robust.py [--out runs/malicious] [words for `fssl run settings/malicious`]

Trains what is missing of the preset's 195 runs, then prints the accuracy of the last round: mean and standard deviation
over seeds. A run whose model is no longer finite stops; it counts 10 %, what a guess gets right.
"""

import argparse
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from fssl.records.store import RunFolder

GUESS = 10.0
RULES = ("mean", "median", "trimmed", "clipped", "krum")
ATTACKS = ("none", "sign", "scale", "noise", "labels")


def accuracies(out: Path) -> dict[tuple[str, int, str], list[float]]:
    """By attack, number of attackers and rule: the last test of each seed."""
    found = defaultdict(list)
    for file in sorted(out.rglob("config.toml")):
        folder = RunFolder(file.parent)
        config, lines = folder.config(), folder.rounds()
        attackers = 0 if config.attack.kind == "none" else config.attack.attackers
        is_whole = len(lines) == config.rounds
        found[config.attack.kind, attackers, config.server.aggregate].append(
            lines[-1]["accuracy"] if is_whole else GUESS
        )
    return found


def table(out: Path) -> str:
    found = accuracies(out)
    lines = [f"| attack | {' | '.join(RULES)} |", "|---|" + "---|" * len(RULES)]
    for kind in ATTACKS:
        attackers = (1, 2, 3) if kind != "none" else (0,)
        cells = [", ".join(cell(found.get((kind, n, rule), [])) for n in attackers) for rule in RULES]
        lines.append(f"| {kind if kind == 'none' else f'`{kind}`'} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cell(values: list[float]) -> str:
    if not values:
        return "–"
    spread = f"±{statistics.stdev(values):.0f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.0f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/malicious"))
    given, words = parser.parse_known_args()
    command = [sys.executable, "-m", "fssl", "run", "settings/malicious", "--out", str(given.out), "--resume", *words]
    subprocess.run(command, check=False)  # runs that blow up fail
    print(table(given.out))


if __name__ == "__main__":
    main()
