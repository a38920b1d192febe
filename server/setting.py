"""What is known once all workers have joined: checked against the config, and as attacks are told it."""

from collections.abc import Sequence

from server.membership import Member
from vfl.config import RunConfig
from vfl.errors import UserError
from vfl.observation import Setting


def check_samples(config: RunConfig, members: Sequence[Member]) -> None:
    """Refuse batches and evaluations that the workers hold too few samples for."""
    federation = config.federation
    fewest = min(members, key=lambda member: member.samples)  # of the same in a vertical federation
    if federation.batch_size > fewest.samples:
        whose = f" of worker {fewest.worker}" if config.topology.is_horizontal else ""
        raise UserError(
            f"federation.batch_size: {federation.batch_size} is more than the {fewest.samples} samples{whose}"
        )
    if config.training.evaluate_every and not any(member.test_samples for member in members):
        raise UserError("training.evaluate_every: the workers hold no test samples to evaluate on")


def setting_of(config: RunConfig, members: Sequence[Member]) -> Setting:
    """Return what is known of the run that is to begin; members are in the order of their numbers."""
    boxes = [member.box for member in members if not member.box.empty]
    classes = members[config.topology.label_holder].classes
    if not config.topology.is_horizontal:
        return Setting.of(config, boxes, classes, members[0].samples)
    shares = tuple(member.samples for member in members)
    return Setting.of(config, boxes[:1], classes, sum(shares), shares=shares)
