"""One torch thread in the tests' own process: the processes that they start need the cores too."""

import os
import signal

import torch

torch.set_num_threads(1)

# gRPC's handlers for forks start its poller again in a process that is just about to become another program, where it
# finds its descriptors closed and aborts (grpc/grpc#43055).
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"

# Tests run in a shell's background begin with Ctrl-C ignored, and would pass that on to what they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
