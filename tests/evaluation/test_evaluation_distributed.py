"""Two processes give the numbers of one."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from recollect.evaluation import evaluate, evaluate_revisited


def _work(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)  # threads of the test's process do not survive the fork
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    data, gnd = np.load(folder / "data.npz"), json.loads((folder / "gnd.json").read_text())
    evaluate(data["vectors"], data["labels"], distributed=True).save(folder / f"result{rank}.npz")
    instance = evaluate_revisited(data["vectors"][:5], data["vectors"], gnd, distributed=True)
    (folder / f"revisited{rank}.json").write_text(json.dumps(instance.metrics))
    dist.destroy_process_group()


def test_two_processes(tmp_path: Path):
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 25, 201)
    labels[:2] = 1000, 1001  # two queries without a positive
    vectors = rng.standard_normal((201, 12)).astype(np.float32)
    vectors[50:60] = vectors[60:70]
    gnd = [{"easy": [i + 10], "hard": [i + 20, i + 30], "junk": [i]} for i in range(5)]
    np.savez(tmp_path / "data.npz", vectors=vectors, labels=labels)
    (tmp_path / "gnd.json").write_text(json.dumps(gnd))
    context = multiprocessing.get_context("fork")  # a new process would import torch for seconds
    workers = [context.Process(target=_work, args=(rank, tmp_path)) for rank in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
    assert [worker.exitcode for worker in workers] == [0, 0]
    alone = evaluate(vectors, labels)
    instance = evaluate_revisited(vectors[:5], vectors, gnd).metrics
    for rank in range(2):
        with np.load(tmp_path / f"result{rank}.npz") as together:
            for name, column in alone.per_query.items():
                np.testing.assert_array_equal(together[name], column, err_msg=name)
        assert json.loads((tmp_path / f"revisited{rank}.json").read_text()) == instance
