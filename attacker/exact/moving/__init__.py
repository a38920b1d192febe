"""Steps I to III while parameters move: each round's subspace is exact, and the data tell how h moves between them."""
