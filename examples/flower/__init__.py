"""A vertical federation in Flower whose server records."""
