"""Two processes give the numbers of one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from recollect.evaluation import evaluate, evaluate_revisited

_WORKER = """
import json, sys
import numpy as np, torch, torch.distributed as dist
from recollect.evaluation import evaluate, evaluate_revisited
rank, folder = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
data = np.load(f"{folder}/data.npz")
result = evaluate(data["vectors"], data["labels"], distributed=True)
gnd = json.load(open(f"{folder}/gnd.json"))
instance = evaluate_revisited(data["vectors"][:5], data["vectors"], gnd, distributed=True)
result.save(f"{folder}/result{rank}.npz")
json.dump(instance.metrics, open(f"{folder}/revisited{rank}.json", "w"))
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes(tmp_path: Path):
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 25, 201)
    labels[:2] = 1000, 1001  # two queries without a positive
    vectors = rng.standard_normal((201, 12)).astype(np.float32)
    vectors[50:60] = vectors[60:70]
    gnd = [{"easy": [i + 10], "hard": [i + 20, i + 30], "junk": [i]} for i in range(5)]
    np.savez(tmp_path / "data.npz", vectors=vectors, labels=labels)
    (tmp_path / "gnd.json").write_text(json.dumps(gnd))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen([sys.executable, "-c", _WORKER, str(rank), str(tmp_path)], env=environment)
        for rank in range(2)
    ]
    assert [worker.wait(timeout=900) for worker in workers] == [0, 0]
    alone = evaluate(vectors, labels)
    instance = evaluate_revisited(vectors[:5], vectors, gnd).metrics
    for rank in range(2):
        with np.load(tmp_path / f"result{rank}.npz") as together:
            for name, column in alone.per_query.items():
                np.testing.assert_array_equal(together[name], column, err_msg=name)
        assert json.loads((tmp_path / f"revisited{rank}.json").read_text()) == instance
