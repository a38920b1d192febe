"""Every RPC of every .proto file is answered by a class of ours: a new one is written there and nowhere else."""

import importlib

import pytest

from protos.generate import ROOT
from protos.wire import COORDINATOR_SERVICE, Stub, add_service
from server.alignment import AlignmentService
from server.service import CoordinatorService
from vfl.doctor.listener import Listener
from worker.exchange import ExchangeService

SERVICERS = {
    "cafe.v1.Coordinator": CoordinatorService,
    "cafe.v1.Alignment": AlignmentService,
    "cafe.v1.Exchange": ExchangeService,
    "cafe.v1.Doctor": Listener,
}


def services():
    modules = [importlib.import_module(f"protos.{path.stem}_pb2") for path in (ROOT / "protos").glob("*.proto")]
    return [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]


def test_every_service_of_the_proto_files_has_its_class():
    assert {service.full_name for service in services()} == set(SERVICERS)


@pytest.mark.parametrize("service", services(), ids=lambda service: service.name)
def test_every_rpc_has_a_handler(service):
    class Server:
        def add_generic_rpc_handlers(self, handlers):
            self.handlers = handlers

    server, servicer = Server(), object.__new__(SERVICERS[service.full_name])
    add_service(server, service, servicer)
    (handlers,) = server.handlers
    assert handlers.service_name() == service.full_name
    for method in service.methods:
        path = f"/{service.full_name}/{method.name}"
        handler = handlers.service(type("Details", (), {"method": path, "invocation_metadata": ()}))
        assert handler is not None, f"{path} has no handler"
        assert (handler.request_streaming, handler.response_streaming) == (
            method.client_streaming,
            method.server_streaming,
        )


def test_a_servicer_without_a_method_for_an_rpc_is_refused_at_once():
    class Forgetful:
        def Join(self): ...

        def Upload(self): ...

    with pytest.raises(TypeError, match=r"Forgetful has no method for cafe.v1.Coordinator: ReportEvaluation, Report"):
        add_service(None, COORDINATOR_SERVICE, Forgetful())


def test_a_stub_has_the_rpcs_of_its_service_and_no_other():
    class Channel:
        def __getattr__(self, kind):
            return lambda path, **_: (kind, path)

    stub = Stub(Channel(), COORDINATOR_SERVICE)
    assert stub.Join == ("unary_stream", "/cafe.v1.Coordinator/Join")
    assert stub.Upload == ("stream_unary", "/cafe.v1.Coordinator/Upload")
    with pytest.raises(AttributeError, match="there is no RPC Jion"):
        _ = stub.Jion
