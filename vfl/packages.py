"""Our packages come from the folder that this one lies in, whatever files of the user's have their names."""

import importlib
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - before any other import


def import_ours() -> None:
    """Import the other packages by name, once; their modules are then found through them and not on the path."""
    sys.path.insert(0, ROOT)
    try:
        found = [importlib.import_module(name) for name in ("attacker", "protos", "server", "worker")]
    finally:
        sys.path.remove(ROOT)
    for module in found:
        if getattr(module, "__path__", None) is None or ROOT not in str(module.__file__):
            from vfl.errors import UserError  # which imports modules that a file of the user's may be called like

            ours = f"{module.__name__}, which is the name of one of our packages"
            raise UserError(f"{module.__file__} was imported as {ours}: rename that file, or import it after ours")


def search_working_folder_last() -> None:
    """Move the working folder, where plug-ins may be, from the front of the path, where `python -m` puts it."""
    if sys.path[:1] == [os.getcwd()] and not sys.flags.safe_path:  # noqa: PTH109
        sys.path.append(sys.path.pop(0))


def python_path() -> str:
    """Return PYTHONPATH for a process that is to find these very packages though its working folder is not searched.

    Installed packages are found in any case; a checkout's have to be named.
    """
    installed = os.path.basename(ROOT) in ("site-packages", "dist-packages")  # noqa: PTH119
    return os.pathsep.join(filter(None, ("" if installed else ROOT, os.environ.get("PYTHONPATH"))))
