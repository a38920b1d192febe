"""The run's curves for TensorBoard."""

from pathlib import Path

from vfl.results import Record


def write_events(folder: Path, record: Record) -> None:
    """Write every round's loss and learning rate, and the evaluations, as TensorBoard events."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))
    for number, loss in enumerate(record.losses, start=1):
        writer.add_scalar("train/loss", loss, number)
    for number, rate in enumerate(record.rates, start=1):
        writer.add_scalar("train/learning_rate", rate, number)
    for tested in record.evaluations:
        writer.add_scalar("test/loss", tested.loss, tested.round)
        writer.add_scalar("test/accuracy", tested.accuracy, tested.round)
    writer.close()
