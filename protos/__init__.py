"""The wire: `.proto` files, the stubs generated from them, and the tensor codec."""
