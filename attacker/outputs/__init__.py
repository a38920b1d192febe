"""Features from outputs: what the label holder is sent, with the parameters that the coordinator chose."""
