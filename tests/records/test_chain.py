"""Settings, record, checkpoints and model belong together: what was changed, or is another run's, shows."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fssl as package
from fssl.errors import UserError
from fssl.inference.trained import load_trained
from fssl.records.chain import Chain, linked, read_entry, read_start
from fssl.records.sealing import read_facts, read_probe, write_facts, write_probes
from fssl.records.store import RunFolder
from fssl.records.tensors import sealed, unseal
from fssl.reports.page.write import write_page
from helpers.command import SMALL, Fssl, Said, outcome

RUN, ANOTHER = "0123456789abcdef", "fedcba9876543210"
FINISHED = ("run", "smoke", *SMALL, "--set", "train.rounds=4")


def texts(*lines: str) -> list[bytes]:
    return [line.rstrip("\n").encode() for line in lines]


def record(count: int, run: str = RUN) -> list[bytes]:
    """Lines of a made-up run."""
    out, after = [], run
    for round in range(1, count + 1):
        out += texts(linked({"round": round, "accuracy": 10.5 * round}, after))
        entry = read_entry(out[-1])
        assert entry
        after = entry.check
    return out


def test_a_line_names_the_one_before_it_and_itself() -> None:
    """By hand: the first 16 digits of the SHA-256 of the text before the check."""
    text = linked({"round": 1}, "0123456789abcdef")
    assert text == '{"round": 1, "after": "0123456789abcdef", "check": "0c26ebd9805739b0"}\n'
    assert read_entry(texts(text)[0]) == ({"round": 1}, "0123456789abcdef", "0c26ebd9805739b0")


def test_a_whole_record_has_no_fault() -> None:
    start = read_start(RUN, record(5))
    assert (len(start.lines), start.fault) == (5, None)
    assert start.marks[0] == RUN
    assert len(set(start.marks)) == 6


def test_every_flipped_bit_ends_the_record_before_it() -> None:
    whole = record(3)
    for position in range(len(whole[1])):
        flipped = bytes([*whole[1][:position], whole[1][position] ^ 1, *whole[1][position + 1 :]])
        start = read_start(RUN, [whole[0], flipped, whole[2]])
        assert len(start.lines) == 1, position
        chain = Chain(RUN)
        assert [line is None for line in chain.follow([whole[0], flipped, whole[2]])] == [False, True, False]
        assert chain.fault is None  # the damaged line shows by itself, and those around it are whole


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda lines, other: lines[:2] + lines[3:], "the line of round 4 does not follow the one before it"),
        (lambda lines, other: lines[:2] + other[2:], "the line of round 3 does not follow the one before it"),
        (lambda lines, other: other, "config.toml, or the beginning of rounds.jsonl, was edited"),
        (lambda lines, other: lines[1:], "config.toml, or the beginning of rounds.jsonl, was edited"),
    ],
    ids=["a line is gone", "the rest is another's", "other settings", "the beginning is gone"],
)
def test_lines_that_do_not_belong_together(
    change: Callable[[list[bytes], list[bytes]], list[bytes]], fault: str
) -> None:
    chain = Chain(RUN)
    assert all(chain.follow(change(record(4), record(4, ANOTHER))))
    assert chain.fault
    assert chain.fault.endswith(fault)


def test_a_line_without_checks_is_damaged() -> None:
    first, _, third = record(3)
    bare = texts('{"round": 2, "accuracy": 21.0}')
    assert read_start(RUN, [first, *bare, third]) == read_start(RUN, [first])
    assert [line and line["round"] for line in Chain(RUN).follow([first, *bare, third])] == [1, None, 3]


def test_facts_that_were_changed_are_no_facts(tmp_path: Path) -> None:
    facts, file = {"result": 71.25, "rounds": 8}, tmp_path / "facts.json"
    write_facts(file, facts, indent=1)
    assert read_facts(file) == facts
    file.write_text(file.read_text().replace("71.25", "91.25"))
    assert read_facts(file) == {}
    file.write_text(json.dumps(facts))
    assert read_facts(file) == {}


def test_every_flipped_bit_of_sealed_tensors_shows_or_changes_nothing(tmp_path: Path) -> None:
    tensors = {"w": torch.linspace(-1, 1, 6).reshape(2, 3), "half": torch.ones(3, dtype=torch.bfloat16)}
    tensors |= {"flag": torch.tensor(True), "none": torch.zeros(0)}
    whole, file = sealed(tensors, {"round": 3, "classes": ["ä", "b"]}), tmp_path / "t.safetensors"
    file.write_bytes(whole)
    assert unseal(file).facts == {"round": 3, "classes": ["ä", "b"]}
    noticed = 0
    for position in range(len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            found = unseal(file)
        except ValueError:
            noticed += 1
            continue
        assert all(torch.equal(found.tensors[name], t) for name, t in tensors.items()), position
        assert found.facts in ({"round": 3, "classes": ["ä", "b"]}, None), position
    assert noticed > 0.9 * len(whole)


def test_probes_are_written_as_tensors_are_and_every_flipped_bit_shows_or_changes_nothing(tmp_path: Path) -> None:
    """By numpy alone: 1 + 3 and 2 + 4 over two clients."""
    arrays = {"n_by_class": np.array([[1, 2], [3, 4]], np.float32), "clients": np.array([3, 5])}
    file = tmp_path / "000007.safetensors"
    write_probes(file, 7, arrays)
    whole = file.read_bytes()
    assert whole == sealed({name: torch.from_numpy(array) for name, array in arrays.items()}, {"round": 7})
    noticed = 0
    for position in range(len(whole)):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        found = read_probe(file, "n_by_class")
        noticed += found is None
        assert found is None or found.tolist() == [4, 6], position
    assert noticed > 0.9 * len(whole)


# A real run, finished.


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    package.run(package.experiment("smoke", "train.rounds=4", "train.steps_per_round=2", "compute.device=cpu"), folder)
    return folder


@pytest.fixture
def run(finished: Path, fssl: Fssl) -> Path:
    """A copy, in the folder that commands work in."""
    return Path(shutil.copytree(finished, "run"))


def again(fssl: Fssl, *words: str) -> Said:
    return fssl("run", "run", "--resume", "--set", "train.rounds=5", *words)


def test_a_digit_that_was_changed_is_computed_again_or_rejected(run: Path, fssl: Fssl) -> None:
    """Round 4 has a checkpoint before it, round 2 has none left."""
    record = run / "rounds.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    forged = [line.replace('"steps": ', '"steps": 1', 1) for line in lines]
    record.write_text("".join([*lines[:3], forged[3]]))
    answer = fssl("compare", "run")
    skipped = "run/rounds.jsonl: line 4 is damaged or half-written, and skipped"
    assert f"{skipped}; `fssl records accept` accepts an edited record\n" in answer.out
    assert f"{skipped}; `fssl records accept`" in fssl("show", "run").out
    record.write_text("".join([*lines[:3], lines[3][:50]]))  # half of it, but not edited
    assert f"{skipped}\n" in fssl("compare", "run").out
    record.write_text("".join(forged[:2]))
    answer = fssl("show", "run")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "no line of rounds.jsonl can be read; `fssl records accept` accepts an edited record" in answer.err
    record.write_text("".join([*lines[:3], forged[3]]))
    answer = again(fssl)
    assert answer.code == 0
    assert "rounds.jsonl is damaged after round 3; later rounds are computed again" in answer.out
    record.write_text("".join([lines[0], forged[1], *lines[2:]]))
    before = record.read_bytes()
    answer = again(fssl)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "rounds.jsonl is damaged after round 1, before the oldest checkpoint (round 4)" in answer.err
    assert record.read_bytes() == before


def test_settings_that_were_changed_are_not_those_of_the_record(run: Path, fssl: Fssl) -> None:
    settings = run / "config.toml"
    text = settings.read_text()
    settings.write_text(text.replace("lr = 0.1\n", "lr = 0.3\n"))
    assert text != settings.read_text()
    answer = again(fssl)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "run: config.toml, or the beginning of rounds.jsonl, was edited" in answer.err
    answer = fssl("show", "run")
    assert (answer.code, "config.toml" in answer.err, "`fssl records accept`" in answer.err) == (2, True, True)
    answer = fssl("predict", "run")
    assert (answer.code, "is from another run than" in answer.err) == (2, True)
    settings.write_text(text.replace('device = "cpu"', 'device = "auto"'))  # which may be another one
    assert again(fssl).code == 0


def accept(fssl: Fssl) -> Said:
    return fssl("records", "accept", "run", "--remark", "a typing error")


def test_an_edited_record_is_left_out_until_it_is_accepted(run: Path, fssl: Fssl) -> None:
    before = (run / "rounds.jsonl").read_bytes()
    assert (accept(fssl).code, (run / "rounds.jsonl").read_bytes()) == (2, before)  # nothing was edited
    (run / "config.toml").write_text((run / "config.toml").read_text().replace("lr = 0.1\n", "lr = 0.3\n"))
    with pytest.raises(UserError, match="was edited"):
        package.runs(run)
    for command in ("show", "compare", "tables", "figures", "report"):
        answer = fssl(command, "run")
        assert (answer.code, "config.toml" in answer.err) == (2, True)
    said = accept(fssl)
    assert (said.code, said.out.startswith("run: accepted (config.toml")) == (0, True)
    (accepted,) = package.runs(run)
    assert (accepted.config.train.lr, len(accepted.lines), accepted.remark) == (0.3, 4, "a typing error")
    remark = "an edited record, accepted: a typing error"
    out = fssl("compare", "run", "--tex", "t.tex").out
    assert "7!" in out
    assert "! a record that was edited and accepted" in out
    assert f"run: {remark}" in out
    assert "(! edited records, accepted)" in Path("t.tex").read_text()
    assert remark in fssl("show", "run").out
    assert fssl("tables", "run").code == 0
    assert any(remark in note for note in write_page([run], Path("report.html"))["notes"])
    answer = again(fssl)
    assert (answer.code, "an accepted record cannot be resumed" in answer.err) == (2, True)


def test_an_accepted_record_may_be_edited_and_accepted_again(run: Path, fssl: Fssl) -> None:
    """An edited line was left out as a damaged one is; one that cannot be read stays damaged."""
    record = run / "rounds.jsonl"
    record.write_text(record.read_text().replace('"round": 3', '"note": "by hand", "round": 3'))
    assert [line["round"] for line in package.runs(run)[0].lines] == [1, 2, 4]
    assert "(rounds.jsonl: the line of round 3 was edited)" in accept(fssl).out
    assert [line.get("note") for line in package.runs(run)[0].lines] == [None, None, "by hand", None]
    assert accept(fssl).code == 2
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join([lines[0], "half a li\n", *lines[2:]]))
    assert accept(fssl).code == 2  # damaged, not edited
    record.write_text(
        "".join([lines[0], "half a li\n", lines[2], lines[3].replace('"round": 4', '"to": 1, "round": 4')])
    )
    assert accept(fssl).code == 0
    (accepted,) = package.runs(run)
    assert ([line["round"] for line in accepted.lines], accepted.damaged) == ([1, 3, 4], [2])


def test_a_remark_is_part_of_the_seal(run: Path, fssl: Fssl) -> None:
    record = run / "rounds.jsonl"
    record.write_text(record.read_text().replace('"round": 3', '"note": "by hand", "round": 3'))
    assert fssl("records", "accept", "run", "--remark", " ").code == 2
    assert accept(fssl).code == 0
    file = run / "accepted.json"
    file.write_text(file.read_text().replace("a typing error", "nothing at all"))
    assert "was edited" in fssl("show", "run").err
    file.unlink()
    assert "was edited" in fssl("show", "run").err


@pytest.mark.slow
def test_another_runs_checkpoint_is_rejected(run: Path, fssl: Fssl) -> None:
    assert fssl(*FINISHED, "--set", "seed=8", "--out", "other").code == 0
    shutil.rmtree(run / "checkpoint")
    shutil.copytree("other/checkpoint", run / "checkpoint")
    before = outcome(run)
    answer = again(fssl)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "no checkpoint in run/checkpoint is usable (damaged, or from another run)" in answer.err
    assert outcome(run) == before


@pytest.mark.parametrize("text", ["x", "", "seed = 7\n", '[data]\nname = "digits"\n'])
def test_a_folder_with_settings_of_its_own_is_not_taken(fssl: Fssl, text: str) -> None:
    Path("mine").mkdir()
    Path("mine/config.toml").write_text(text)
    for more in ((), ("--resume",)):
        answer = fssl(*FINISHED, "--out", "mine", *more)
        assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert [p.name for p in Path("mine").iterdir()] == ["config.toml"]
    assert Path("mine/config.toml").read_text() == text


# The model.


def test_a_model_describes_itself(finished: Path) -> None:
    facts = unseal(finished / "model.safetensors").facts
    assert facts
    assert facts.pop("run") == RunFolder(finished).run_id
    expected = {"method": "sage", "classes": [str(k) for k in range(10)], "size": 8, "channels": 1, "round": 4}
    assert {key: facts[key] for key in expected} == expected
    assert (len(facts["mean"]), len(facts["std"])) == (1, 1)
    assert load_file(finished / "model.safetensors").keys() == unseal(finished / "model.safetensors").tensors.keys()


@pytest.mark.slow
def test_a_damaged_model_is_never_used(run: Path) -> None:
    """Flips spread over the file: rejected, or without any effect on the weights."""
    file = run / "model.safetensors"
    whole, right = file.read_bytes(), load_trained(run, torch.device("cpu")).weights
    refused = 0
    for position in range(0, len(whole), len(whole) // 300):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 0x40]) + whole[position + 1 :])
        try:
            weights = load_trained(run, torch.device("cpu")).weights
        except UserError:
            refused += 1
        else:
            assert all(torch.equal(weights.params[name], t) for name, t in right.params.items()), position
    assert refused > 280


def with_first(tensors: dict[str, torch.Tensor], first: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**tensors, min(tensors): first}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {n: v.double() for n, v in t.items()}, "is torch.float64 of shape"),
        (lambda t: {n: v.int() for n, v in t.items()}, "is torch.int32 of shape"),
        (lambda t: {n: v * float("nan") for n, v in t.items()}, "has values that are not finite"),
        (lambda t: {n: v * float("inf") for n, v in t.items()}, "has values that are not finite"),
    ],
    ids=["float64", "int32", "nan", "infinite"],
)
def test_weights_that_cannot_be_right_are_rejected(
    run: Path, fssl: Fssl, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]], words: str
) -> None:
    file = run / "model.safetensors"
    tensors, facts = unseal(file)
    assert facts
    file.write_bytes(sealed(change(tensors), facts))
    answer = fssl("predict", "run")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert words in answer.err


def test_a_model_of_another_run_or_without_a_checksum_is_rejected(run: Path, fssl: Fssl) -> None:
    assert fssl(*FINISHED, "--set", "seed=8", "--out", "other").code == 0
    file = run / "model.safetensors"
    tensors = unseal(file).tensors
    shutil.copy("other/model.safetensors", file)
    assert "is from another run than run/config.toml" in fssl("predict", "run").err
    save_file(tensors, file)
    assert "has no checksum, so this run did not write it" in fssl("predict", "run").err


def test_damaged_probes_are_left_out(run: Path, fssl: Fssl) -> None:
    shutil.copy(run / "probes/000003.safetensors", run / "probes/000004.safetensors")
    answer = fssl("report", "run")
    assert (answer.code, "1 note on the records" in answer.err) == (0, True)
