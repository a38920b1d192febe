"""Pure functions of tensors that attacks, workers and the referee share: no files, sockets, clocks or prints."""
