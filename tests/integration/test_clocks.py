"""Clocks that jump by more than a year, every second: a run goes on to the same numbers."""

import shutil
import subprocess

import pytest

from tests.integration.command_support import ENVIRONMENT, cafe
from tests.integration.federation_support import assert_same_numbers

CONFIG = """
seed: 3
data: {name: digits, samples: 60, test_samples: 20}
federation: {workers: 2, batch_size: 10, rounds: 30, label_holder: 1, checkpoint_every: 10}
model: {name: mlp, hidden: [16]}
training: {optimizer: adam, lr: 0.001, evaluate_every: 10}
attack: {name: none}
"""
JUMPING = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>
static int (*real)(clockid_t, struct timespec *);
int clock_gettime(clockid_t id, struct timespec *t) {
  struct timespec now;
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  real(CLOCK_MONOTONIC, &now);
  int code = real(id, t);
  if (!code && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) t->tv_sec += (now.tv_sec % 3 - 1) * 400L * 86400L;
  return code;
}
int gettimeofday(struct timeval *t, void *zone) {
  struct timespec now;
  int code = clock_gettime(CLOCK_REALTIME, &now);
  t->tv_sec = now.tv_sec; t->tv_usec = now.tv_nsec / 1000;
  return code;
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler here")
def test_clocks_that_jump_change_no_number(tmp_path, monkeypatch):
    config, shim = tmp_path / "run.yaml", tmp_path / "jumping.so"
    config.write_text(CONFIG)
    build = ["cc", "-shared", "-fPIC", "-o", shim, "-x", "c", "-", "-ldl"]
    subprocess.run(build, input=JUMPING, text=True, check=True)
    assert cafe("run", config, "--out", tmp_path / "right", "--quiet").returncode == 0
    monkeypatch.setitem(ENVIRONMENT, "LD_PRELOAD", str(shim))
    jumped = cafe("run", config, "--out", tmp_path / "jumping", "--quiet")
    assert jumped.returncode == 0, jumped.stderr
    summary = assert_same_numbers(tmp_path / "jumping", tmp_path / "right")
    assert 0 < summary["seconds"]["total"] < 3600
