"""Everything a training needs, made from its configuration and ready for the first step.

``prepare`` settles what was left open, builds the parts, finds the chunk size and makes the plan; the loop in
``trainer.py`` changes only ``chunk`` (when resuming) and what ``trained`` holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from recollect.common.errors import ConfigError
from recollect.config.automatic import Choice, settle
from recollect.config.schema import Config
from recollect.data import ImageSet, RevisitedBenchmark
from recollect.inference.features import images_at_once
from recollect.inference.opening import is_pretrained
from recollect.step.large_batch import check_trainable_in_chunks, find_chunk
from recollect.step.team import Team
from recollect.training.batches import Feed, PixelFeed
from recollect.training.checkpoint import Trained
from recollect.training.estimate import Plan, make_plan
from recollect.training.optimizer import make_optimizer
from recollect.training.parts import (
    Network,
    Sampler,
    Sets,
    load_sets,
    make_feed,
    make_loss,
    make_network,
    make_sampler,
)
from recollect.training.validation import Watched

_PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass
class Session:
    """The parts of a training."""

    config: Config
    team: Team
    device: torch.device
    dtype: torch.dtype | None
    """Of autocast; None for float32."""
    sets: Sets
    network: Network
    loss: nn.Module
    sampler: Sampler
    feed: Feed
    watched: Sequence[Watched]
    trained: Trained
    plan: Plan
    choices: Sequence[Choice]
    chunk: int
    total_steps: int

    def prepare_feeds(self) -> None:
        """Compute what is computed once (features of a frozen part), after the plan is told and before a run begins."""
        for feed in (self.feed, *(watched.feed for watched in self.watched)):
            feed.prepare()

    def close(self) -> None:
        """Let go of threads."""
        for feed in (self.feed, *(watched.feed for watched in self.watched)):
            feed.close()


def prepare(config: Config, device: torch.device, team: Team) -> Session:
    """Build everything; after this call nothing about the training is open.

    Raises:
        ConfigError: settings that cannot be on this machine or with these images.
    """
    sets = load_sets(config)
    config, choices = settle(config, sets.train, device, is_pretrained(config.model))
    dtype = _prepare_torch(config, device)
    network = make_network(config, device)
    check_trainable_in_chunks(network.trained)
    network.trained.train()
    loss = make_loss(config, len(sets.train.class_names), network.embedder.dim).to(device)
    sampler = make_sampler(config, sets.train)
    feed = make_feed(config, network, sets.train, training=True)
    watched = [
        _watch(config, network, team, name, images, benchmark)
        for name, images, benchmark in (("val", sets.validation, sets.benchmark), ("test", sets.test, None))
        if images is not None
    ]
    trained = Trained(
        model=network.embedder,
        loss=loss,
        optimizer=make_optimizer(config.optimizer, network.embedder, loss),
        scaler=torch.amp.GradScaler(device.type, enabled=dtype == torch.float16),
        device=device,
        team=team,
    )
    chunk, steps, plan = _plan(config, sets, network, sampler, feed, team, device, dtype)
    # From here on processes draw different numbers (dropout), having built the same network.
    torch.manual_seed(config.run.seed + 7919 * (team.rank + 1))
    return Session(
        config, team, device, dtype, sets, network, loss, sampler, feed, watched, trained, plan, choices, chunk, steps
    )


def _prepare_torch(config: Config, device: torch.device) -> torch.dtype | None:
    if config.run.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    if config.run.precision == "fp16" and device.type == "cpu":
        raise ConfigError("run.precision fp16 is for GPUs, and this runs on the CPU: use bf16 or fp32.")
    return _PRECISIONS[config.run.precision]


def _watch(
    config: Config, network: Network, team: Team, name: str, images: ImageSet, benchmark: RevisitedBenchmark | None
) -> Watched:
    """The set with this process's part of it."""
    start, stop = (len(images) * rank // team.size for rank in (team.rank, team.rank + 1))
    mine = images if team.size == 1 else images.subset(np.arange(start, stop))
    if benchmark is not None:  # an image left out would shift the ground truth
        config = replace(config, data=replace(config.data, on_bad_image="error"))
    feed = make_feed(config, network, mine, training=False)
    return Watched(name, images, feed, start, images_at_once(network.embedder.preprocessing), benchmark)


def _plan(
    config: Config,
    sets: Sets,
    network: Network,
    sampler: Sampler,
    feed: Feed,
    team: Team,
    device: torch.device,
    dtype: torch.dtype | None,
) -> tuple[int, int, Plan]:
    """The chunk size, the number of steps, and the plan."""
    batch = config.batch.size if isinstance(config.batch.size, int) else len(sets.train)
    mine = -(-batch // team.size)
    example, share = feed.example()
    # For "auto": one image seen M times weighs what M images weigh at most, and needs no reading.
    copies = example.expand(mine, *example.shape[1:])
    wanted = config.batch.chunk
    chunk = min(find_chunk(network.trained, copies, dtype) if wanted == "auto" else wanted, mine)
    sampler.set_epoch(0)
    # Exact for the paper's policy, whose epochs are equally long; nearly so for the released code's.
    steps = config.run.steps or (len(sampler) * config.run.epochs if isinstance(config.run.epochs, int) else 0)
    plan = make_plan(
        config,
        sets,
        model=network.embedder,
        trained=network.trained,
        inputs=example,
        share=share,
        whole_images=isinstance(feed, PixelFeed) and feed.pipeline.transform.size is None,
        chunk=chunk,
        batch=batch,
        batches_an_epoch=len(sampler),
        steps=steps,
        processes=team.size,
        device=device,
        dtype=dtype,
    )
    return chunk, steps, plan
