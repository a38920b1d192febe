"""Somebody's own training loop with the recorder in it: `python examples/own_loop.py`, then `cafe attack`.

Two companies have 12 and 8 columns of the same 240 customers, one of them the label too. Each trains its own network;
a server has the parameters and receives gradients. Lines with `recorder` are all that was added.
"""

import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import nn

import vfl

CUSTOMERS, BATCH, EPOCHS = 240, 8, 2


def company(columns: int) -> nn.Module:
    """Return the network of one company."""
    return nn.Sequential(nn.Linear(columns, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 16))


def train(folder: Path | None) -> float:
    """Train, and record into a folder if there is one; return the seconds of a round."""
    torch.manual_seed(0)
    x, y = torch.randn(CUSTOMERS, 20), torch.randint(0, 10, (CUSTOMERS,))
    bottoms, top = [company(12), company(8)], nn.Linear(32, 10)
    optimiser = torch.optim.Adam([p for part in (*bottoms, top) for p in part.parameters()], lr=1e-3)
    recorder = None if folder is None else vfl.record(
        folder, bottoms, top, sample_shape=(20,), slices=("0:12", "12:20"), classes=10, samples=CUSTOMERS,
        training={"optimizer": "adam", "lr": 1e-3}, truth=(x, y),
    )  # fmt: skip
    begin, rounds = time.perf_counter(), 0
    with recorder or nullcontext():
        for _ in range(EPOCHS):
            for rows in torch.randperm(CUSTOMERS).split(BATCH):
                outputs = [bottoms[0](x[rows, :12]), bottoms[1](x[rows, 12:])]
                loss = nn.functional.cross_entropy(top(torch.cat(outputs, dim=1)), y[rows])
                optimiser.zero_grad()
                loss.backward()
                if recorder:
                    recorder.round(rows)
                optimiser.step()
                rounds += 1
    return (time.perf_counter() - begin) / rounds


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/own")
    train(None)  # the first time everything is slower
    alone, recorded = train(None), train(folder)
    size = sum(path.stat().st_size for path in (folder / "transcript").iterdir())
    print(
        f"a round takes {1000 * alone:.1f} ms alone, {1000 * recorded:.1f} ms recorded; {size / 1e6:.1f} MB in {folder}"
    )
