"""What ranks agree on after a step, with another rank that is played: nothing that one of them alone knows
makes it leave or wait.
"""

from __future__ import annotations

import os
import signal

import pytest
import torch

from cfol_fast import processes
from cfol_fast.errors import Stopped, TrainingFailed
from cfol_fast.training.signals import STOPPING, StopRequest
from tests.training import tiny


class TwoRanks:
    """theirs: what the other rank knows of signal, save, request to save and bar. meanwhile: what happens
    while the two talk.
    """

    size, is_first = 2, True

    def __init__(self, theirs=(0, 0, 0, 0), meanwhile=lambda: None):
        self.theirs, self.meanwhile = torch.tensor(theirs), meanwhile

    def largest(self, known):
        # During an evaluation the ranks exchange the request to save alone.
        found = torch.maximum(known, self.theirs if known.ndim else self.theirs[2])
        self.meanwhile()
        return found


@pytest.fixture
def trainer(few_images, tmp_path):
    return tiny.new_trainer(tmp_path)


def test_a_signal_to_another_rank_stops_this_one(trainer):
    trainer.agreement.ranks = TwoRanks((signal.SIGTERM, 0, 0, 0))
    assert trainer.agreement.reach() == (signal.SIGTERM, False, False)


def test_a_signal_while_the_ranks_talk_waits_for_the_next_step_and_is_not_lost(trainer):
    with StopRequest() as trainer.agreement.stop:
        trainer.agreement.ranks = TwoRanks(meanwhile=lambda: os.kill(os.getpid(), signal.SIGTERM))
        # The other rank takes its next step: alone, this one would wait for it forever.
        assert trainer.agreement.reach() == (None, False, False)
        trainer.agreement.ranks.meanwhile = lambda: None
        assert trainer.agreement.reach() == (signal.SIGTERM, False, False)


def test_the_first_ctrl_c_of_a_rank_is_no_second_one_because_another_had_it_before(trainer):
    with StopRequest() as trainer.agreement.stop:
        trainer.agreement.ranks = TwoRanks((signal.SIGINT, 0, 0, 0))
        trainer.agreement.reach()
        os.kill(os.getpid(), signal.SIGINT)
        assert trainer.agreement.stop.requested
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_request_to_save_that_another_rank_got_is_met_by_all_once(trainer, monkeypatch):
    saved = []
    monkeypatch.setattr(trainer.state, "save", lambda: saved.append(trainer.position.step))
    trainer.agreement.ranks, trainer.position.step = TwoRanks((0, 0, 1, 0)), 1
    trainer.between_steps()
    trainer.agreement.heed_signals()
    trainer.agreement.ranks = TwoRanks()
    trainer.between_steps()
    trainer.agreement.heed_signals()
    assert saved == [1, 1]


def test_a_request_to_save_during_the_evaluation_before_the_first_step_waits_for_that_step(
    trainer, monkeypatch
):
    saved = []
    monkeypatch.setattr(trainer.state, "save", lambda: saved.append(trainer.position.step))
    with StopRequest() as trainer.agreement.stop:
        os.kill(os.getpid(), signal.SIGUSR1)
        trainer.agreement.heed_signals()
        assert not saved
        trainer.position.step = 1
        trainer.between_steps()
    assert saved == [1]


def test_one_ctrl_c_after_another_signal_does_not_leave_without_saving(trainer):
    with StopRequest() as trainer.agreement.stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Stopped) as stopped:
            trainer.between_steps()
    assert stopped.value.signal_number == signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_is_ignored_from_outside_stays_ignored(number):
    """A script's background job ignores Ctrl-C, a job under nohup a closed terminal."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), number)
            assert not stop.requested
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)


def test_a_handler_for_sigusr1_that_was_there_before_is_called_too():
    heard = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with StopRequest() as stop:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.take_save()
            assert not stop.take_save()
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_alone_a_signal_stops_at_once(trainer):
    with StopRequest() as trainer.agreement.stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert trainer.agreement.reach() == (signal.SIGTERM, False, False)
        with pytest.raises(Stopped):
            trainer.between_steps()


def test_a_bar_that_is_due_in_the_meantime_reads_nothing_alone(trainer, monkeypatch):
    trainer.agreement.ranks = TwoRanks()
    monkeypatch.setattr(trainer.step.counts, "over_ranks", lambda: pytest.fail("the other rank is not here"))
    trainer.agreement.reach()
    assert trainer.agreement.reading() is None


def test_the_cause_of_an_end_is_told_before_the_others_see_that_a_rank_is_gone(monkeypatch):
    """Whoever asks first is the one that speaks."""

    class Store:
        said = 0

        def add(self, key, number):
            Store.said += number
            return Store.said

    monkeypatch.setattr(processes, "_store", Store())
    monkeypatch.setattr(processes, "_has_the_word", None)
    assert processes.speaks_first()
    assert not processes.speaks_first()
    monkeypatch.setattr(processes, "_has_the_word", True)
    assert processes.speaks_first()


def test_a_checkpoint_that_could_not_be_written_is_said_by_every_rank(trainer, monkeypatch):
    class Ranks(TwoRanks):
        def gather_objects(self, mine):
            return [mine, mine]

        def from_first(self, work):
            raise TrainingFailed("the disk is full")

    monkeypatch.setattr(trainer.state, "continuation", lambda: None)
    trainer.state.ranks = Ranks()
    with pytest.raises(TrainingFailed, match="full"):
        trainer.state.save()


@pytest.mark.parametrize(
    ("says_so", "number", "lines"),
    [(True, signal.SIGINT, 1), (False, signal.SIGINT, 0), (True, signal.SIGTERM, 0)],
)
def test_ctrl_c_is_answered_before_the_step_ends_once_and_only_where_lines_are_shown(
    capfd, says_so, number, lines
):
    with StopRequest(says_so) as stop:
        os.kill(os.getpid(), number)
        assert stop.signal_number == number
        assert capfd.readouterr().err.count(STOPPING) == lines
        if number == signal.SIGINT:
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
            assert capfd.readouterr().err == ""
