"""Certificates and keys: a CA for this deployment, the server's certificate, and one key pair per site."""

import datetime
import ipaddress
from collections.abc import Callable
from pathlib import Path
from shutil import copyfile
from typing import Any

from ..engines.flower.identity import AdmittedSite, fingerprint
from ..errors import UserError
from ..system.files import write_atomic
from .home import ServerPart

MAKES_KEYS = "`fssl deploy keys` makes keys and certificates"
REMAKE = "remove it and call `fssl deploy keys`"
FROM_OPERATOR = "ask the operator of the server for another"
SOON = 30  # days before its end from which a certificate's end is reported
CA_DAYS, SERVER_DAYS = 3650, 365  # sites hold the CA's certificate, so it outlives many of the server's


def make_keys(server: ServerPart, home: Path) -> list[Path]:
    """Make all missing keys and certificates; return them. The CA's key is needed only for new certificates."""
    made = certificates(server) + [path for name in server.sites for path in site_key(server, home / name)]
    for name in server.sites:
        if (home / name).is_dir():
            copyfile(server.keys / "ca.crt", home / name / "ca.crt")
    return made


def certificates(server: ServerPart) -> list[Path]:
    """Make missing certificates of the CA and the server, and return them; ca.key is needed only for signing."""
    ca_key, ca, key, own = files = [server.keys / name for name in ("ca.key", "ca.crt", "server.key", "server.pem")]
    there = [file for file in files if file.exists()]
    if {ca, key, own} <= set(there):
        return []
    if there and ca_key not in there:
        raise UserError(f"{server.keys} lacks ca.key, which has to sign what else is missing there; bring it back")
    server.keys.mkdir(parents=True, exist_ok=True)
    issuer_key = private_key(ca_key)
    if not ca.exists():  # with the same key it is as valid as the one before
        write_certificate(ca, sign_certificate("fssl deployment CA", issuer_key, None, issuer_key, []))
    issuer = read_certificate(ca)
    if issuer.public_key() != issuer_key.public_key():
        raise UserError(f"{ca_key} is not the key of {ca}; restore the right one")
    write_certificate(own, sign_certificate(server.names[0], private_key(key), issuer, issuer_key, server.names))
    return [file for file in files if file not in there or file == own]


def describe_certificate(server: ServerPart) -> str:
    """Return names and expiry date of the server's certificate; reject an unusable one, with a remedy."""
    from cryptography import x509

    path = server.keys / "server.pem"
    certificate = read_certificate(path)
    listed = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    until = certificate.not_valid_after_utc
    what = f"certificate for {', '.join(str(name.value) for name in listed)}, valid until {until:%Y-%m-%d}"
    expired = until < datetime.datetime.now(datetime.UTC)
    if not expired and set(listed) == set(map(alternative, server.names)):
        return what
    reason = "which has passed" if expired else f"but server.toml names {', '.join(server.names)}"
    raise UserError(f"{what}, {reason}: {renewal(server)}; the CA and the keys of the sites stay")


def renewal(server: ServerPart) -> str:
    first = "" if (server.keys / "ca.key").exists() else f"bring back {server.keys / 'ca.key'}, "
    return f"{first}remove {server.keys / 'server.pem'}, call `fssl deploy keys` again and restart the server"


def days_left(server: ServerPart) -> int:
    """Return whole days until the server's certificate or its CA's ends; negative after the end."""
    ends = [read_certificate(server.keys / name).not_valid_after_utc for name in ("server.pem", "ca.crt")]
    left: datetime.timedelta = min(ends) - datetime.datetime.now(datetime.UTC)
    return left.days


def expiry_warning(server: ServerPart) -> str:
    """Return what to do about a certificate that ends soon; empty until then."""
    days = days_left(server)
    if days >= SOON:
        return ""
    when = f"ends in {days} days" if days >= 0 else "has ended"
    return f"the server's certificate {when}, then no site can connect: {renewal(server)}; the sites' keys stay"


def sign_certificate(name: str, key: Any, issuer: Any, issuer_key: Any, names: list[str]) -> Any:
    """Return a certificate for `key`: without an issuer a CA's, else a server's for these names."""
    from cryptography import x509
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    # A common name has no room for more; clients compare the alternative names.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    now = datetime.datetime.now(datetime.UTC)
    is_ca = issuer is None
    usage = dict.fromkeys(
        [
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "encipher_only",
            "decipher_only",
        ],
        False,
    )
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if is_ca else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=CA_DAYS if is_ca else SERVER_DAYS))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(digital_signature=not is_ca, key_cert_sign=is_ca, crl_sign=is_ca, **usage), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not is_ca:
        builder = builder.add_extension(x509.SubjectAlternativeName([alternative(n) for n in names]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(issuer_key, SHA256())


def alternative(name: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def site_key(server: ServerPart, site: Path) -> list[Path]:
    """Make a key pair and return its files; the public key in the server's folder admits the site."""
    from cryptography.hazmat.primitives import serialization as form

    private, admitted = site / "key", server.keys / f"{site.name}.pub"
    if admitted.exists():
        return []
    site.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = [path for path in (private, admitted) if not path.exists()]
    key = private_key(private, of_site=True)
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH) + b"\n"
    write_atomic(site / "key.pub", public)
    write_atomic(admitted, public)
    return made


def admitted_sites(server: ServerPart) -> list[AdmittedSite]:
    """Return the sites by their public keys in the server's folder: only these identify a site."""
    sites = [AdmittedSite(name, fingerprint(public_key(server.keys / f"{name}.pub"))) for name in server.sites]
    names: dict[str, str] = {}
    for site in sites:
        if (other := names.setdefault(site.key, site.name)) != site.name:
            again = f"remove {server.keys / site.name}.pub and that site's key, and call `fssl deploy keys`"
            raise UserError(f"{other} and {site.name} have the same key: {again}")
    return sites


def kept_keys(server: ServerPart) -> set[str]:
    """Return the fingerprints of all public keys in the server's folder, also of sites that do not participate now."""
    return {fingerprint(public_key(path)) for path in server.keys.glob("*.pub")}


def public_key(path: Path) -> bytes:
    """Return a site's public key in Flower's format."""
    from cryptography.hazmat.primitives import serialization as form

    if not path.is_file():
        raise UserError(f"{path} is missing; {MAKES_KEYS}")
    key = read_key(path, form.load_ssh_public_key)
    pem: bytes = key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    return pem


def private_key(path: Path, of_site: bool = False) -> Any:
    """Return the key in this file, or a new one; a site's key has the format and the curve that Flower requires."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    if path.exists():
        return read_key(path, form.load_ssh_private_key if of_site else form.load_pem_private_key, None)
    key = ec.generate_private_key(ec.SECP384R1() if of_site else ec.SECP256R1())
    shape = form.PrivateFormat.OpenSSH if of_site else form.PrivateFormat.PKCS8
    write_private(path, key.private_bytes(form.Encoding.PEM, shape, form.NoEncryption()))
    return key


def check_site_keys(site: Path) -> None:
    """Reject a site's certificate or key that Flower cannot use: its program would retry forever."""
    from cryptography import x509

    read_key(site / "ca.crt", x509.load_pem_x509_certificate, remedy=FROM_OPERATOR)
    read_key(site / "key", load_site_key, remedy=FROM_OPERATOR)


def load_site_key(data: bytes) -> Any:
    """Return a site's private key; reject keys that Flower does not take."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = form.load_ssh_private_key(data, None)
    except (TypeError, UnsupportedAlgorithm) as error:  # with a password, or of an unknown kind
        raise ValueError(str(error)) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("expected an elliptic curve")
    return key


def read_key(path: Path, load: Callable[..., Any], *more: object, remedy: str = REMAKE) -> Any:
    try:
        return load(path.read_bytes(), *more)
    except ValueError:
        raise UserError(f"{path} is damaged; restore it, or {remedy}") from None


def read_certificate(path: Path) -> Any:
    from cryptography import x509

    return read_key(path, x509.load_pem_x509_certificate)


def write_certificate(path: Path, certificate: Any) -> None:
    from cryptography.hazmat.primitives import serialization as form

    write_private(path, certificate.public_bytes(form.Encoding.PEM))


def write_private(path: Path, data: bytes) -> None:
    """Write a file atomically, readable by its owner only from the first byte on."""
    write_atomic(path, data, mode=0o600)
