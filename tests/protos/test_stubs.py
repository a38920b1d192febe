from pathlib import Path

from protos.generate import ROOT, generate


def test_committed_stubs_are_what_the_proto_files_give(tmp_path: Path):
    generate(tmp_path)
    fresh = sorted((tmp_path / "protos").iterdir())
    assert len(fresh) == 10
    for path in fresh:
        committed = ROOT / "protos" / path.name
        assert committed.read_text() == path.read_text(), f"{path.name} is out of step: run python -m protos.generate"
