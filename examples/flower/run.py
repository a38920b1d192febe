"""A vertical federation in Flower, for real, whose server records: `python examples/flower/run.py FOLDER --flower BIN`.

BIN is the bin folder of an environment of its own with flwr, numpy and safetensors (flwr's and this project's pins do
not go together). Two companies have halves of the same digits; a SuperLink and two SuperNodes run on this machine. The
same federation is run by this project first, from the same parameters and batches, into FOLDER/ours to compare with.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import vfl
from vfl.config import parse_config
from vfl.datasets.slices import load_data

HERE = Path(__file__).parent
CONFIG = {
    "data": {"name": "digits", "samples": 12},
    "federation": {"workers": 2, "batch_size": 4, "epochs": 1},
    "model": {"name": "mlp", "hidden": [128, 64]},
    "training": {"lr": 0.1},
    "attack": {"name": "exact"},
    "transcript": True,
}


def prepare(folder: Path) -> None:
    """Run the federation here, and write down where it began: parameters, batches, and each company's columns."""
    seen = []
    ours = vfl.simulate(CONFIG, out=folder / "ours", on_round=seen.append)
    first, data = seen[0].parameters, load_data(parse_config(CONFIG, "examples/flower"))
    named = {f"{party}.bottom.{name}": one for party, own in enumerate(first.bottoms) for name, one in own.items()}
    named |= {f"top.{name}": one for name, one in first.top.items()}
    batches = np.stack([one.indices.numpy() for one in seen])
    np.savez(folder / "start.npz", batches=batches, **{name: one.numpy() for name, one in named.items()})
    meta = json.loads((folder / "ours" / "transcript" / "meta.json").read_text())
    (folder / "about.json").write_text(json.dumps({"config": meta["config"], "setting": meta["setting"]}))
    for party, box in enumerate(ours.setting.boxes):
        labels = {"y": data.y.numpy()} if party == 0 else {}
        np.savez(folder / f"company-{party}.npz", x=box.cut(data.x).flatten(1).numpy(), party=np.array(party), **labels)


def run(folder: Path, flower: Path, patience: float = 300) -> dict[str, float]:
    """Let Flower run the federation; return what its server says at the end."""
    link, *nodes = _free_ports(3)
    app, home = folder / "app", folder / "flower"
    shutil.copytree(HERE, app, dirs_exist_ok=True)
    shutil.copy(HERE.parent / "write_transcript.py", app / "vertical")
    home.mkdir(exist_ok=True)
    address = f"127.0.0.1:{link}"
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "{address}"\ninsecure = true\n')
    path = f"{flower}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0"}
    with contextlib.ExitStack() as started:

        def start(name: str, port: int, *options: str) -> None:
            command = [str(flower / name), "--insecure", "--port", str(port), *options]
            started.enter_context(_running(command, folder / f"{name}-{port}.log", environment))

        start("flower-superlink", link, "--disable-runtime-dependency-installation")
        _reachable(link, patience)
        for party, port in enumerate(nodes):
            data = f'data="{folder / f"company-{party}.npz"}"'
            start("flower-supernode", port, "--superlink", address, "--node-config", data)
        command = [str(flower / "flwr"), "run", str(app), "here", "--run-config", f'folder="{folder}"']
        subprocess.run(command, env=environment, check=True, timeout=patience)
        deadline = time.monotonic() + patience
        while not (folder / "done.json").exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"Flower did not end within {patience:g} s; its words are in {folder}/*.log")
            time.sleep(0.5)
    return json.loads((folder / "done.json").read_text())


@contextlib.contextmanager
def _running(command: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    """Have a process, and all that it starts, running for a while."""
    with log.open("w") as words:
        process = subprocess.Popen(command, env=environment, stdout=words, stderr=words, start_new_session=True)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def _reachable(port: int, patience: float) -> None:
    deadline = time.monotonic() + patience
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if time.monotonic() > deadline:
            raise TimeoutError("Flower's SuperLink does not listen")
        time.sleep(0.2)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as open_at_once:
        taken = [open_at_once.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in taken]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flower", type=Path, required=True, help="the bin folder of an environment with flwr")
    said = parser.parse_args()
    said.folder.mkdir(parents=True, exist_ok=True)
    prepare(said.folder.resolve())
    done = run(said.folder.resolve(), said.flower.resolve())
    each = 1000 * done["seconds_recording"] / done["rounds"]
    print(f"{done['rounds']} rounds of {1000 * done['seconds'] / done['rounds']:.0f} ms, recording {each:.1f} ms of it")
    print(f"cafe attack {said.folder}/transcript --attack exact")
