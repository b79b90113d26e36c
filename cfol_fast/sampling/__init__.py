"""Samplers: which examples are drawn next.

Uniform (ERM), Exp3 over classes (CFOL) or examples (FOL), or a fixed class distribution.
"""

from cfol_fast.ranks import Ranks
from cfol_fast.sampling.class_sampler import ClassSampler
from cfol_fast.sampling.example_sampler import ExampleSampler
from cfol_fast.sampling.feedback import feedback
from cfol_fast.sampling.fixed import FixedClassSampler, UniformSampler, two_run_distribution
from cfol_fast.sampling.index_sampler import IndexSampler, Ticket

__all__ = [
    "ClassSampler",
    "ExampleSampler",
    "FixedClassSampler",
    "IndexSampler",
    "Ranks",
    "Ticket",
    "UniformSampler",
    "feedback",
    "two_run_distribution",
]
