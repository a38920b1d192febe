"""An audit that Ctrl-C ends."""

import pytest

from tests.vfl.audit.made import made_audit
from vfl.audit import main
from vfl.audit.budget import Budget
from vfl.audit.course import Run, Wanted
from vfl.audit.schema import load_audit
from vfl.errors import InterruptedRunError


def test_one_that_is_stopped_before_its_first_attempt_ends_can_be_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(main, "warm_up", lambda **_: None)
    run = Run(tmp_path, made_audit(), Budget(60.0), Wanted(60.0, quiet=True))

    def stopped(_watch):
        raise KeyboardInterrupt

    with pytest.raises(InterruptedRunError, match=r"0 attempts done; .*--resume goes on from there"):
        main._carry_out(run, stopped)
    assert not load_audit(tmp_path).ended
    assert "this audit shows nothing" in (tmp_path / "audit.html").read_text(encoding="utf-8")
