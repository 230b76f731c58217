"""The checksum of a function: of its source and what it uses in its file, and of nothing else."""

import pytest

from fssl.system.user_code import source_digest

FILE = """
import math
from helpers import twice, thrice

FACTOR = 3
OTHER = 4

class Base:
    def scale(self):
        return FACTOR

class Rule(Base):
    limit: "Limit"

class Limit:
    most = 5

def helper(x):
    return math.sqrt(x)

def mine(tau=0.5):
    return Rule(), helper(tau)

def yours():
    return OTHER
"""


def same(text: str, function: str = "mine") -> bool:
    return source_digest(text, function) == source_digest(FILE, function)


@pytest.mark.parametrize(
    "text",
    [
        "# a remark\n" + FILE,
        '"""What this file is for."""\n' + FILE,
        FILE.replace("def mine(tau=0.5):", 'def mine(tau=0.5):\n    "What it is."'),
        FILE.replace("Rule(), helper(tau)", "(\n        Rule(),\n        helper(tau),  # both\n    )"),
        FILE.replace("OTHER = 4", "OTHER = 5"),
        FILE.replace("return OTHER", "return twice(OTHER)"),
        FILE + "\ndef new():\n    return mine()\n",
    ],
)
def test_what_does_not_matter(text: str) -> None:
    assert same(text)


@pytest.mark.parametrize(
    "text",
    [
        FILE.replace("tau=0.5", "tau=0.6"),
        FILE.replace("FACTOR = 3", "FACTOR = 4"),  # through a class, its base and a method
        FILE.replace("math.sqrt", "math.cbrt"),
        FILE.replace("import math", "import cmath as math"),
        FILE.replace("most = 5", "most = 6"),  # through an annotation in quotes
        FILE + "\nFACTOR = 9\n",  # bound twice
        FILE + "\nhelper.speed = 3\n",  # acts on import
        FILE + "\nif FACTOR:\n    helper = print\n",
        FILE.replace("return Rule(), helper(tau)", "return Rule(), helper(tau), yours()"),
    ],
)
def test_what_matters(text: str) -> None:
    assert not same(text)


def test_names_looked_up_by_text_make_all_of_the_file_count() -> None:
    text = FILE.replace("helper(tau)", "globals()['helper'](tau)")
    assert source_digest(text, "mine") != source_digest(text.replace("OTHER = 4", "OTHER = 5"), "mine")


def test_functions_of_one_file_have_their_own() -> None:
    assert source_digest(FILE, "mine") != source_digest(FILE, "yours")
    assert same(FILE.replace("FACTOR = 3", "FACTOR = 4"), "yours")
