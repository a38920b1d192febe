"""The page for a training loop of one's own: its program and its commands, as they stand there, in an empty folder."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from tests.integration.command_support import ENVIRONMENT, cafe

PAGE = (Path(__file__).parents[3] / "docs" / "own_system.md").read_text()
BLOCKS = dict(re.findall(r"^```(?:python\n# |\n\$ )([^\n]*)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def test_the_pages_program_and_commands_print_what_the_page_shows(tmp_path):
    program = next(code for first, code in BLOCKS.items() if first.startswith("own.py"))
    recorders = re.search(r"with vfl.record\(.*?as recorder:\n", program, re.DOTALL)[0].count("\n") + 2
    assert recorders == 12
    assert "twelve lines of it are the recorder's" in PAGE
    (tmp_path / "own.py").write_text(program)
    line = [sys.executable, "own.py"]
    ran = subprocess.run(line, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    for command in ("cafe check runs/own/transcript", "cafe attack runs/own/transcript --attack exact"):
        done = cafe(*shlex.split(command)[1:], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        shown = [part.strip() for part in re.split(r"\.\.\.|\n", BLOCKS[command])]
        assert [part for part in shown if part not in done.stdout] == []
