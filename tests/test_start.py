"""A warm start: given weights are the first broadcast, mismatches are one line, and a run resumes without the file."""

import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fssl.config import load_toml
from fssl.core.experiment import prepare
from fssl.core.federation import Federation
from fssl.engines.local import LocalEngine
from fssl.models import build_net
from fssl.records.tensors import sealed
from fssl.reports.groups import repetitions
from fssl.reports.runs import find_runs
from fssl.start import with_absolute_start
from helpers.command import SMALL, Fssl, outcome, records
from helpers.small import tiny_config

ROOT = Path(__file__).parents[1]
SIZES = (1, 10, 1)  # of the smoke run's network: channels, classes, width


def train(fssl: Fssl, out: str, *settings: str) -> tuple[int, str, str]:
    words = [word for setting in settings for word in ("--set", setting)]
    code, said, complaint = fssl("run", "smoke", *SMALL, *words, "--out", out)
    return code, said, complaint  # type: ignore[return-value]


def first_of(*settings: str) -> dict[str, Tensor]:
    """What the server holds before the first round."""
    engine = LocalEngine(Federation(prepare(tiny_config("data.name=digits", *settings))))
    return {**engine.snapshot.server.weights.params, **engine.snapshot.server.weights.buffers}


def plain(name: str = "cnn", classes: int = 10, seed: int = 99, **choices: str) -> dict[str, Tensor]:
    """Weights that no run made, by their names."""
    first = build_net(name, 1, classes, 1, seed=seed, **choices).first
    return {**first.params, **first.buffers}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.slow
def test_a_run_s_model_is_the_first_broadcast(fssl: Fssl) -> None:
    assert train(fssl, "labels", "method.name=fedavg")[0] == 0
    trained = {k.partition(".")[2]: t for k, t in load_file("labels/model.safetensors").items()}
    for place in ("labels", "labels/model.safetensors"):
        assert same(first_of(f"model.start={place}"), trained)
    assert not same(first_of(), trained)
    assert train(fssl, "next", "model.start=labels")[0] == 0
    begin = load_file("next/checkpoint/round-000001.safetensors")
    assert train(fssl, "cold")[0] == 0
    assert not torch.equal(
        begin["server.weights.params.body.0.weight"],
        load_file("cold/checkpoint/round-000001.safetensors")["server.weights.params.body.0.weight"],
    )
    model = load_toml(Path("next/config.toml"), "next")["model"]
    assert (model["start"], len(model["start_digest"])) == ("labels", 16)


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_a_state_dict_is_read_without_executing_it(wrapper: str | None, fssl: Fssl) -> None:
    given = plain()
    counted = {**given, "body.1.num_batches_tracked": torch.tensor(3)}  # as nn.BatchNorm2d saves it
    torch.save({wrapper: counted, "epoch": 3} if wrapper else counted, "w.pth")
    assert same(first_of("model.start=w.pth"), given)


def test_a_torn_archive_is_one_line(fssl: Fssl) -> None:
    """Its directory is damaged."""
    torch.save(plain(), "w.pt")
    content = Path("w.pt").read_bytes()
    Path("w.pt").write_bytes(content.replace(b"PK\x01\x02", b"PK\x01\x00"))
    code, _, said = train(fssl, "run", "model.start=w.pt")
    assert code == 2
    assert said.startswith("fssl: model.start = 'w.pt' cannot be read as a state dict (BadZipFile: ")
    assert said.count("\n") == 1


def test_parameters_are_taken_as_their_numbers(fssl: Fssl) -> None:
    """Also where statistics were saved as parameters."""
    torch.save(plain(), "numbers.pt")
    torch.save({k: torch.nn.Parameter(t) for k, t in plain().items()}, "parameters.pt")
    runs = [Path(start).stem for start in ("numbers.pt", "parameters.pt")]
    for run in runs:
        assert train(fssl, run, f"model.start={run}.pt")[0] == 0
    assert records(runs[0]) == records(runs[1])


def test_names_of_a_network_on_several_gpus_lose_what_wraps_them(fssl: Fssl) -> None:
    given = plain()
    counted = {**given, "body.1.num_batches_tracked": torch.tensor(3)}
    torch.save({"state_dict": {f"module.{name}": t for name, t in counted.items()}}, "w.pth")
    assert same(first_of("model.start=w.pth"), given)
    save_file({f"module.{name}": t for name, t in given.items()}, "w.safetensors")
    assert same(first_of("model.start=w.safetensors"), given)


def test_half_precision_is_read_as_the_network_computes(fssl: Fssl) -> None:
    save_file({k: t.half() for k, t in plain().items()}, "w.safetensors")
    found = first_of("model.start=w.safetensors")
    assert same(found, {k: t.half().float() for k, t in plain().items()})


def test_published_names_of_resnet18_fit(fssl: Fssl) -> None:
    ours = plain("resnet18", stem="imagenet")
    published = {k.replace("shortcut", "downsample").replace("head.linear", "fc"): t for k, t in ours.items()}
    assert {"conv1.weight", "layer2.0.downsample.0.weight", "fc.bias"} < published.keys()
    torch.save(published, "resnet18.pth")
    settings = ["model.name=resnet18", "model.stem=imagenet", "model.start=resnet18.pth"]
    assert same(first_of(*settings), ours)


def test_a_head_of_another_size_begins_afresh_only_if_allowed(fssl: Fssl) -> None:
    given = plain(classes=4)
    save_file({**given, "extra": torch.zeros(1)}, "w.safetensors")
    code, _, said = train(fssl, "run", "model.start=w.safetensors")
    assert (code, said) == (
        2,
        "fssl: model.start = 'w.safetensors' does not fit network 'cnn': head.linear.weight ([4, 32],"
        " expected [10, 32]), head.linear.bias ([4], expected [10]), extra (not in the network);"
        " use model.start_partial = true to load the tensors that fit\n",
    )
    assert not Path("run").exists()
    code, said, _ = train(fssl, "run", "model.start=w.safetensors", "model.start_partial=true")
    assert code == 0
    assert "newly initialized: head.linear.weight ([4, 32], expected [10, 32]), head.linear.bias" in said
    assert "not used: extra (not in the network)" in said
    found, fresh = first_of("model.start=w.safetensors", "model.start_partial=true"), first_of()
    for name, tensor in found.items():
        assert torch.equal(tensor, (fresh if name.startswith("head") else given)[name])


class Unsafe:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('executed')",)


def write_bad_files() -> None:
    good = plain()
    save_file(good, "good.safetensors")
    Path("damaged.safetensors").write_bytes(Path("good.safetensors").read_bytes()[:-9])
    torch.save({"w": Unsafe()}, "unsafe.pt")
    torch.save([1, 2], "list.pt")
    torch.save({**good, "head.linear.bias": good["head.linear.bias"].to_sparse()}, "sparse.pt")
    torch.save({k: t.to("meta") for k, t in good.items()}, "shapes.pt")
    Path("damaged.pt").write_bytes(b"PK\3\4 not a zip")
    Path("weights.txt").write_text("1 2 3")
    Path("text.pt").write_text("epoch, loss")
    Path("empty").mkdir()
    save_file({**good, "head.linear.bias": torch.full((10,), torch.nan)}, "nan.safetensors")
    save_file({f"other.{k}": t for k, t in good.items()}, "other.safetensors")
    save_file({f"module.{k}" if "body" in k else k: t for k, t in good.items()}, "mixed.safetensors")
    save_file({k: t for k, t in good.items() if not k.startswith("body.6")}, "less.safetensors")


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("absent", "model.start = 'absent': no such run folder or file"),
        ("empty", "empty is not a run folder (no config.toml)"),
        ("weights.txt", "expected a run folder, a .safetensors file or a state dict (.pt, .pth, .bin)"),
        ("damaged.safetensors", "model.start = 'damaged.safetensors' is damaged"),
        ("damaged.pt", "model.start = 'damaged.pt' cannot be read as a state dict"),
        ("text.pt", "model.start = 'text.pt' was not saved by torch; expected a state dict"),
        ("unsafe.pt", "model.start = 'unsafe.pt' cannot be read as a state dict (UnpicklingError: Weights only load"),
        ("list.pt", "model.start = 'list.pt' is not a state dict: expected names of dense tensors"),
        ("sparse.pt", "model.start = 'sparse.pt' is not a state dict: expected names of dense tensors"),
        ("shapes.pt", "model.start = 'shapes.pt' is not a state dict: expected names of dense tensors"),
        ("nan.safetensors", "head.linear.bias has values that are not finite"),
        ("other.safetensors", "no tensor can be used: body.0.weight (missing), body.1.weight (missing)"),
        ("mixed.safetensors", "does not fit network 'cnn': body.0.weight (missing), "),
        ("less.safetensors", "does not fit network 'cnn': body.6.weight (missing); use model.start_partial"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_used_is_one_line(start: str, message: str, fssl: Fssl) -> None:
    write_bad_files()
    code, _, said = train(fssl, "run", f"model.start={start}")
    assert (code, said.count("\n"), message in said) == (2, 1, True), said
    assert not Path("run").exists()


def test_a_changed_model_of_a_run_is_rejected(fssl: Fssl) -> None:
    assert train(fssl, "labels")[0] == 0
    shutil.copytree("labels", "other")
    file = Path("other/model.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    assert "its checksum does not match" in train(fssl, "run", "model.start=other")[2]
    Path("other/model.safetensors").unlink()
    assert "has no model.safetensors, which a run writes when it finishes" in train(fssl, "run", "model.start=other")[2]


@pytest.mark.slow
def test_a_run_resumes_without_the_file_and_with_the_same_bits(fssl: Fssl) -> None:
    save_file(plain(), "w.safetensors")
    assert train(fssl, "whole", "model.start=w.safetensors", "train.rounds=3")[0] == 0
    for out, change in (("gone", Path.unlink), ("changed", lambda path: save_file(plain(seed=1), path))):
        save_file(plain(), "w.safetensors")
        assert train(fssl, out, "model.start=w.safetensors")[0] == 0
        change(Path("w.safetensors"))
        code, _, said = fssl("run", out, "--resume", "--set", "train.rounds=3")
        assert (code, said) == (0, "")
        assert records(out) == records("whole")
        assert same(*(load_file(f"{run}/model.safetensors") for run in (out, "whole")))
    message = "model.start = 'w.safetensors' has changed: model.start_digest is"
    code, _, said = fssl("run", "gone/config.toml", "--out", "new")  # a new run, which needs the file
    assert (code, said.count("\n"), message in said) == (2, 1, True), said
    Path("w.safetensors").unlink()
    code, _, said = fssl("run", "gone", "--out", "new")
    assert (code, "no such run folder or file" in said) == (2, True), said
    assert not Path("new").exists()


def test_a_resumed_run_with_another_file_is_another_run(fssl: Fssl) -> None:
    save_file(plain(), "w.safetensors")
    assert train(fssl, "run", "model.start=w.safetensors")[0] == 0
    save_file(plain(seed=1), "w.safetensors")
    words = ["--set", "model.start=w.safetensors", "--out", "run", "--resume"]
    code, _, said = fssl("run", "smoke", *SMALL, *words)
    assert (code, "contains another run: model.start_digest is" in said) == (2, True), said


@pytest.mark.parametrize("classes", [5, "0123456789", {"0": 1}, [[1]] * 10, None])
def test_strange_facts_about_weights_do_no_harm(classes: object, fssl: Fssl) -> None:
    Path("w.safetensors").write_bytes(sealed(plain(), {"classes": classes, "mean": 5, "std": {"a": 1}}))
    code, _, said = train(fssl, "run", "model.start=w.safetensors")
    assert (code, said) == (0, "")


@pytest.mark.slow
def test_other_images_are_noticed(fssl: Fssl) -> None:
    assert train(fssl, "digits", "data.name=digits")[0] == 0
    settings = ["data.name=synthetic", "model.start=digits", "model.start_partial=true"]
    code, said, _ = train(fssl, "run", *settings)
    assert code == 0
    (line,) = [line for line in said.splitlines() if "was trained with" in line]
    assert line.startswith(
        "model.start = 'digits' was trained with mean [0.305] and std [0.376], but this run normalizes"
    )
    assert "was trained with" not in train(fssl, "again", "model.start=digits")[1]


@pytest.mark.slow
def test_cells_of_a_grid_have_starts_of_their_own(fssl: Fssl) -> None:
    assert fssl("run", "smoke", *SMALL, "--set", "grid.seed=[7, 8]", "--out", "labels")[0] == 0
    words = ["--set", "grid.seed=[7, 8]", "--set", 'grid.model.start=["none", "labels/seed{seed}"]']
    assert fssl("run", "smoke", *SMALL, *words, "--out", "next")[0] == 0
    runs = find_runs([Path("next")]).runs
    assert len(runs) == 4
    assert sorted(len(members) for members in repetitions(runs).values()) == [2, 2]
    for seed in (7, 8):
        found = first_of(f"seed={seed}", "model.start=labels/seed{seed}")
        trained = load_file(f"labels/seed{seed}/model.safetensors")
        assert same(found, {k.partition(".")[2]: t for k, t in trained.items()})


@pytest.mark.slow
def test_a_record_is_repeated_with_other_seeds_from_their_own_starts(fssl: Fssl) -> None:
    """As the report's command does: the checksum in the record is of its own seed's file."""
    assert fssl("run", "smoke", *SMALL, "--set", "grid.seed=[7, 8]", "--out", "labels")[0] == 0
    words = ["--set", "grid.seed=[7, 8]", "--set", "model.start=labels/seed{seed}"]
    assert fssl("run", "smoke", *SMALL, *words, "--out", "next")[0] == 0
    again = ["--set", "grid.seed=[7, 8]", "--out", "again"]
    assert fssl("run", "next/seed7/config.toml", *again)[0] == 0
    for seed in (7, 8):
        assert records(f"again/seed{seed}") == records(f"next/seed{seed}")
    Path("labels/seed8/model.safetensors").unlink()
    code, _, said = fssl("run", "next/seed7/config.toml", *again[:-1], "third")
    assert (code, "labels/seed8" in said, Path("third").exists()) == (2, True, False), said


@pytest.mark.skipif(not (find_spec("flwr") and find_spec("ray")), reason="needs pip install 'fssl[flower]'")
@pytest.mark.slow
def test_flower_starts_from_the_same_weights(fssl: Fssl) -> None:
    save_file(plain(), "w.safetensors")
    assert train(fssl, "local", "model.start=w.safetensors")[0] == 0
    assert train(fssl, "flower", "model.start=w.safetensors", "compute.engine=flower")[0] == 0
    assert records("flower") == records("local")
    assert same(*(load_file(f"{run}/model.safetensors") for run in ("flower", "local")))


@pytest.mark.skipif(not (find_spec("flwr") and find_spec("ray")), reason="needs pip install 'fssl[flower]'")
def test_clients_need_no_file_and_a_server_elsewhere_finds_it(fssl: Fssl) -> None:
    from fssl.engines.flower.fleet import for_clients

    save_file(plain(), "w.safetensors")
    config = prepare(tiny_config("data.name=digits", "model.start=w.safetensors")).config
    assert for_clients(config).model == prepare(tiny_config("data.name=digits")).config.model
    assert with_absolute_start(config).model.start == str(Path("w.safetensors").resolve())


def test_the_two_stages_of_the_page_run(fssl: Fssl) -> None:
    text = (ROOT / "docs" / "networks.md").read_text()
    commands = [
        shlex.split(line) for line in text.splitlines() if line.startswith("fssl run") and "runs/labels" in line
    ]
    assert len(commands) == 2
    for words in commands:
        assert fssl(*words[1:], *SMALL)[0] == 0
    trained = load_file("runs/labels/model.safetensors")
    found = first_of("model.start=runs/labels")
    assert same(found, {k.partition(".")[2]: t for k, t in trained.items()})
    assert load_toml(Path("runs/everything/config.toml"), "")["model"]["start"] == "runs/labels"


def test_a_finished_run_started_from_weights_predicts(fssl: Fssl) -> None:
    save_file(plain(), "w.safetensors")
    assert train(fssl, "run", "model.start=w.safetensors")[0] == 0
    before = outcome("run")
    Path("w.safetensors").unlink()
    code, said, _ = fssl("predict", "run")
    assert (code, f"{before[0][-1]['accuracy']:.2f} %" in said) == (0, True)


def test_an_export_is_a_start(fssl: Fssl) -> None:
    """What `fssl export` writes, with its checksum, is what the run had."""
    assert fssl("run", "smoke", *SMALL, "--out", "first").code == 0
    assert fssl("export", "first", "--to", "safetensors", "--out", "first.safetensors").code == 0
    command = ["run", "smoke", *SMALL, "--set", "train.lr=0", "--set", "train.rounds=1"]
    said = fssl(*command, "--set", "model.start=first.safetensors", "--out", "second")
    assert said.code == 0, said.err
    assert fssl(*command, "--set", "model.start=first", "--out", "third").code == 0
    accuracies = [records(run)[-1]["test"] for run in ("first", "second", "third")]
    assert accuracies[1] == accuracies[2]
    Path("first.safetensors").write_bytes(Path("first.safetensors").read_bytes()[:-1] + b"x")
    said = fssl(*command, "--set", "model.start=first.safetensors", "--out", "fourth")
    assert (said.code, "is damaged (its checksum does not match)" in said.err) == (2, True)
