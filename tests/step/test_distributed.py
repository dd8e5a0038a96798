"""W processes with M/W images each do what one process does with M: real processes, talking through Gloo."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import subprocess
import sys
import traceback
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import final_weights, losses, make_images, small_config
from training_toys import difference

import recollect
from recollect.step.distributed import LostProcessError, Processes, distributed_errors
from recollect.training.run import RunFolder
from recollect.training.trainer import train
from step import worker_step


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """For teams of one, two and four, and of four with unequal parts: what each process found."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # A new process would import torch for seconds, and each its part for optimizers.
    importlib.import_module("torch._dynamo")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=worker_step.main, args=(rank, port, folder)) for rank in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0] * 4
    return {
        form: [torch.load(folder / f"{form}-{rank}.pt", weights_only=True) for rank in range(count)]
        for forms, count in (("one", 1), ("two", 2), ("four uneven sharded alone threads", 4))
        for form in forms.split()
    }


@pytest.mark.slow
@pytest.mark.release
def test_the_first_works_alone_again_and_again(results: Any) -> None:
    """The closed form and the verdict of one training: groups of processes must not be taken for earlier ones."""
    assert results["alone"] == [8] * 4


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="names of threads are read from /proc")
def test_no_thread_of_a_group_outlives_it(results: Any) -> None:
    """A thread that releases a tensor while the interpreter ends would end the process with SIGABRT."""
    for before, after in results["threads"]:
        assert any("gloo" in name for name in before)
        assert not any("gloo" in name for name in after)


def test_a_lost_process_leaves_no_group_behind() -> None:
    class Group:
        pass

    seen: list[weakref.ref[Group]] = []

    def collective() -> None:
        group = Group()
        seen.append(weakref.ref(group))
        raise RuntimeError("[gloo] Connection closed by peer")

    with (
        pytest.raises(LostProcessError, match=r"another of the 2 processes.*--resume run") as caught,
        distributed_errors(Processes(0, 2), lambda: "Continue with --resume run."),
    ):
        collective()
    cause = caught.value.__cause__
    assert cause is not None
    assert "in collective" in "".join(traceback.format_tb(cause.__traceback__))
    assert seen[0]() is None, "its threads would go on"


@pytest.mark.slow
@pytest.mark.parametrize("form", ["two", "four", "uneven"])
def test_many_processes_equal_one(results: Any, form: str) -> None:
    alone = results["one"][0]
    together = results[form]
    for name in ("recall", "npair", "proxies", "unequal", "shared"):
        for one in together:
            assert float(one[name]["loss"]) == pytest.approx(float(alone[name]["loss"]), abs=1e-9), name
            assert difference(one[name]["gradients"], alone[name]["gradients"]) < 1e-9, name
            assert difference(one[name]["weights"], alone[name]["weights"]) < 1e-9, name
            assert one[name]["missing"] == alone[name]["missing"] == 1, "an unused parameter keeps no gradient"
    for name in together[0]:  # with "noisy", which draws at random: all must draw the same
        for one in together[1:]:
            assert difference(one[name]["weights"], together[0][name]["weights"]) == 0, "processes drift apart"


@pytest.mark.slow
def test_each_process_computes_only_its_own_queries(results: Any) -> None:
    assert [one["recall"]["queries"] for one in results["four"]] == [5, 5, 5, 5]
    assert [one["recall"]["queries"] for one in results["one"]] == [20]


@pytest.mark.slow
def test_collectives_are_few_and_do_not_grow(results: Any) -> None:
    """Two gathers (a header; embeddings with labels), the embeddings' gradient, and one sum of all parameters."""
    for form in ("two", "four"):
        for one in results[form]:
            assert one["recall"]["collectives"] == {"all_gather": 2, "all_reduce": 2}
            # A loss computed whole everywhere has its gradient at hand: one reduction, that of the parameters.
            assert one["npair"]["collectives"] == {"all_gather": 2, "all_reduce": 1}
            assert one["unequal"]["collectives"] == {"all_gather": 2, "all_reduce": 1}
    assert results["one"][0]["recall"]["collectives"] == {}


@pytest.mark.slow
def test_a_sharded_model_has_the_gradient_of_a_whole_one(results: Any) -> None:
    """And its weights are gathered, its gradients summed, once per step however many chunks there are."""
    expected = results["one"][0]["recall"]["gradients"]
    for one in results["sharded"]:
        assert max(step["part"] for step in one.values()) < 0.5, "each process holds a part"
        for step in one.values():
            assert difference(step["gradients"], expected) < 1e-9
            assert step["collectives"] == one[100]["collectives"]


@pytest.mark.release
def test_torchrun_trains_as_one_process_does(tmp_path: Path) -> None:
    """The whole command line on two processes, with validation, against one process: the same losses and weights."""
    root = make_images(make_images(tmp_path / "images"), classes=6, split="test", seed=1)
    settings = {"optimizer.name": "sgd", "optimizer.lr": 0.1, "data.validation": "random"}
    alone = train(small_config(root, **settings), tmp_path / "alone")
    config, folder = str(tmp_path / "alone" / "config.yaml"), tmp_path / "together"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(recollect.__file__).parents[1])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "recollect", "train", config, "--out", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(done.stdout.count(line) == 1 for line in ("8 on each of 2 processes", "/model (step")), (
        "one process speaks"
    )
    assert losses(folder) == pytest.approx(losses(tmp_path / "alone"), abs=1e-5)
    one, other = final_weights(tmp_path / "alone"), final_weights(folder)
    # Sums in another order differ by up to 1.2e-5 after six such steps; one other crop in the last step, by 1.2e-4.
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 3e-5
    outcome = RunFolder(folder).read_manifest()["outcome"]
    assert outcome["chosen_step"] == alone.chosen_step
    assert outcome["metrics"]["val"] == pytest.approx(alone.metrics["val"], abs=0.05)
