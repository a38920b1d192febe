"""A training loop of somebody's own, which knows nothing of this project but its recorder."""

import torch
from torch import nn

import vfl

SAMPLES, COLUMNS, BATCH, CLASSES = 24, 20, 4, 4


class Own(nn.Module):
    """A network as people write it."""

    def __init__(self, columns, width=128):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(columns, width), nn.Linear(width, width)
        self.out = nn.Linear(width, 8)

    def forward(self, x):
        x = torch.relu(self.fc1(x))
        return self.out(nn.functional.relu(self.fc2(x)))


def data():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(SAMPLES, COLUMNS, generator=random)
    return x, torch.randint(0, CLASSES, (SAMPLES,), generator=random)


def networks():
    with torch.random.fork_rng():
        torch.manual_seed(2)
        second = nn.Sequential(nn.Linear(8, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 8))
        return [Own(12), second], nn.Linear(16, CLASSES)


def train(recorder, bottoms, top, epochs=2, lr=1e-3, say=lambda recorder, rows: recorder.round(rows)):
    x, y = data()
    optimiser = torch.optim.Adam([p for m in (*bottoms, top) for p in m.parameters()], lr=lr)
    random = torch.Generator().manual_seed(3)
    for _ in range(epochs):
        for rows in torch.randperm(SAMPLES, generator=random).split(BATCH):
            outputs = [bottoms[0](x[rows, :12]), bottoms[1](x[rows, 12:])]
            loss = nn.functional.cross_entropy(top(torch.cat(outputs, dim=1)), y[rows])
            optimiser.zero_grad()
            loss.backward()
            say(recorder, rows)
            optimiser.step()


def recording(folder, bottoms, top, **known):
    about = {"sample_shape": (COLUMNS,), "slices": ("0:12", "12:20"), "classes": CLASSES, "samples": SAMPLES}
    return vfl.record(folder, bottoms, top, **(about | known))


def recorded(folder, epochs=2, lr=1e-3, **known):
    """Train under the recorder; return the folder of the transcript."""
    bottoms, top = networks()
    hidden = "indices" in known.get("unknown", ())

    def say(recorder, rows):
        if hidden:
            recorder.round(size=len(rows))
        else:
            recorder.round(rows)

    with recording(folder, bottoms, top, **known) as recorder:
        train(recorder, bottoms, top, epochs, lr, say)
    return recorder.transcript
