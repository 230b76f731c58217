"""Flower's SuperNode, whose port on this machine asks for a secret.

    python -m fssl.engines.flower.supernode FOLDER PORT [options of flower-supernode]

FOLDER, inside the site's folder, is readable only by its user. PORT is the SuperNode's.
"""

import sys
from pathlib import Path

from ...errors import complain
from ...records.audit import TRAIL, append
from .bundle import app_digest, check_app
from .internals import run_supernode
from .superexec import isolated, start_superexec


def main() -> None:
    folder, port, words = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    start_superexec(folder, f"127.0.0.1:{port}", None)
    app_digest()  # before the source on disk can change

    def rejected(reason: str) -> None:
        complain(reason)
        append(folder.parent / TRAIL, "rejected", reason=reason)

    run_supernode([*words, "--port", port, *isolated(folder)], check_app, rejected)


if __name__ == "__main__":
    main()
