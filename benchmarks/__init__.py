"""Speed and memory, as ratios measured in one process: ``python -m benchmarks [name …]``."""
