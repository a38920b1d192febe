"""A party: local compute on its slice, the exchange with its peers, and its defences."""
