"""The coordinator: membership, rounds, parameters, and the gRPC service that workers join."""
