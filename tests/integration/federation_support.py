"""`cafe serve` and `cafe work` in processes of their own, and how their numbers compare with an undisturbed run's."""

import contextlib
import json
import re
import signal
import subprocess
import threading

import torch

from tests.integration.command_support import CAFE, ENVIRONMENT, wait_for


class Federation:
    """`cafe serve` and `cafe work`, each a process of its own."""

    def __init__(self, config, out):
        self.config, self.out = config, out
        self.processes = []
        self.said = []
        self.address = "127.0.0.1:0"
        self.serve()

    def serve(self, *arguments):
        """Start the coordinator; if there was one before, in its place."""
        self.server = self.start("serve", self.config, "--listen", self.address, "--out", self.out, *arguments)
        listening = None
        while listening is None:
            line = self.server.stderr.readline()
            assert line, self.said
            self.said.append(line)
            listening = re.search(r"listening on (\S+),", line)
        self.address = listening.group(1)
        threading.Thread(target=self.said.extend, args=(self.server.stderr,), daemon=True).start()

    def start(self, *arguments):
        command = [*CAFE, *map(str, arguments)]
        process = subprocess.Popen(
            command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=ENVIRONMENT
        )
        self.processes.append(process)
        return process

    def worker(self, number, *arguments, address=None):
        where = ("--coordinator", address or self.address, "--threads", 1)
        return self.start("work", self.config, "--id", number, *where, *arguments)

    def reaches(self, number):
        """Wait until some rounds are done."""

        def done():
            assert self.server.poll() is None, self.said
            return (self.out / "transcript" / f"round-{number:07d}.safetensors").exists()

        wait_for(done)

    def finished(self):
        code = self.server.wait(120)
        assert code == 0, self.said
        return json.loads((self.out / "summary.json").read_text())

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(30)
            with contextlib.suppress(ValueError):
                process.stderr.close()


def assert_same_numbers(out, undisturbed):
    """Bit by bit the same losses, evaluations and parameters; return the summary."""
    summary, expected = (json.loads((folder / "summary.json").read_text()) for folder in (out, undisturbed))
    assert summary["train"] == expected["train"]
    models = [torch.load(folder / "model.pt", weights_only=True) for folder in (out, undisturbed)]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    return summary
