"""Claims on trials: never too many, never lost, never one counted that did not end."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recollect.common.errors import ConfigError, DataError
from recollect.tuning.space import read_space
from recollect.tuning.study_database import GRACE, Lease, LostTrialError, StudyDatabase, shown_address


def draw(lease: Lease) -> float:
    return float(lease.trial.suggest_float("lr", 0.0, 1.0))


def leave(store: StudyDatabase, lease: Lease) -> None:
    """What a killed process does: nothing but letting go of its lock."""
    lease.lock.close()


def done(store: StudyDatabase, lease: Lease, value: float = 0.5) -> None:
    with store.at_work(lease):
        draw(lease)
        store.finish(lease, "COMPLETE", value, {})


def take(store: StudyDatabase, total: int) -> Lease:
    lease = store.claim(total)
    assert lease is not None
    return lease


def states(store: StudyDatabase) -> dict[int, str]:
    return {slot: trial.state.name for slot, trial in store.slots().items()}


def test_no_more_trials_than_asked_for(tmp_path: Path) -> None:
    one, other = StudyDatabase(tmp_path), StudyDatabase(tmp_path)
    first, second = take(one, 2), take(other, 2)
    assert (first.slot, second.slot) == (0, 1)
    assert one.claim(2) is None
    assert other.claim(2) is None
    done(one, first)
    done(other, second)
    assert one.claim(2) is None
    assert states(other) == {0: "COMPLETE", 1: "COMPLETE"}
    assert take(one, 3).slot == 2


def test_without_a_common_lock_the_later_of_two_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = StudyDatabase(tmp_path), StudyDatabase(tmp_path)
    one._guard_file = other._guard_file = None  # as with a database server
    ask = one.study.ask

    def late() -> Any:
        monkeypatch.setattr(one.study, "ask", ask)
        assert take(other, 1).slot == 0  # between the count and the question
        return ask()

    monkeypatch.setattr(one.study, "ask", late)
    assert one.claim(1) is None
    assert states(one) == {0: "RUNNING"}


def test_a_trial_whose_process_died_is_done_again_with_the_same_settings(tmp_path: Path) -> None:
    store = StudyDatabase(tmp_path)
    lease = take(store, 1)
    drawn = draw(lease)
    assert store.claim(1) is None  # alive
    leave(store, lease)
    again = take(StudyDatabase(tmp_path), 1)
    assert (again.slot, draw(again)) == (0, drawn)
    assert states(store) == {0: "RUNNING"}
    done(store, again)
    assert store.claim(1) is None
    assert states(store) == {0: "COMPLETE"}
    assert take(store, 2).slot == 1  # the repetition has left no gap


def test_a_trial_killed_before_it_drew_draws_what_it_would_have(tmp_path: Path) -> None:
    expected = draw(take(StudyDatabase(tmp_path / "one"), 1))
    store = StudyDatabase(tmp_path / "two")
    leave(store, take(store, 1))
    assert draw(take(store, 1)) == expected


def test_a_process_on_another_machine_is_known_by_its_beat(tmp_path: Path) -> None:
    store, far = (
        StudyDatabase(tmp_path / "here", str(tmp_path / "x.db")),
        StudyDatabase(tmp_path / "there", str(tmp_path / "x.db")),
    )
    far.study = store.study
    lease = take(far, 1)
    leave(far, lease)  # its lock tells nothing here: it lies in another folder
    assert store.claim(1) is None
    lease.trial.set_user_attr("beat", time.time() - GRACE - 1)
    assert take(store, 1).slot == 0


def test_a_process_that_holds_its_lock_is_alive_however_long_it_slept(tmp_path: Path) -> None:
    store, other = StudyDatabase(tmp_path), StudyDatabase(tmp_path)
    lease = take(store, 1)
    draw(lease)
    lease.trial.set_user_attr("beat", time.time() - 100 * GRACE)
    assert other.claim(1) is None
    done(store, lease)
    assert states(other) == {0: "COMPLETE"}


@pytest.mark.parametrize("queued", [False, True])
def test_a_process_killed_before_it_signed_is_known_at_once(tmp_path: Path, queued: bool) -> None:
    store = StudyDatabase(tmp_path)
    if queued:
        with pytest.raises(KeyboardInterrupt), store.at_work(take(store, 1)):
            raise KeyboardInterrupt
    store.study.ask()  # and then nothing
    lease = take(StudyDatabase(tmp_path), 1)
    assert lease.slot == 0
    store._guard_file = None  # with a database server the other may be about to sign
    store.study.ask()
    assert store.release_dead() == []


@pytest.mark.parametrize("late", ["finish", "fact", "report"])
def test_a_trial_that_was_given_away_is_a_sentence(tmp_path: Path, late: str) -> None:
    one, other = (StudyDatabase(tmp_path / name / "s", str(tmp_path / "x.db")) for name in ("here", "there"))
    lease = take(one, 1)
    drawn = draw(lease)
    lease.trial.set_user_attr("beat", time.time() - GRACE - 1)
    taken = take(other, 1)
    assert (taken.slot, draw(taken)) == (0, drawn)
    writes: dict[str, Callable[[], None]] = {
        "finish": lambda: one.finish(lease, "COMPLETE", 0.9, {}),
        "fact": lambda: lease.trial.set_user_attr("drawn", {}),
        "report": lambda: lease.trial.report(0.9, 1),
    }
    with pytest.raises(LostTrialError, match=r"0000 .*another process"), one.at_work(lease):
        writes[late]()
    done(other, taken, 0.5)
    assert [(slot, trial.value) for slot, trial in one.slots().items()] == [(0, 0.5)]


def test_an_error_after_the_result_is_in_is_that_error(tmp_path: Path) -> None:
    store = StudyDatabase(tmp_path)
    lease = take(store, 1)

    def end() -> None:
        store.finish(lease, "COMPLETE", 0.5, {})
        raise RuntimeError("the pipe broke")

    with pytest.raises(RuntimeError, match="the pipe broke"), store.at_work(lease):
        end()
    assert states(store) == {0: "COMPLETE"}


def test_beats_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.tuning.study_database.BEAT", 0.02)
    store = StudyDatabase(tmp_path)
    lease = take(store, 1)
    before = lease.trial.user_attrs["beat"]
    with store.at_work(lease):
        until = time.monotonic() + 600
        while store.trials()[0].user_attrs["beat"] == before and time.monotonic() < until:
            time.sleep(0.02)
        assert store.trials()[0].user_attrs["beat"] > before
        store.finish(lease, "COMPLETE", 0.1, {})


@pytest.mark.parametrize("error", [KeyboardInterrupt, DataError, SystemExit])
def test_an_interrupted_trial_is_queued(tmp_path: Path, error: type[BaseException]) -> None:
    store = StudyDatabase(tmp_path)
    lease = take(store, 1)
    draw(lease)
    with pytest.raises(error), store.at_work(lease):
        raise error
    assert states(store) == {0: "WAITING"}
    assert take(store, 1).slot == 0


def test_a_trial_that_failed_by_itself_counts(tmp_path: Path) -> None:
    store = StudyDatabase(tmp_path)
    lease = take(store, 1)
    with store.at_work(lease):
        store.finish(lease, "FAIL", None, {"failure": "the loss is nan"})
    assert store.claim(1) is None
    assert states(store) == {0: "FAIL"}
    assert take(store, 2).slot == 1


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_draws_depend_on_seed_and_slot_not_on_who_draws(tmp_path: Path, sampler: str) -> None:
    alone = StudyDatabase(tmp_path / "alone", sampler=sampler)
    one_by_one = []
    for _ in range(4):
        lease = take(alone, 4)
        one_by_one.append(draw(lease))
        with alone.at_work(lease):
            alone.finish(lease, "COMPLETE", 0.5, {})
    stores = [StudyDatabase(tmp_path / "many", sampler=sampler) for _ in range(2)]
    leases = []  # a lease that is thrown away lets go of its lock
    for number, expected in enumerate(one_by_one):
        leases.append(take(stores[number % 2], 4))
        assert draw(leases[-1]) == expected
    assert len(set(one_by_one)) == 4
    other = StudyDatabase(tmp_path / "seed", sampler=sampler, seed=1)
    assert draw(take(other, 1)) != one_by_one[0]


@pytest.mark.slow
def test_tpe_learns_within_the_space_and_is_resumed_exactly(tmp_path: Path) -> None:
    """Ten random draws, then TPE's own: they follow what was found, stay in bounds, and are the same after a kill."""
    space = read_space(["lr=1e-4:1e-2", "decays=1:3", "loss.name=a,b"], {})

    def drawn(lease: Lease) -> dict[str, Any]:
        return {name: parameter.draw(lease.trial) for name, parameter in space.items()}

    draws: dict[int, list[dict[str, Any]]] = {1: [], -1: []}
    for sign, found in draws.items():  # the higher the learning rate the better, and the other way round
        store = StudyDatabase(tmp_path / str(sign), sampler="tpe")
        for number in range(16):
            if number == 12:
                shutil.copytree(
                    tmp_path / str(sign), tmp_path / "killed" / str(sign)
                )  # a study is called like its folder
            lease = take(store, 16)
            with store.at_work(lease):
                found.append(drawn(lease))
                store.finish(lease, "COMPLETE", sign * math.log10(found[-1]["lr"]), {})
    up, down = draws[1], draws[-1]
    assert up[:10] == down[:10]  # its start knows nothing
    assert len({values["lr"] for values in up}) == 16
    higher, lower = (np.mean([math.log10(values["lr"]) for values in some[10:]]) for some in (up, down))
    assert higher > lower + 0.4  # of the two decades that there are
    for values in up + down:
        assert 1e-4 <= values["lr"] <= 1e-2
        assert values["decays"] in (1, 2, 3)
        assert values["loss.name"] in ("a", "b")

    killed = tmp_path / "killed" / "1"
    leave(store, take(StudyDatabase(killed, sampler="tpe"), 16))  # before it drew
    second = take(StudyDatabase(killed, sampler="tpe"), 16)
    assert (second.slot, drawn(second)) == (12, up[12])
    leave(store, second)  # after
    third = take(StudyDatabase(killed, sampler="tpe"), 16)
    assert (third.slot, drawn(third)) == (12, up[12])


def test_a_study_of_something_else_is_refused(tmp_path: Path) -> None:
    StudyDatabase(tmp_path).agree({"recipe": "glyphs", "space": {"lr": "1:2"}, "settings": {"batch": {"size": 4}}})
    store = StudyDatabase(tmp_path)
    store.agree({"recipe": "glyphs", "space": {"lr": "1:2"}, "settings": {"batch": {"size": 4}}})
    with pytest.raises(ConfigError, match=r"space\.lr is 1:2 .*1:3 .*batch\.size is 4 .*8"):
        store.agree({"recipe": "glyphs", "space": {"lr": "1:3"}, "settings": {"batch": {"size": 8}}})


def test_mistakes_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--sampler grid .*random, tpe"):
        StudyDatabase(tmp_path, sampler="grid")
    with pytest.raises(ConfigError, match="--pruner hyperband is unknown"):
        StudyDatabase(tmp_path, pruner="hyperband")
    (tmp_path / "no.db").write_text("this is no database, but a text of some length. " * 100)
    with pytest.raises(DataError, match=r"no.db.* cannot be opened"):
        StudyDatabase(tmp_path, str(tmp_path / "no.db"))
    with pytest.raises(DataError) as refused:
        StudyDatabase(tmp_path, "nosuchdriver://user:secret@host/name")
    assert "secret" not in str(refused.value)


def test_addresses_are_shown_without_their_password() -> None:
    assert shown_address("postgresql://me:p@ss@host/db") == "postgresql://me@host/db"
    assert shown_address("sqlite:////tmp/a.db") == "sqlite:////tmp/a.db"
