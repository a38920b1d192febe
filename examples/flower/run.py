"""A vertical federation in Flower, for real, whose server records: `python examples/flower/run.py FOLDER --flower BIN`.

BIN is the bin folder of an environment of its own with flwr, numpy and safetensors (flwr's and this project's pins do
not go together). Two companies have halves of the same digits, and upload gradients; with `--head` three companies
send outputs to a server that has the labels and the head, as in Flower's own vertical example. A SuperLink and a
SuperNode for each run on this machine. The same federation is run by this project first, from the same parameters and
batches, into FOLDER/ours to compare with.
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
from vfl.models.whole import whole_model

HERE = Path(__file__).parent
CONFIG = {
    "data": {"name": "digits", "samples": 12},
    "federation": {"workers": 2, "batch_size": 4, "epochs": 1},
    "model": {"name": "mlp", "hidden": [128, 64]},
    "training": {"lr": 0.1},
    "attack": {"name": "exact"},
    "transcript": True,
}
HEAD = {
    "data": {"name": "digits", "samples": 120, "test_samples": 0},
    "federation": {
        "workers": 4,
        "batch_size": 120,
        "epochs": 3,
        "label_holder": 3,
        "label_holder_features": False,
    },
    "model": {"name": "mlp", "hidden": [], "output": 8},
    "training": {"lr": 0.1},
    "adversary": "label_holder",
    "auxiliary": 40,
    "attack": {"name": "inverse_network"},
    "transcript": True,
}
"""The label holder without features is the server: it sees outputs, and knows some people whole."""


def prepare_head(folder: Path) -> None:
    """Run the federation of a server with the head here, and write down where it began."""
    seen = []
    ours = vfl.simulate(HEAD, out=folder / "ours", on_round=seen.append)
    config = parse_config(HEAD, "examples/flower")
    data, boxes = load_data(config), ours.setting.boxes
    model = whole_model(config.model, [box.shape for box in boxes], ours.setting.outputs, config.seed)
    batches = np.stack([one.indices.numpy() for one in seen])
    top = {f"top.{name}": one.numpy() for name, one in seen[0].top.items()}
    np.savez(folder / "start.npz", batches=batches, known=data.x[: config.auxiliary].numpy(), **top)
    _describe(folder)
    for party, (box, bottom) in enumerate(zip(boxes, model.bottoms, strict=True)):
        own = {f"bottom.{name}": one.detach().numpy() for name, one in bottom.named_parameters()}
        np.savez(folder / f"company-{party}.npz", x=box.cut(data.x).flatten(1).numpy(), party=np.array(party), **own)


def prepare(folder: Path) -> None:
    """Run the federation here, and write down where it began: parameters, batches, and each company's columns."""
    seen = []
    ours = vfl.simulate(CONFIG, out=folder / "ours", on_round=seen.append)
    first, data = seen[0].parameters, load_data(parse_config(CONFIG, "examples/flower"))
    named = {f"{party}.bottom.{name}": one for party, own in enumerate(first.bottoms) for name, one in own.items()}
    named |= {f"top.{name}": one for name, one in first.top.items()}
    batches = np.stack([one.indices.numpy() for one in seen])
    np.savez(folder / "start.npz", batches=batches, **{name: one.numpy() for name, one in named.items()})
    _describe(folder)
    for party, box in enumerate(ours.setting.boxes):
        labels = {"y": data.y.numpy()} if party == 0 else {}
        np.savez(folder / f"company-{party}.npz", x=box.cut(data.x).flatten(1).numpy(), party=np.array(party), **labels)


def _describe(folder: Path) -> None:
    meta = json.loads((folder / "ours" / "transcript" / "meta.json").read_text())
    (folder / "about.json").write_text(json.dumps({"config": meta["config"], "setting": meta["setting"]}))


def run(folder: Path, flower: Path, patience: float = 300, *, head: bool = False) -> dict[str, float]:
    """Let Flower run the federation that was prepared; return what its server says at the end."""
    link, *nodes = _free_ports(1 + len(list(folder.glob("company-*.npz"))))
    app, home = folder / "app", folder / "flower"
    shutil.copytree(HERE, app, dirs_exist_ok=True)
    shutil.copy(HERE.parent / "write_transcript.py", app / "vertical")
    if head:
        project = (app / "pyproject.toml").read_text()
        project = project.replace("server_app:app", "head_server:app").replace("client_app:app", "head_client:app")
        (app / "pyproject.toml").write_text(project)
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
    parser.add_argument("--head", action="store_true", help="the server has the labels and the head")
    said = parser.parse_args()
    said.folder.mkdir(parents=True, exist_ok=True)
    (prepare_head if said.head else prepare)(said.folder.resolve())
    done = run(said.folder.resolve(), said.flower.resolve(), head=said.head)
    each = 1000 * done["seconds_recording"] / done["rounds"]
    print(f"{done['rounds']} rounds of {1000 * done['seconds'] / done['rounds']:.0f} ms, recording {each:.1f} ms of it")
    print(f"cafe attack {said.folder}/transcript --attack {'inverse_network' if said.head else 'exact'}")
