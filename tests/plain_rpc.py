"""Both ends of a service as plain gRPC makes them: every message is written and read by protobuf alone."""

import grpc
from google.protobuf.message_factory import GetMessageClass


def kind(method):
    return "_".join("stream" if streams else "unary" for streams in (method.client_streaming, method.server_streaming))


class PlainStub:
    """The caller's end: each RPC is an attribute of that name."""

    def __init__(self, channel, service):
        for method in service.methods:
            call = getattr(channel, kind(method))(
                f"/{service.full_name}/{method.name}",
                request_serializer=GetMessageClass(method.input_type).SerializeToString,
                response_deserializer=GetMessageClass(method.output_type).FromString,
            )
            setattr(self, method.name, call)


def add_plain_service(server, service, servicer):
    """Answer the RPCs that the servicer has methods for; gRPC refuses the others as unimplemented."""
    handlers = {
        method.name: getattr(grpc, f"{kind(method)}_rpc_method_handler")(
            getattr(servicer, method.name),
            request_deserializer=GetMessageClass(method.input_type).FromString,
            response_serializer=GetMessageClass(method.output_type).SerializeToString,
        )
        for method in service.methods
        if hasattr(servicer, method.name)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
