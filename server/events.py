"""The run's curves for TensorBoard."""

from pathlib import Path

from vfl.results import Record


def write_events(folder: Path, record: Record) -> None:
    """Write the loss of every round and the final test accuracy as TensorBoard events."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))
    for number, loss in enumerate(record.losses, start=1):
        writer.add_scalar("train/loss", loss, number)
    if record.test_accuracy is not None:
        writer.add_scalar("test/accuracy", record.test_accuracy, record.rounds)
    writer.close()
