"""Every sample from one gradient: no second round, no indices, whatever the optimiser does to the parameters."""
