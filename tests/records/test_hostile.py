"""Run folders and files from other people: what they may not do."""

import os
import re
import shutil
from io import BytesIO
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch
from safetensors import safe_open

from fssl.errors import UserError
from fssl.records.checkpoint import Parts
from fssl.records.manifests import checksum
from fssl.records.tensors import as_bytes, sealed, unseal
from fssl.start import read_state_dict
from helpers.command import SMALL, Fssl

SAVED = "run/failed-step.safetensors"


@pytest.fixture
def stopped(fssl: Fssl) -> Path:
    """A run of two rounds that stopped after the first."""
    assert fssl("run", "smoke", *SMALL, "--set", "train.rounds=2", "--out", "run").code == 0
    return Path("run")


@pytest.mark.parametrize("name", ["checkpoint/parts", "checkpoint", "probes"])
def test_a_resumed_run_empties_no_folder_elsewhere(name: str, stopped: Path, fssl: Fssl) -> None:
    elsewhere = Path("elsewhere")
    elsewhere.mkdir()
    for file in ("photo.jpg", "client.0.round-000001.safetensors", "round-000001.json"):
        (elsewhere / file).write_text("mine")
    place = stopped / name
    if place.exists():
        shutil.rmtree(place)
    place.symlink_to(elsewhere.resolve())
    said = fssl("run", str(stopped), "--resume", "--set", "train.rounds=3")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert f"run/{name} is a link that leads out of the run folder, to {elsewhere.resolve()}; remove it" in said.err
    assert len(list(elsewhere.iterdir())) == 3


def test_a_folder_may_be_a_link_within_the_run(stopped: Path, fssl: Fssl) -> None:
    (stopped / "probes").rename(stopped / "kept")
    (stopped / "probes").symlink_to("kept")
    assert fssl("run", str(stopped), "--resume", "--set", "train.rounds=3").code == 0


def test_parts_remove_files_of_their_own_names_alone(tmp_path: Path) -> None:
    parts = Parts(tmp_path)
    files = parts.save(1, {"client.0": {"x": torch.ones(1)}, "best.1": {"x": torch.ones(1)}})
    assert sorted(files) == ["best.1.round-000001.safetensors", "client.0.round-000001.safetensors"]
    (tmp_path / "notes.txt").write_text("mine")
    parts.keep_only(["best.1.round-000001.safetensors"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best.1.round-000001.safetensors", "notes.txt"]


@pytest.mark.parametrize("name", ["../secret.round-000001.safetensors", "{}/secret.round-000001.safetensors", "secret"])
def test_no_part_is_read_from_elsewhere(name: str, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    data = as_bytes({"x": torch.ones(1)})
    for place in (tmp_path / "secret.round-000001.safetensors", tmp_path / "parts/secret"):
        place.write_bytes(data)
    assert Parts(tmp_path / "parts").load({name.format(tmp_path): checksum(data)}) is None


def test_a_partition_is_no_pipe(fssl: Fssl) -> None:
    """A pipe would be waited for without end, and a device has no end."""
    os.mkfifo("pipe")
    for file in ("pipe", "/dev/zero"):
        said = fssl("run", "smoke", *SMALL, "--set", f"partition.file={file}")
        assert (said.code, said.err) == (2, f"fssl: partition.file = '{file}' is not a regular file\n")


def test_a_compressed_state_dict_is_not_inflated(tmp_path: Path) -> None:
    """64 MB of zeros in 64 kB; torch itself stores tensors as they are."""
    torch.save({"x": torch.zeros(2**24)}, plain := BytesIO())
    with ZipFile(plain) as source, ZipFile(tmp_path / "a.pt", "w", ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry.filename, source.read(entry))
    assert (tmp_path / "a.pt").stat().st_size < 2**20
    with pytest.raises(UserError, match="is compressed, unlike files that torch saves"):
        read_state_dict(tmp_path / "a.pt")


def test_more_threads_than_cores_are_rejected(fssl: Fssl) -> None:
    said = fssl("run", "smoke", *SMALL, "--set", "compute.threads=1024")
    assert said.code == 2
    assert said.err.startswith("fssl: compute.threads = 1024: this machine has ")


def test_damaged_measures_are_reported(stopped: Path, fssl: Fssl) -> None:
    assert "damaged" not in fssl("show", str(stopped)).out
    (stopped / "measures.json").write_text((stopped / "measures.json").read_text().replace("0", "1", 1))
    out = fssl("show", str(stopped)).out
    assert re.search("measures.json .* the measures of the final models", out), out


# Saved steps.

FAILS = """
from fssl.methods.fixmatch import FixMatch
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()

class Fails(FixMatch):
    def vote(self, p_l, *rest):
        if batch_is_real(p_l):
            raise KeyError("absent")
        return super().vote(p_l, *rest)

def batch_is_real(p):
    return type(p).__name__ != "FakeTensor"

def mine(): return Fails()
"""


@pytest.fixture
def failed(fssl: Fssl) -> Path:
    """A run whose first step failed, of a method that was removed since: its folder keeps a copy."""
    Path("mine.py").write_text(FAILS)
    words = ("--set", "method.name=mine.py:mine", "--set", "compute.lanes=1")  # a second lane would save its step later
    assert fssl("run", "smoke", *SMALL, *words, "--out", "run").code == 1
    for file in Path().glob("**/mine.ran"):
        file.unlink()
    return Path(SAVED)


def test_replay_runs_the_folders_copy_alone(failed: Path, fssl: Fssl) -> None:
    """Another file lies where the run's was: it is not even loaded."""
    assert "KeyError: 'absent'" in fssl("replay", SAVED).err
    assert Path("run/mine.ran").exists()
    assert not Path("mine.ran").exists()
    Path("run/mine.py").unlink()
    Path("run/mine.ran").unlink()
    said = fssl("replay", SAVED)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert f"{SAVED}: its method.name = 'mine.py:mine' differs from its run folder's; check it" in said.err
    assert not Path("mine.ran").exists()


def test_replay_reads_images_of_its_run_alone(failed: Path, fssl: Fssl) -> None:
    tensors, facts = unseal(failed)
    assert facts is not None
    config = facts["config"].replace('name = "digits"', 'name = "digits"\ndir = "/etc"', 1)
    assert config != facts["config"]
    failed.write_bytes(sealed(tensors, {**facts, "config": config}))
    said = fssl("replay", SAVED)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert (
        f"{SAVED}: its data.dir = '/etc' differs from its run folder's; check it, then trust it (--trust)" in said.err
    )


def test_a_changed_step_is_damaged(failed: Path, fssl: Fssl) -> None:
    with safe_open(failed, "pt") as file:
        assert file.metadata()
    data = bytearray(failed.read_bytes())
    data[-1] ^= 1
    failed.write_bytes(data)
    said = fssl("replay", SAVED)
    assert (said.code, said.err.count("\n")) == (2, 1), said.err
    assert said.err.startswith(f"fssl: {SAVED} is not a saved step (")
