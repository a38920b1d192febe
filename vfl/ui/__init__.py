"""The live page: a run's folder in a browser, while the run goes on and afterwards."""

from importlib.util import find_spec

from vfl.errors import missing_extra


def check_installed() -> None:
    """Refuse to go on without the page's web server, which is an extra."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise missing_extra("the live page", "its web server (starlette, uvicorn)", "ui")
