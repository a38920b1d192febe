"""A vertical federation in Flower: two companies, one model, and a server that records what it receives."""
