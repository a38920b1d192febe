"""gRPC and TLS as every party uses them."""
