"""What a record says of how its run was started."""

import sys

import pytest

from fssl.records.environment import masked_arguments

SAID = {
    "run smoke --set train.rounds=2": "run smoke --set train.rounds=2",
    "--token abc --insecure": "--token '***' --insecure",
    "--token=abc": "--token=***",
    "--api-key K --wandb_api_key=K WANDB_API_KEY=K": "--api-key '***' --wandb_api_key=*** WANDB_API_KEY=***",
    "fetch https://me:word@example.org/a@b": "fetch https://***@example.org/a@b",
    "run token --set model.name=secret": "run token --set model.name=secret",
}


@pytest.mark.parametrize("typed", SAID)
def test_secrets_are_no_part_of_it(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["fssl", *typed.split()])
    said = masked_arguments().replace("'***'", "***").replace("'--token=***'", "--token=***")
    assert said.replace("'", "") == SAID[typed].replace("'", "")
