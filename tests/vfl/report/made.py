"""Folders of runs, written by the functions that write them in a run, with data that is made up here."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

from vfl.config import RunConfig, parse_config
from vfl.datasets import Data
from vfl.datasets.slices import boxes_of
from vfl.folder.record import Record, write_summary
from vfl.folder.recovered import write_recovery
from vfl.folder.summary import Bytes, Evaluated, Train
from vfl.observation import Setting
from vfl.recovery import Ledger, Recovery
from vfl.referee import score_run

TREE: dict[str, Any] = {
    "seed": 7,
    "data": {"name": "digits"},
    "federation": {"workers": 4, "batch_size": 6, "rounds": 12},
    "attack": {"name": "exact"},
}
USED = ("indices", "parameters", "gradients")
LEDGER = Ledger((1, 2, 3), 1, 12, indices=True, parameters=True, labels=False, learning_rate=False, other=())


def config_of(**changes: Any) -> RunConfig:
    return parse_config(TREE | changes, "the test")


def images(count: int, channels: int = 1, side: int = 8) -> Data:
    """Noise: no image takes more room."""
    torch.manual_seed(count)
    ids = tuple(map(str, range(count)))
    return Data("image", torch.rand(count, channels, side, side), torch.arange(count) % 3, 3, ids)


def setting_of(config: RunConfig, data: Data) -> Setting:
    boxes = tuple(boxes_of(data, config))
    return Setting(config.model, boxes, data.classes, len(data.x), 6, "epochs", 12, frozen=True, seed=7)


def record_of(rounds: int = 12, **more: Any) -> Record:
    losses = [2.0 - number / rounds for number in range(rounds)]
    evaluations = [
        Evaluated(round=rounds // 2, loss=1.5, accuracy=0.5),
        Evaluated(round=rounds, loss=1.25, accuracy=0.75),
    ]
    rates = [0.1 / (1 + number) for number in range(rounds)]
    train = {"losses": losses, "rates": rates, "evaluations": evaluations} | more
    return Record(rounds=rounds, seconds=3.0, bytes=Bytes(up=1234567, down=4000, peer=30), train=Train(**train))


def recovery_of(setting: Setting, x: torch.Tensor, **more: Any) -> Recovery:
    certificates = torch.full((len(x), setting.workers), 1e-6)
    certificates[-1] = 0.5
    about: dict[str, Any] = {"slices": tuple(box.cut(x) for box in setting.boxes), "certificates": certificates}
    return Recovery(**(about | {"used": USED, "ledger": LEDGER, "notes": ("A note.",)} | more))


def write_run(
    out: Path, config: RunConfig, data: Data, x: torch.Tensor | None = None, scored: bool = True, **more: Any
) -> None:
    """Write the folder of a run that recovered x; the truth to within a little noise if it is left out."""
    setting = setting_of(config, data)
    found = data.x + 0.02 * torch.randn_like(data.x) if x is None else x
    recovery = recovery_of(setting, found, **more)
    if recovery.slices is not None or recovery.representations is not None:
        write_recovery(out, setting, recovery)
    write_summary(out, config, setting, record_of(), recovery=recovery, attack_seconds=1.5)
    if scored:
        score_run(out, config, data)


class Page(HTMLParser):
    """A page taken apart: its elements with their attributes, and all its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self._texts: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self._texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]
