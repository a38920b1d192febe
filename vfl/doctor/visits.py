"""A worker's way to the other parties: to the coordinator, and from there to the label holder."""

import contextlib

import grpc

from protos.coordinator_pb2 import JoinRequest
from protos.wire import COORDINATOR_SERVICE, DOCTOR_SERVICE
from vfl.doctor.address import check_health, examine
from vfl.doctor.compare import Caller
from vfl.doctor.findings import Finding, Level, Sheet
from vfl.doctor.party import Setup
from vfl.net.network import sentence
from vfl.net.tls import COORDINATOR, Identity, refuse_plain, worker_role


class Visits:
    """One worker's calls at the coordinator and at the label holder, and what it found there."""

    def __init__(self, setup: Setup, worker: int, identity: Identity | None) -> None:
        self._setup, self._worker, self._identity = setup, worker, identity
        self.coordinator, self.label_holder = Sheet("coordinator"), Sheet("label holder")
        self.checked_in = False
        """Whether the coordinator's doctor has this worker's report now."""

    def make(self, own: Sheet, join: JoinRequest | None, address: str) -> None:
        """Visit the coordinator and, unless this is the label holder, the label holder; report the findings.

        `join` is this worker's request to join, if its slice is in order; `address` is where it answers peers, if any.
        """
        setup, sheet = self._setup, self.coordinator
        channel = examine(sheet, setup.coordinator, COORDINATOR, self._identity, patience=setup.patience)
        if channel is None:
            return
        with contextlib.closing(channel):
            expected = (DOCTOR_SERVICE.full_name, COORDINATOR_SERVICE.full_name)
            service = check_health(sheet, setup.coordinator, channel, expected)
            if service == COORDINATOR_SERVICE.full_name:
                sheet.later(
                    "compare",
                    f"a coordinator waits at {setup.coordinator} already: it compares versions, samples and slices "
                    f"when a worker joins",
                )
            if service != DOCTOR_SERVICE.full_name:
                return
            caller = Caller(setup.config, self._worker, channel, tls=self._identity, clock=setup.clock)
            if caller.compare(sheet, join, address):
                caller.echo(sheet)
                if setup.config.topology.labels_at_coordinator:
                    text = "`cafe serve` runs the label holder itself (--label-listen): workers reach it in the run"
                    self.label_holder.later("address", text)
                elif setup.config.topology.sends_outputs(self._worker):
                    self._visit_label_holder(caller)
                self.checked_in = caller.report(sheet, self._report(own))

    def _visit_label_holder(self, coordinator: Caller) -> None:
        setup, sheet = self._setup, self.label_holder
        try:
            address = coordinator.label_holder(setup.patience)
        except grpc.RpcError as error:
            sheet.fail("address", f"the coordinator's doctor went away before it knew the address: {sentence(error)}")
            return
        holder = worker_role(setup.config.topology.label_holder)
        advice = f"start `cafe doctor … --id {holder.worker} … --wait` there"
        if not address and setup.wait:
            sheet.fail("address", f"{holder} did not say within {setup.patience:g} s where it listens: {advice}")
            return
        if not address:
            sheet.later("address", f"{holder} has not said yet where it listens: {advice}, and --wait here")
            return
        if self._identity is None and not setup.insecure:
            with sheet.trying("encryption"):
                refuse_plain(address, "the label holder's address")
            if sheet.lines:
                return
        channel = examine(sheet, address, holder, self._identity)
        if channel is None:
            return
        with contextlib.closing(channel):
            caller = Caller(setup.config, self._worker, channel, tls=self._identity, clock=setup.clock)
            if check_health(sheet, address, channel, (DOCTOR_SERVICE.full_name,)) and caller.compare(sheet):
                caller.echo(sheet)
                caller.report(sheet, sheet.lines)

    def _report(self, own: Sheet) -> list[Finding]:
        """Return the report for the coordinator: of this machine it says only how many checks failed."""
        failed = own.count(Level.FAILED)
        text = (
            f"{failed} checks of its own machine failed, its own table has them" if failed else "nothing failed there"
        )
        mine = Finding("own machine", Level.FAILED if failed else Level.OK, text)
        beyond = [Finding(f"label holder, {one.check}", one.level, one.text) for one in self.label_holder.lines]
        return [mine, *self.coordinator.lines, *beyond]
