"""Classes by how many labeled images the federation has of them: many, medium and few, and in thirds by rank."""

import numpy as np
from numpy.typing import NDArray

MANY, FEW = 100, 20  # labeled images: "many" has more, "few" has fewer
THIRDS = ("first_third", "second_third", "last_third")


def class_groups(labeled: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Which classes are in each group, from the labeled images of each class.

    Examples:
        >>> groups = class_groups(np.array([500, 100, 20, 5]))
        >>> [int(groups[name].sum()) for name in ("many", "medium", "few", *THIRDS)]
        [1, 2, 1, 2, 1, 1]
    """
    many, few = labeled > MANY, labeled < FEW
    groups = {"many": many, "medium": ~many & ~few, "few": few}
    ranked = np.array_split(np.argsort(-labeled, kind="stable"), len(THIRDS))
    return groups | {name: np.isin(np.arange(len(labeled)), own) for name, own in zip(THIRDS, ranked, strict=True)}
