"""What an optional extra brings, and the command that installs it here."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")
_SYSTEM = re.compile(r"platform_system\s*==\s*['\"]([^'\"]+)['\"]")


EXTRAS: dict[str, str] = {
    "torch": "kernels of torch itself (`parity --backend torch`)",
    "kernels": "bitsandbytes, ggml and triton kernels (`parity`)",
    "gptqmodel": "GPTQModel's kernels (`parity --backend gptqmodel`)",
    "probe": "logits, KL and NLL (`probe`, `report --with probe`)",
    "serve": "the app in a browser (`serve`)",
    "fast": "compiled decoding in scripts of your own (`quantscope.decode.fast`)",
    "remote": "nothing yet: this version reads local files only",
    "all": "torch, probe, serve, fast and remote",
    "dev": "what the tests need",
}
"""Every extra and what it brings."""

_OF_PACKAGE = {"torch": "torch", "gptqmodel": "gptqmodel"}
"""The extra to name for a package that several bring; `kernels` for every other one."""


def packages_of(extra: str) -> list[str]:
    """Requirements of an extra on this platform, as the installed metadata states them; empty where it has none."""
    try:
        stated = importlib.metadata.requires("quantscope") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    found = []
    for requirement in stated:
        package, _, marker = requirement.partition(";")
        name, system = _EXTRA.search(marker), _SYSTEM.search(marker)
        here = system is None or system[1] == platform.system()
        if name is not None and name[1] == extra and here:
            found.append(package.strip())
    return found


def install_hint(extra: str) -> str:
    """A command that installs what is missing of an extra, wherever this package was installed from.

    It names packages and not `quantscope[extra]`: that works from a checkout, a wheel and an index alike.
    """
    packages = packages_of(extra)
    missing = [package for package in packages if not _installed(package)] or packages
    words = " ".join(f"'{package}'" for package in missing) or f"'quantscope[{extra}]'"
    return f"{_pip()} install {words}   (the extra `{extra}`)"


def absent_words(package: str) -> str:
    """That a package of a kernel is missing, with the command that installs it where an extra brings it."""
    extra = _OF_PACKAGE.get(package, "kernels")
    known = any(_name_of(item) == _name_of(package) for item in packages_of(extra))
    return f"{package} is not installed" + (f": {install_hint(extra)}" if known else "")


def _name_of(requirement: str) -> str:
    name = _NAME.match(requirement)
    return (name[0] if name else requirement).replace("_", "-").lower()


def _installed(requirement: str) -> bool:
    try:
        importlib.metadata.version(_name_of(requirement))
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _pip() -> str:
    """`pip` where it belongs to the running interpreter, else its path: an environment need not be active to be used."""
    if sys.prefix == sys.base_prefix or os.environ.get("VIRTUAL_ENV") == sys.prefix:
        return "pip"
    beside = os.path.join(sys.prefix, "Scripts" if os.name == "nt" else "bin", "pip")
    if not os.path.exists(beside):
        return f"{sys.executable} -m pip"
    try:
        relative = os.path.relpath(beside)
    except ValueError:
        return beside
    return min(relative, beside, key=len)
