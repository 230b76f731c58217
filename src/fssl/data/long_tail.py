"""The long tail: the number of images of each class, most common first. Without NumPy, for the settings."""

from math import floor

ROUNDING = 1e-9  # largest rounding error of a power below a whole number


def class_sizes(head: int, imbalance: float, num_classes: int) -> list[int]:
    """Return the images of each class k: floor(head * imbalance^(-k / (C - 1))); a negative imbalance reverses them.

    Examples:
        >>> class_sizes(1000, 100, 5)
        [1000, 316, 100, 31, 10]
        >>> class_sizes(1000, -100, 5)
        [10, 31, 100, 316, 1000]
    """
    last, ratio = max(1, num_classes - 1), abs(imbalance)
    sizes = [floor(head * ratio ** (-k / last) + ROUNDING) for k in range(num_classes)]
    return sizes[::-1] if imbalance < 0 else sizes
