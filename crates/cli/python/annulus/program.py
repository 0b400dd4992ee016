"""Finds the program `annulus`, first the one that was installed with this package."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path


def program() -> str:
    """The path of the program `annulus`: next to the interpreter, where pip installs it, or on the PATH."""
    name = "annulus.exe" if os.name == "nt" else "annulus"
    # The interpreter of a virtual environment is a link, which is not resolved: the program lies next to the link.
    folders = [Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))]
    if f"{os.name}_user" in sysconfig.get_scheme_names():
        folders.append(Path(sysconfig.get_path("scripts", f"{os.name}_user")))
    for folder in folders:
        path = folder / name
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    found = shutil.which("annulus")
    if found is None:
        raise FileNotFoundError(
            f"no program `annulus` in `{folders[0]}` nor on the PATH: install the wheel into this environment "
            "(`pip install annulus-….whl`), or `cargo install --locked --path crates/cli`"
        )
    return found
