"""What the benchmarks are made of: federations to disturb, hosts, cables, meters, hot paths."""
