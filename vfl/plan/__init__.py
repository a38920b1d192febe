"""`cafe plan`: what a run will take, before anything runs; counted from the config, timed after measured runs."""
