"""Who vouches for a bundle? Signatures in OpenSSH's form (SSHSIG), made and checked by ``ssh-keygen``.

The program and not a library, because it is there wherever keys are: it asks agents, hardware tokens and passphrases by
itself, and its form is that of signed Git commits. Nothing of the cryptography is ours. What is signed is
``manifest.json``, which holds the hash of every other member.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from nsysddp.model.errors import EvidenceError, UsageError
from nsysddp.model.inputs import read_bytes
from nsysddp.model.scratch import scratch_folder

MEMBER = "manifest.json.sig"
"""Where a bundle holds its signature."""

NAMESPACE = "nsysddp-evidence"
"""A signature made for anything else is none here."""

_SIGNER = "nsysddp"
_PUBLIC_KEY = re.compile(r"(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-[\w@.-]+ [A-Za-z0-9+/]+=*(?: .*)?")


def check_key(key: Path) -> None:
    """Refuse a key that cannot sign, before any work is done.

    Raises:
        UsageError: it cannot be read. EvidenceError: there is no ssh-keygen.
    """
    _program()
    try:
        read_bytes(key)
    except OSError as error:
        raise UsageError(
            f"the key cannot be read ({error.strerror})", file=key, do="give a private key of OpenSSH"
        ) from None


def sign(content: bytes, key: Path) -> bytes:
    """The signature over these bytes.

    Args:
        content: what is signed.
        key: a private key of OpenSSH, or the public one of a key that the agent holds.

    Raises:
        UsageError: it cannot sign. EvidenceError: there is no ssh-keygen.
    """
    path = str(key.resolve())
    done = _run(["-Y", "sign", "-f", path, "-n", NAMESPACE], content)
    if done.returncode or not done.stdout:
        raise UsageError(
            f"ssh-keygen cannot sign with it ({_complaint(done, path, key.name)})",
            file=key,
            do="give a private key of OpenSSH",
        )
    return done.stdout


def check(content: bytes, signature: bytes, signer: Path) -> str | None:
    """Did one of these keys sign these bytes?

    Args:
        content: what was signed.
        signature: of ``sign``.
        signer: public keys of OpenSSH, one a line.

    Returns:
        The fingerprint of the key that did; None where none of them did.

    Raises:
        UsageError: the file holds no public key. EvidenceError: there is no ssh-keygen.
    """
    keys = _public_keys(signer)
    with scratch_folder() as folder:
        allowed, signed = folder / "allowed", folder / "signature"
        allowed.write_text("".join(f'{_SIGNER} namespaces="{NAMESPACE}" {key}\n' for key in keys))
        signed.write_bytes(signature)
        done = _run(
            ["-Y", "verify", "-f", str(allowed), "-I", _SIGNER, "-n", NAMESPACE, "-s", str(signed)], content
        )
    if done.returncode:
        return None
    found = re.search(rb"SHA256:[A-Za-z0-9+/]+", done.stdout)
    return found[0].decode() if found else "a key of unknown fingerprint"


def _public_keys(signer: Path) -> list[str]:
    try:
        lines = read_bytes(signer).decode("utf-8", "replace").splitlines()
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", file=signer, do=_PUB) from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys or not all(_PUBLIC_KEY.fullmatch(key) for key in keys):
        raise UsageError("is no public key of OpenSSH", file=signer, do=_PUB)
    return [" ".join(key.split()[:2]) for key in keys]


_PUB = "give the .pub file of the key that signs"


def _program() -> str:
    found = shutil.which("ssh-keygen")
    if found is None:
        raise EvidenceError("signatures need ssh-keygen, not found here", do="install OpenSSH's client")
    return found


def _run(words: list[str], content: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([_program(), *words], input=content, capture_output=True, check=False)


def _complaint(done: subprocess.CompletedProcess[bytes], path: str, name: str) -> str:
    """The first line that the program said, without the folder of the key."""
    lines = done.stderr.decode("utf-8", "replace").replace(path, name).strip().splitlines()
    return lines[0][:120] if lines else f"it ended with {done.returncode}"
