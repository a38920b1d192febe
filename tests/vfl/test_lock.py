"""A run's folder is one run's: who has it is named, and whatever way its processes end, it is free afterwards."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest

from vfl.errors import UserError
from vfl.files.lock import NAME
from vfl.folder import held
from vfl.forkserver import context

HOLD = "import sys, time; from pathlib import Path; from vfl.folder import held\n"
HOLD += "with held(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_folder_in_use_is_refused_with_the_process_that_has_it(tmp_path, holder):
    for options in ({}, {"resume": True}, {"fresh": True}):
        with pytest.raises(UserError, match=rf"is in use: process {holder.pid} .*--out DIR"), held(tmp_path, **options):
            pass


def test_a_killed_run_leaves_no_lock(tmp_path, holder):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with held(tmp_path):
        pass
    with held(tmp_path), pytest.raises(UserError, match=f"process {os.getpid()} "), held(tmp_path):
        pass


def _keep(lock, pipe):
    pipe.send(os.getpid())
    pipe.recv()
    del lock


def test_a_child_that_outlives_its_run_keeps_the_folder_until_it_ends(tmp_path, monkeypatch):
    monkeypatch.setattr("vfl.files.lock.LEFT_SECONDS", 0.3)
    ours, theirs = context().Pipe()
    with held(tmp_path) as lock:
        child = context().Process(target=_keep, args=(lock, theirs), daemon=True)
        child.start()
        ours.recv()
    with pytest.raises(UserError, match="in use"), held(tmp_path):
        pass
    named = {"pid": 999_999_999, "host": socket.gethostname()}  # as if the run had been killed
    (tmp_path / NAME).write_text(json.dumps(named))
    with pytest.raises(UserError, match="in use: process 999999999"), held(tmp_path):  # after a while of waiting
        pass
    monkeypatch.setattr("vfl.files.lock.LEFT_SECONDS", 60.0)
    ours.send("end")
    with held(tmp_path):
        pass
    child.join()


def test_a_link_in_the_locks_place_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / NAME).symlink_to(tmp_path / "elsewhere")
    with held(folder):
        assert not (folder / NAME).is_symlink()
    assert (tmp_path / "elsewhere").read_text() == "mine"


@pytest.mark.parametrize("note", [b"", b"\xff\x00", b"[1]", b'{"pid": "x\\u001b[31m", "since": 1e99}', b"{" * 5000])
def test_whatever_stands_in_the_lock_the_refusal_is_one_plain_sentence(tmp_path, note):
    with held(tmp_path):
        (tmp_path / NAME).write_bytes(note)
        with pytest.raises(UserError) as caught, held(tmp_path):
            pass
    assert str(caught.value).isprintable()


def test_checkpoints_of_a_run_without_an_end_ask_for_a_word(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint-0000040.safetensors").write_bytes(b"a day's training")
    with pytest.raises(UserError, match=r"not finished \(round 40\): --resume .* --fresh"), held(tmp_path):
        pass
    with held(tmp_path, resume=True), pytest.raises(UserError, match="in use"), held(tmp_path, fresh=True):
        pass
    with held(tmp_path, fresh=True):
        pass
    with pytest.raises(UserError, match="choose one"), held(tmp_path, fresh=True, resume=True):
        pass


def test_the_sentence_says_since_when(tmp_path):
    with held(tmp_path), pytest.raises(UserError) as caught, held(tmp_path):
        pass
    said = re.search(r"since (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", str(caught.value)).group(1)
    assert abs(time.mktime(time.strptime(said, "%Y-%m-%d %H:%M:%S")) - time.time()) < 3600
