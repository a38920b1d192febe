"""Benchmarks behind `cafe bench NAME`: ratios measured side by side in one run."""

BENCHES = {
    "all": "vfl.bench.all:bench_all",
    "federation": "vfl.bench.federation:bench_federation",
    "training": "vfl.bench.training:bench_training",
    "attack": "vfl.bench.attack:bench_attack",
    "matching": "vfl.bench.matching:bench_matching",
    "defences": "vfl.bench.defences:bench_defences",
    "one_gradient": "vfl.bench.one_gradient:bench_one_gradient",
    "side": "vfl.bench.side:bench_side",
    "faults": "vfl.bench.faults:bench_faults",
    "load": "vfl.bench.load:bench_load",
    "scale": "vfl.bench.scale:bench_scale",
    "shown": "vfl.bench.shown:bench_shown",
    "certificates": "vfl.bench.certificates:bench_certificates",
    "cafe": "vfl.bench.cafe:bench_cafe",
}
"""Each by its name, imported when it is asked for."""
