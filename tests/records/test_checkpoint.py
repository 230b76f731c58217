"""Checkpoints: bit for bit, never half, and never trusted without their checksum."""

import json
from pathlib import Path

import pytest
import torch

from fssl.records.checkpoint import KEPT_CHECKPOINTS, Checkpoints
from fssl.records.manifests import Manifests, checksum


def tensors(round: int) -> dict[str, torch.Tensor]:
    return {
        "w": torch.linspace(-1, 1, 7) * round,
        "half": torch.full((2, 3), round / 3, dtype=torch.bfloat16),
        "count": torch.tensor([round]),
        "flag": torch.tensor(True),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "special": torch.tensor([float("nan"), -0.0, float("inf")]),
    }


def saved(folder: Path, *rounds: int) -> Path:
    checkpoints = Checkpoints(folder)
    for round in rounds:
        checkpoints.save(round, tensors(round), {}, mark(round))
    return folder


def user_file(folder: Path, round: int, kind: str = "safetensors") -> Path:
    return folder / f"round-{round:06d}.{kind}"


def mark(round: int) -> str:
    """The check of a record up to a round."""
    return f"check {round}"


def marks(last: int) -> list[str]:
    return [mark(round) for round in range(last + 1)]


def load(folder: Path, at_most: int = 99) -> tuple[int | None, list[str]]:
    said: list[str] = []
    found = Checkpoints(folder).load(marks(at_most), said.append)
    return (found.round if found else None), said


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    raw = [t.contiguous().view(-1).view(torch.uint8) for t in (a, b)]
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(*raw)


def test_what_comes_back_is_what_went_in(tmp_path: Path) -> None:
    found = Checkpoints(saved(tmp_path, 3)).load(marks(3), lambda text: None)
    assert found is not None
    assert found[0] == 3
    assert found[1].keys() == tensors(3).keys()
    assert all(same_bits(found[1][name], t) for name, t in tensors(3).items())


def test_a_reader_looks_up_the_newest_whole_round_without_tensors(tmp_path: Path) -> None:
    """The same that a run would be resumed from, of a damaged one the one before; of another record none."""
    folder = tmp_path / "checkpoint"
    reader = Manifests(saved(folder, 1, 2))
    assert reader.newest_round(marks(2)) == load(folder)[0] == 2
    assert reader.newest_round(marks(1)) == 1
    assert reader.newest_round(["another"] * 3) is None
    user_file(folder, 2).write_bytes(b"damaged")
    assert reader.newest_round(marks(2)) == load(folder)[0] == 1


def test_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {f"round-00000{r}.{kind}" for r in (3, 4) for kind in ("json", "safetensors")}
    assert KEPT_CHECKPOINTS == 2


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_truncated_tensors_are_noticed(tmp_path: Path, share: float) -> None:
    path = user_file(saved(tmp_path, 1, 2), 2)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    round, said = load(tmp_path)
    assert round == 1
    assert said == ["checkpoint damaged, or from another run: round-000002; using round-000001"]


@pytest.mark.slow
def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """In the tensors and in the manifest, at positions spread over the file."""
    for kind in ("safetensors", "json"):
        size = user_file(saved(tmp_path / kind, 1, 2), 2, kind).stat().st_size
        for position in range(0, size, 7 if kind == "safetensors" else 1):
            path = user_file(saved(tmp_path / kind, 1, 2), 2, kind)
            data = bytearray(path.read_bytes())
            data[position] ^= 1 << (position % 8)
            path.write_bytes(data)
            assert load(tmp_path / kind)[0] == 1, (kind, position)


@pytest.mark.parametrize("kind", ["safetensors", "json"])
def test_a_lost_file_is_a_lost_checkpoint(tmp_path: Path, kind: str) -> None:
    user_file(saved(tmp_path, 1, 2), 2, kind).unlink()
    assert load(tmp_path)[0] == 1


def test_a_manifest_cannot_vouch_for_another_round(tmp_path: Path) -> None:
    manifest = user_file(saved(tmp_path, 1, 2), 2, "json")
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "round": 3}))
    assert load(tmp_path)[0] == 1


def test_without_a_whole_one_nothing_is_removed(tmp_path: Path) -> None:
    """With a repaired file, the run resumes."""
    saved(tmp_path, 7, 8)
    whole = user_file(tmp_path, 7).read_bytes()
    for round in (7, 8):
        user_file(tmp_path, round).write_bytes(b"")
    assert load(tmp_path) == (None, [])
    user_file(tmp_path, 7).write_bytes(whole)
    assert load(tmp_path)[0] == 7


def test_a_checkpoint_of_another_record_is_not_used(tmp_path: Path) -> None:
    """Not even if it is newer and whole."""
    saved(tmp_path, 1)
    Checkpoints(tmp_path).save(2, tensors(2), {}, "another's")
    assert load(tmp_path) == (1, ["checkpoint damaged, or from another run: round-000002; using round-000001"])


def test_a_checkpoint_beyond_the_record_is_not_used(tmp_path: Path) -> None:
    saved(tmp_path, 4, 5)
    assert load(tmp_path, at_most=4) == (4, [])
    assert not user_file(tmp_path, 5).exists()


def test_a_run_is_begun_once_there_is_more_than_its_beginning(tmp_path: Path) -> None:
    """Round 0 is the beginning. A file in the folder's place is a user's, not a bare run."""
    folders = {name: tmp_path / name for name in ("nothing", "empty", "beginning", "a round", "a file")}
    folders["empty"].mkdir()
    folders["a file"].touch()
    saved(folders["beginning"], 0)
    saved(folders["a round"], 0, 1)
    begun = {name for name, folder in folders.items() if Checkpoints(folder).is_begun}
    assert begun == {"a round", "a file"}


def test_what_a_kill_leaves_behind_is_ignored_and_swept(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    user_file(tmp_path, 2).write_bytes(b"tensors without a manifest")
    user_file(tmp_path, 3, "safetensors.0123456789abcdef.part").write_bytes(b"half")
    assert load(tmp_path) == (1, [])
    assert {p.name for p in tmp_path.iterdir()} == {"round-000001.json", "round-000001.safetensors"}


# Parts: what changes only when a client takes part.


def in_parts(folder: Path) -> set[str]:
    return {p.name.removesuffix(".safetensors") for p in (folder / "parts").iterdir()}


def test_a_part_is_written_when_it_is_new_and_goes_with_the_last_checkpoint_that_names_it(tmp_path: Path) -> None:
    checkpoints, one, two = Checkpoints(tmp_path), tensors(1), tensors(2)
    checkpoints.save(1, {}, {"clients.1": one}, mark(1))
    checkpoints.save(2, {}, {"clients.1": one, "clients.2": two}, mark(2))
    assert in_parts(tmp_path) == {"clients.1.round-000001", "clients.2.round-000002"}
    checkpoints.save(3, {}, {"clients.1": tensors(3), "clients.2": two}, mark(3))
    assert in_parts(tmp_path) == {"clients.1.round-000001", "clients.2.round-000002", "clients.1.round-000003"}
    checkpoints.save(4, {}, {"clients.1": tensors(4), "clients.2": two}, mark(4))
    assert in_parts(tmp_path) == {"clients.2.round-000002", "clients.1.round-000003", "clients.1.round-000004"}
    found = Checkpoints(tmp_path).load(marks(4), lambda text: None)
    assert found is not None
    for name, expected in (("clients.1", tensors(4)), ("clients.2", two)):
        assert all(same_bits(found.parts[name][key], t) for key, t in expected.items())


def test_what_was_loaded_is_not_written_again(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, {}, {"clients.1": tensors(1), "clients.2": tensors(2)}, mark(1))
    again = Checkpoints(tmp_path)
    found = again.load(marks(1), lambda text: None)
    assert found is not None
    again.save(2, {}, {**found.parts, "clients.2": tensors(3)}, mark(2))
    assert in_parts(tmp_path) == {"clients.1.round-000001", "clients.2.round-000001", "clients.2.round-000002"}


@pytest.mark.parametrize("place", ["round-000002.safetensors", "parts/clients.1.round-000002.safetensors"])
def test_what_is_no_tensors_is_not_used_though_its_checksum_is_right(tmp_path: Path, place: str) -> None:
    checkpoints = Checkpoints(saved(tmp_path, 1))
    checkpoints.save(2, {}, {"clients.1": tensors(2)}, mark(2))
    manifest = user_file(tmp_path, 2, "json")
    right, wrong = (checksum(data) for data in ((tmp_path / place).read_bytes(), b"no tensors"))
    (tmp_path / place).write_bytes(b"no tensors")
    manifest.write_text(manifest.read_text().replace(right, wrong))
    assert load(tmp_path) == (1, ["checkpoint damaged, or from another run: round-000002; using round-000001"])


@pytest.mark.parametrize("damage", ["flip", "cut", "lose"])
def test_a_damaged_part_is_a_damaged_checkpoint(tmp_path: Path, damage: str) -> None:
    checkpoints, one = Checkpoints(tmp_path), tensors(1)
    checkpoints.save(1, {}, {"clients.1": one}, mark(1))
    checkpoints.save(2, {}, {"clients.1": one, "clients.2": tensors(2)}, mark(2))
    path = tmp_path / "parts/clients.2.round-000002.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if damage == "flip" else data[:-3])
    if damage == "lose":
        path.unlink()
    assert load(tmp_path) == (1, ["checkpoint damaged, or from another run: round-000002; using round-000001"])
    assert in_parts(tmp_path) == {"clients.1.round-000001"}


def test_no_flipped_bit_of_a_manifest_loses_a_part(tmp_path: Path) -> None:
    Checkpoints(tmp_path).save(1, tensors(1), {"clients.1": tensors(1)}, mark(1))
    manifest = user_file(tmp_path, 1, "json")
    whole = manifest.read_bytes()
    unharmed = Checkpoints(tmp_path)._read_whole(manifest, marks(1))
    assert unharmed
    assert unharmed.parts.keys() == {"clients.1"}
    for position in range(len(whole)):
        manifest.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        found = Checkpoints(tmp_path)._read_whole(manifest, marks(1))
        assert found is None or found.parts.keys() == {"clients.1"}, position


def test_no_folder_is_no_checkpoint(tmp_path: Path) -> None:
    assert load(tmp_path / "none") == (None, [])
