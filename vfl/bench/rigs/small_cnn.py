"""A convolutional network that is small enough to measure thousands of samples with."""

from torch import nn


def small_cnn(shape: tuple[int, ...], channels: int = 16, hidden: int = 64, output: int = 10) -> nn.Module:
    """One convolution and three fully connected layers, the first of which holds batches of 20 and more."""
    inputs, height, width = shape
    places = -(-height // 2) * -(-width // 2)
    return nn.Sequential(
        nn.Conv2d(inputs, channels, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, ceil_mode=True),
        nn.Flatten(),
        nn.Linear(channels * places, hidden),
        nn.ReLU(),
        nn.Linear(hidden, output),
    )
