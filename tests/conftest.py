"""One torch thread in the tests' own process: the processes that they start need the cores too."""

import torch

torch.set_num_threads(1)
