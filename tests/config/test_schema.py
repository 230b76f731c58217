"""Settings declared by signatures; the same mistake gives the same message everywhere."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import copysign, inf, nan
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional

import pytest

from fssl.config import MANY, ByDataset, Device, OneOf, Range, Setting, check_value, parse, schema_of
from fssl.config.conditions import SCHEMAS
from fssl.config.schema import NO_LIMIT
from fssl.data.cards import CARDS
from fssl.deploy.home import init, server_part, site_part
from fssl.errors import UserError
from fssl.methods.fixmatch import FixMatch
from fssl.methods.names import METHODS, PLUGINS, build_method, declared_by, settings_of

Weight = Annotated[float, Range(0.0, 1e6)]


def signature(
    base: object,
    weight: Weight = 1.0,
    share: Annotated[Weight, Range(0, 1), "of all"] = 1,
    maybe: Weight | None = None,
    late: "Optional[int]" = None,  # noqa: UP045 (as files of others write it)
    on: bool = True,
    mode: Literal["a", "b"] = "a",
    network: Annotated[str, OneOf(("cnn",), own="network")] = "cnn",
    names: tuple[str, ...] = (),
    numbers: list[float] | None = None,
    rounds: Annotated[int, ByDataset(lambda card: card.rounds)] = 3,
    other: "int | str" = 3,
    bare=3,  # type: ignore[no-untyped-def]
) -> None:
    """Take one of each kind."""


SCHEMA = schema_of(signature)


def test_a_signature_is_a_schema() -> None:
    assert {key: setting.kind for key, setting in SCHEMA.items()} == {
        "base": None,
        "weight": float,
        "share": float,
        "maybe": float,
        "late": int,
        "on": bool,
        "mode": str,
        "network": str,
        "names": str,
        "numbers": float,
        "rounds": int,
        "other": None,
        "bare": None,
    }
    assert [key for key, setting in SCHEMA.items() if setting.is_required] == ["base"]
    assert [key for key, setting in SCHEMA.items() if setting.is_optional] == ["maybe", "late", "numbers"]
    assert SCHEMA["share"] == Setting("share", float, 1, limits=Range(0, 1), help="of all")  # the outer one counts
    assert SCHEMA["maybe"].limits == Range(0.0, 1e6)
    assert (SCHEMA["mode"].options, SCHEMA["network"].options) == (("a", "b"), ("cnn",))
    assert (SCHEMA["names"].many, SCHEMA["numbers"].many) == (tuple, list)
    assert (SCHEMA["rounds"].default_on(CARDS["svhn"]), SCHEMA["share"].default_on(CARDS["svhn"])) == (150, 1)


def test_records_are_read_like_functions() -> None:
    @dataclass(frozen=True)
    class Data:
        size: Annotated[int, Range(1, 9), "pixels"] = 3

    class Named(NamedTuple):
        size: Annotated[int, Range(1, 9), "pixels"] = 3

    assert schema_of(Data) == schema_of(Named) == {"size": Setting("size", int, 3, limits=Range(1, 9), help="pixels")}


def test_types_that_are_nowhere_are_one_line() -> None:
    def mine(tau: "Nothing" = 3) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(UserError, match=r"mine: cannot read the types of its settings: NameError: .*'Nothing'"):
        schema_of(mine)


def test_a_range_without_a_number_is_rejected_at_its_declaration() -> None:
    def mine(tau: Annotated[float, Range(1, 0)] = 0.6) -> None: ...

    def nobody(tau: Annotated[float, Range(0, nan)] = 0.6) -> None: ...

    def one(tau: Annotated[float, Range(1, 1)] = 1.0) -> None: ...

    with pytest.raises(UserError, match=r"^mine: setting 'tau' has the empty Range\(1, 0\)"):
        schema_of(mine)
    with pytest.raises(UserError, match=r"^nobody: .*Range\(0, nan\)"):
        schema_of(nobody)
    assert schema_of(one)["tau"].limits == Range(1, 1)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("weight", 2, 2.0),
        ("maybe", None, None),
        ("late", 2, 2),
        ("names", ["Ba\u0308r"], ("B\u00e4r",)),
        ("numbers", [1, 0.5], [1.0, 0.5]),
        ("network", "my.py:net", "my.py:net"),
    ],
)
def test_values_arrive_as_declared(key: str, value: Any, expected: Any) -> None:
    found = check_value(key, value, SCHEMA[key])
    assert (found, type(found)) == (expected, type(expected))
    assert [type(v) for v in found or ()] == [type(v) for v in expected or ()] if isinstance(expected, list) else True


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("weight", None, "weight = None: expected a number"),
        ("late", 2.5, "late = 2.5: expected a whole number"),
        ("on", 1, "on = 1: expected true or false"),
        ("network", "my.py", "names no function of the file"),
        ("names", [], "names = []: expected a list of strings like"),
        ("names", "cat", "names = 'cat': expected a list of strings like"),
        ("numbers", [1, True], "numbers = [1, True]: expected a list of numbers like"),
        ("numbers", [1, nan], "numbers = nan: expected a finite number"),
        ("numbers", [1, 10**400], "000: expected a finite number"),
        ("other", 3, "other: unsupported type; annotate it as bool, int, float or Literal"),
    ],
)
def test_values_that_do_not_fit_are_rejected(key: str, value: Any, message: str) -> None:
    with pytest.raises(UserError) as refused:
        check_value(key, value, SCHEMA[key])
    assert message in str(refused.value)


def test_no_range_allows_what_a_record_cannot_hold() -> None:
    endless = Setting("x", float, limits=Range(0, inf))
    assert check_value("x", 1e300, endless) == 1e300
    for value in (inf, nan, 10**400):
        with pytest.raises(UserError, match="expected a"):
            check_value("x", value, endless)
    assert [str(Range(0)), str(Range(0, inf)), str(Range(1e-9, 1)), str(Range(1, 65_535))] == [
        *("0 upwards", "0 upwards"),
        *("1e-09 to 1", "1 to 65535"),
    ]


def test_zero_has_no_sign_and_nothing_is_almost_zero() -> None:
    """Else `-0.0` would be another setting than 0, and 1e-320 one that does nothing."""
    found = check_value("weight", -0.0, SCHEMA["weight"])
    assert (found, copysign(1, found)) == (0, 1)
    assert check_value("weight", 1e-30, SCHEMA["weight"]) == 1e-30
    for tiny in (5e-324, 1e-31):
        with pytest.raises(UserError, match=f"weight = {tiny}: expected 0, or an absolute value of at least 1e-30"):
            check_value("weight", tiny, SCHEMA["weight"])


def test_every_number_of_a_run_has_an_end() -> None:
    """A rate alone may be as high as single precision allows: its first round shows whether that is too high."""
    schemas = {**SCHEMAS, **{name: settings_of(builder) for name, builder in {**METHODS, **PLUGINS}.items()}}
    numbers = {
        f"{name}.{key}": setting
        for name, schema in schemas.items()
        for key, setting in schema.items()
        if setting.kind in (int, float) and not setting.many
    }
    assert len(numbers) > 60
    endless = {key for key, s in numbers.items() if s.limits is None or s.limits.high >= NO_LIMIT}
    assert endless == {"train.lr"}


# One mistake, three places.


def mine(count: Annotated[int, Range(1, MANY)] = 2, device: Device = "auto") -> FixMatch:
    """Declare what a configuration and a deployment have too."""
    return FixMatch()


def in_configuration(what: str, value: Any, home: Path) -> str:
    section, key = {"count": ("train", "clients_per_round"), "device": ("compute", "device")}[what]
    return refusal(f"{section}.{key}", lambda: parse({section: {key: value}}))


def in_method(what: str, value: Any, home: Path) -> str:
    return refusal(f"method.{what}", lambda: build_method("mine", {what: value}))


def in_deployment(what: str, value: Any, home: Path) -> str:
    path, line = home / "server" / "server.toml", "quorum = 2"
    if what == "device":
        path, line = home / "site-1" / "site.toml", 'device = "auto"'
    key, text = line.split()[0], json.dumps(value).replace("NaN", "nan")
    path.write_text(path.read_text().replace(line, f"{key} = {text}"))
    return refusal(f"{path}: {key}", lambda: (server_part(home), site_part(home, "site-1")))


def refusal(name: str, read: Callable[[], object]) -> str:
    """What is said after the setting's name."""
    with pytest.raises(UserError) as refused:
        read()
    message = str(refused.value)
    assert message.startswith(name)
    return message.removeprefix(name)


@pytest.mark.parametrize(
    ("what", "value", "said"),
    [
        ("count", "two", " = 'two': expected a whole number"),
        ("count", 1.5, " = 1.5: expected a whole number"),
        ("count", True, " = true: expected a whole number"),
        ("count", nan, " = nan: expected a whole number"),
        ("count", 0, " = 0: expected a number from 1 to 100000000"),
        ("count", 10**31, f" = {10**31}: expected a number from 1 to 100000000"),
        ("count", [1, 2], " = [1, 2]: expected a whole number"),
        ("device", "cdua", " 'cdua' is unknown; did you mean 'cuda'? (known: auto, cpu, cuda)"),
        ("device", "gpu", " 'gpu' is unknown; did you mean 'cuda'? (known: auto, cpu, cuda)"),
        ("device", 5, " '5' is unknown (known: auto, cpu, cuda)"),
        ("device", ["cpu", "cuda"], " = ['cpu', 'cuda']: expected one of auto, cpu, cuda"),
    ],
)
def test_one_mistake_has_one_wording(
    what: str, value: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a list could stand for several runs, that is said after it."""
    monkeypatch.setitem(METHODS, "mine", mine)
    init(tmp_path / "home", 2)
    messages = [place(what, value, tmp_path / "home") for place in (in_configuration, in_method, in_deployment)]
    assert [message.partition("; for several runs")[0] for message in messages] == [said] * 3
    assert ["for several runs" in message for message in messages] == [isinstance(value, list)] * 2 + [False]


@pytest.mark.parametrize("value", [nan, inf, -1, "much", [0.1, 0.2]])
def test_numbers_of_configurations_and_methods_are_rejected_alike(value: Any) -> None:
    limits = declared_by("sage")["mu_u"].limits
    ours = refusal("method.mu_u", lambda: build_method("sage", {"mu_u": value}))
    theirs = refusal("train.lr", lambda: parse({"train": {"lr": value}}))
    assert ours.replace("mu_u", "lr").replace("method", "train") == theirs.replace("0 upwards", str(limits)).replace(
        "1e+30", "1000000"
    )


def test_a_range_is_shown_in_the_digits_that_fit() -> None:
    ranges = Range(0, 100_000_000), Range(0.5)
    assert [str(each) for each in ranges] == [f"{each}" for each in ranges] == ["0 to 100000000", "0.5 upwards"]
    assert [f"{each:g}" for each in ranges] == ["0 to 1e+08", "0.5 upwards"]
