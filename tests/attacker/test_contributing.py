"""The attack shown in CONTRIBUTING.md works as it stands there: its commands give what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.integration.command_support import ENVIRONMENT

PAGE = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text()
SECTION = PAGE.split("## A new attack in one file\n")[1].split("\n## ")[0]


def test_the_example_attack_is_run_by_the_pages_commands_and_gets_its_score(tmp_path):
    code, commands, shown = re.findall(r"^```(?:python)?\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    (tmp_path / "my_attack.py").write_text(code)
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    line = ["bash", "-ec", commands]
    ran = subprocess.run(line, cwd=tmp_path, env={**ENVIRONMENT, "PATH": programs}, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    printed = {line.rstrip() for line in ran.stdout.splitlines()}
    assert [line for line in shown.splitlines() if line.rstrip() not in printed] == []
