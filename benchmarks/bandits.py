"""The bandits without native code: the same work batched in torch, one draw at a time in Python, and a sum
tree in Python.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cfol_fast import ops

GAMMA, ETA = 0.5, 2e-6


class TorchBandit:
    """Exp3 over classes, batched: softmax, multinomial, gather, index_add_."""

    def __init__(self, labels: Tensor, k: int, device: str = "cpu") -> None:
        self.offsets, self.members = (part.to(device) for part in ops.group_by_class(labels, k))
        self.counts = self.offsets.diff()
        self.w = torch.zeros(k, dtype=torch.float64, device=device)
        self.k = k

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        """(idx (n,), p (k,))."""
        p = GAMMA / self.k + (1 - GAMMA) * torch.softmax(self.w, 0)
        y = torch.multinomial(p, n, replacement=True)
        within = (torch.rand(n, dtype=torch.float64, device=p.device) * self.counts[y]).long()
        return self.members[self.offsets[y] + within], p

    def update(self, y: Tensor, loss: Tensor, p: Tensor) -> None:
        self.w.index_add_(0, y, ETA * loss.double() / p[y])


class LoopBandit:
    """The same, one example at a time, as in a torch `Sampler` that is asked for one index after another."""

    def __init__(self, labels: Tensor, k: int) -> None:
        self.members = [(labels == c).nonzero().squeeze(1).tolist() for c in range(k)]
        self.w = torch.zeros(k, dtype=torch.float64)
        self.k = k

    def p(self) -> Tensor:
        return GAMMA / self.k + (1 - GAMMA) * torch.softmax(self.w, 0)

    def draw(self, n: int) -> list[int]:
        return [random.choice(self.members[int(torch.multinomial(self.p(), 1))]) for _ in range(n)]

    def update(self, y: Tensor, loss: Tensor) -> None:
        p = self.p()
        for label, value in zip(y.tolist(), loss.tolist(), strict=True):
            self.w[label] += ETA * value / p[label]


class ListBandit:
    """The same on plain lists, p computed once per batch: the fastest we could write in Python."""

    def __init__(self, labels: Tensor, k: int) -> None:
        self.members = [(labels == c).nonzero().squeeze(1).tolist() for c in range(k)]
        self.w = [0.0] * k
        self.classes = range(k)
        self.drawn = [1 / k] * k

    def draw(self, n: int) -> list[int]:
        largest = max(self.w)
        exponents = [math.exp(w - largest) for w in self.w]
        share, floor = (1 - GAMMA) / sum(exponents), GAMMA / len(self.w)
        self.drawn = [floor + share * e for e in exponents]
        return [random.choice(self.members[c]) for c in random.choices(self.classes, self.drawn, k=n)]

    def update(self, y: list[int], loss: list[float]) -> None:
        for label, value in zip(y, loss, strict=True):
            self.w[label] += ETA * value / self.drawn[label]


class TorchExampleBandit:
    """Exp3 over examples with `torch.multinomial` over all of them."""

    def __init__(self, n: int) -> None:
        self.w = torch.zeros(n)
        self.n = n

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        p = GAMMA / self.n + (1 - GAMMA) * torch.softmax(self.w, 0)
        idx = torch.multinomial(p, n, replacement=True)
        return idx, p[idx]

    def update(self, idx: Tensor, loss: Tensor, p: Tensor) -> None:
        self.w.index_add_(0, idx, 1e-7 * loss / p)


class PythonTree:
    """Exp3 over examples on a binary tree of sums in plain Python lists: O(log N) per draw, one at a time."""

    def __init__(self, n: int) -> None:
        self.leaves = 1 << (n - 1).bit_length()
        self.n = n
        level = [1.0] * n + [0.0] * (self.leaves - n)
        levels = [level]
        while len(level) > 1:
            level = [a + b for a, b in zip(level[::2], level[1::2], strict=True)]
            levels.append(level)
        self.sums = [0.0, *(value for level in reversed(levels) for value in level)]

    def draw(self, n: int) -> tuple[list[int], list[float]]:
        drawn, chances = [], []
        for _ in range(n):
            if random.random() < GAMMA:
                i = random.randrange(self.n)
            else:
                node, rest = 1, random.random() * self.sums[1]
                while node < self.leaves:
                    node *= 2
                    if rest >= self.sums[node]:
                        rest -= self.sums[node]
                        node += 1
                i = node - self.leaves
            drawn.append(i)
            chances.append(GAMMA / self.n + (1 - GAMMA) * self.sums[self.leaves + i] / self.sums[1])
        return drawn, chances

    def update(self, idx: list[int], loss: list[float], p: list[float]) -> None:
        for i, value, chance in zip(idx, loss, p, strict=True):
            node = self.leaves + i
            gain = self.sums[node] * (math.exp(1e-7 * value / chance) - 1)
            while node:
                self.sums[node] += gain
                node //= 2


class ArrayTree:
    """The tree of prioritised replay (rlcode/per and its many copies): one numpy array, walked down and up by
    recursion.
    """

    def __init__(self, n: int) -> None:
        self.n = n
        leaves = 1 << (n - 1).bit_length()
        level = np.zeros(leaves)
        level[:n] = 1.0
        levels = [level]
        while len(level) > 1:
            level = level[::2] + level[1::2]
            levels.append(level)
        self.first = leaves - 1
        self.sums: Any = np.concatenate(levels[::-1])

    def _retrieve(self, node: int, rest: float) -> int:
        left = 2 * node + 1
        if left >= len(self.sums):
            return node
        if rest <= self.sums[left]:
            return self._retrieve(left, rest)
        return self._retrieve(left + 1, rest - self.sums[left])

    def _propagate(self, node: int, change: float) -> None:
        parent = (node - 1) // 2
        self.sums[parent] += change
        if parent != 0:
            self._propagate(parent, change)

    def draw(self, n: int) -> tuple[list[int], list[float]]:
        drawn, chances = [], []
        for _ in range(n):
            if random.random() < GAMMA:
                node = self.first + random.randrange(self.n)
            else:
                node = self._retrieve(0, random.random() * self.sums[0])
            drawn.append(node - self.first)
            chances.append(GAMMA / self.n + (1 - GAMMA) * self.sums[node] / self.sums[0])
        return drawn, chances

    def update(self, idx: list[int], loss: list[float], p: list[float]) -> None:
        for i, value, chance in zip(idx, loss, p, strict=True):
            node = self.first + i
            gain = self.sums[node] * (math.exp(1e-7 * value / chance) - 1)
            self.sums[node] += gain
            self._propagate(node, gain)


class TensorTree(ArrayTree):
    """The same on a torch tensor, where the rest of a torch sampler's state is."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.sums = torch.from_numpy(self.sums)
