"""What the fuzz targets of files share."""

import pytest


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder to read from and, as it is the current one, to leave traces in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
