"""The page of a coordinator alone: `cafe serve --ui` is told something in every phase of a run."""

import json
import re

from tests.integration.command_support import nothing_left, ours, start
from tests.vfl.ui.folder_support import Asked

CONFIG = """
data: {name: digits, samples: 24}
federation: {workers: 1, batch_size: 8, rounds: 3}
model: {name: mlp, hidden: [12]}
attack: {name: "tests.server.slow_attack:Slow", seconds: 100}
"""


def test_an_attack_that_takes_its_time_can_be_stopped_but_not_paused(tmp_path):
    config, out, tag = tmp_path / "run.yaml", tmp_path / "out", f"controls {tmp_path}"
    config.write_text(CONFIG)
    listening = ["--listen", "127.0.0.1:0", "--ui", "--ui-listen", "127.0.0.1:0"]
    try:
        page = Asked(start("serve", config, "--out", out, *listening, tag=tag))
        stream = page.stream()
        assert stream.next() == ("hello", '{"controls": true}')
        assert stream.state()["state"] == "waiting"
        assert page.tell("pause") == (409, "a run that is waiting cannot pause\n")
        address = next(found[1] for line in page.process.stderr if (found := re.search(r"listening on (\S+),", line)))
        worker = start("work", config, "--id", 0, "--coordinator", address, tag=tag)
        while (state := stream.state())["state"] != "attacking":
            assert state["state"] in ("waiting", "running")
        assert (state["round"], state["workers"][0]["state"]) == (3, "done")
        assert page.tell("pause") == (409, "a run that is attacking cannot pause\n")
        assert page.tell("stop") == (204, "")
        while (state := stream.state())["state"] != "ended":
            assert state["state"] == "attacking"
        assert state["reason"] == "stopped before the end"
        assert page.process.wait(timeout=500) == 130
        assert worker.wait(timeout=500) == 0
        summary = json.loads((out / "summary.json").read_text())
        assert (summary["ended"], summary["rounds"]) == ("stopped before the end", 3)
        assert nothing_left(tag)
    finally:
        for process in ours(tag):
            process.kill()
