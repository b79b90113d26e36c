"""Batches on their way to the step: each comes with the ticket that drew it, however far ahead the source
draws.
"""

import itertools
from collections import deque

import pytest
import torch

from cfol_fast.ranks import Ranks
from cfol_fast.sampling import ClassSampler, ExampleSampler
from cfol_fast.training.batches import TrainingBatches

LABELS = torch.arange(40) % 4


class DrawingAhead:
    """A source of constant images that asks for `lag` draws before it gives the first batch."""

    def __init__(self, lag: int) -> None:
        self.lag = lag

    def feed(self, draw, steps, first=0):
        ahead = deque()
        for step in range(steps):
            while len(ahead) <= self.lag and step + len(ahead) < steps:
                ahead.append(draw())
            indices = ahead.popleft()
            yield indices, torch.zeros(len(indices), 1, 2, 2), LABELS[indices]


class RecordingSampler(ClassSampler):
    """Keeps each draw with its ticket."""

    def __init__(self) -> None:
        super().__init__(LABELS, eta=0.02, seed=1)
        self.draws: list[tuple[torch.Tensor, torch.Tensor]] = []

    def draw(self, n):
        indices = super().draw(n)
        self.draws.append((indices.clone(), self.ticket().clone()))
        return indices


def learn(sampler, batch) -> None:
    sampler.observe(batch.indices, batch.y, (batch.y == 2).float(), batch.ticket)


@pytest.mark.parametrize("lag", [0, 3])
def test_every_batch_brings_its_own_indices_labels_and_ticket(lag):
    sampler = RecordingSampler()
    for step, batch in enumerate(TrainingBatches(sampler, DrawingAhead(lag), 8).feed(10)):
        indices, ticket = sampler.draws[step]
        assert torch.equal(batch.indices, indices)
        assert torch.equal(batch.ticket, ticket)
        assert torch.equal(batch.y, LABELS[indices])
        learn(sampler, batch)
    assert len(sampler.draws) == 10
    # The distribution moved, so the tickets differ.
    assert len({tuple(ticket.tolist()) for _, ticket in sampler.draws}) == 10 - lag


@pytest.mark.parametrize("lag", [0, 2])
def test_a_loop_that_was_left_and_continued_gets_the_batches_of_one_that_was_not(lag):
    def drawn(*parts: int) -> list[list[int]]:
        sampler, found = RecordingSampler(), []
        batches, saved = TrainingBatches(sampler, DrawingAhead(lag), 8), None
        for part in parts:
            if saved is not None:
                batches = TrainingBatches(sampler, DrawingAhead(lag), 8)
                batches.load_state_dict(saved)
            feed = batches.feed(sum(parts) - len(found))
            for batch in itertools.islice(feed, part):
                learn(sampler, batch)
                found.append(batch.indices.tolist())
            feed.close()
            saved = batches.state_dict()
        return found

    assert drawn(3, 1, 4) == drawn(8)


def test_what_was_drawn_and_not_trained_on_is_in_the_state():
    sampler = RecordingSampler()
    batches = TrainingBatches(sampler, DrawingAhead(2), 8)
    feed = batches.feed(5)
    next(feed)
    waiting = batches.state_dict()["drawn"]
    assert [draw["idx"].tolist() for draw in waiting] == [idx.tolist() for idx, _ in sampler.draws[1:3]]
    assert all(
        torch.equal(draw["ticket"], t) for draw, (_, t) in zip(waiting, sampler.draws[1:], strict=True)
    )


@pytest.mark.parametrize("make", [lambda: ClassSampler(LABELS, seed=1), lambda: ExampleSampler(40, seed=1)])
def test_draws_that_wait_are_divided_among_another_number_of_ranks(make):
    alone = TrainingBatches(make(), DrawingAhead(2), 8)
    next(alone.feed(5))
    state = alone.state_dict()
    assert len(state["drawn"]) == 2
    expected = list(itertools.islice(alone.feed(2), 2))
    parts = []
    for rank in range(2):
        sampler = make()
        sampler.ranks = Ranks(rank, 2)
        mine = TrainingBatches(sampler, DrawingAhead(2), 8)
        mine.load_state_dict(state)
        parts.append(list(itertools.islice(mine.feed(2), 2)))
    for batch, *of_ranks in zip(expected, *parts, strict=True):
        assert torch.equal(torch.cat([part.indices for part in of_ranks]), batch.indices)
        tickets = [part.ticket for part in of_ranks]
        whole = torch.cat(tickets) if make().tickets_each_example else tickets[1]
        assert torch.equal(whole, batch.ticket)
