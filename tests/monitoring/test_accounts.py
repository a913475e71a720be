"""Contract C9: where the time of each epoch went."""

from __future__ import annotations

import pytest

from overlap_train.monitoring.accounts import Accounts
from overlap_train.records import Span


def span(name, start, end, epoch):
    return Span(name, "t", float(start), float(end), epoch)


def test_an_epoch_that_is_validated_while_the_next_one_is_trained():
    accounts = Accounts()
    accounts.begin(0)
    accounts.trained(span("train", 0, 4, 0), 3)
    accounts.trained(span("train", 5, 6, 0), 2)
    assert accounts.trained_s(0) == 5
    accounts.add(0, "snapshot_s", 0.5)
    accounts.begin(1)
    accounts.trained(span("train", 7, 9, 1), 5)
    accounts.validated(0, [span("validate", 6, 8, 0), span("validate", 8.5, 10, 0)])
    accounts.add(0, "waited_s", 1.0)
    accounts.add(0, "waited_s", 0.25)
    account = accounts.close(0)
    assert (account.epoch, account.steps, account.trained_s) == (0, 5, 5)
    assert account.validated_s == 4, "from the first part's start to the last one's end"
    assert account.hidden_s == 1.5, "beside training calls only"
    assert (account.waited_s, account.snapshot_s) == (1.25, 0.5)
    assert accounts.closed() == [account]


def test_what_is_rolled_back_is_told_and_forgotten():
    accounts = Accounts()
    for epoch in range(3):
        accounts.begin(epoch)
        accounts.trained(span("train", 10 * epoch, 10 * epoch + 4, epoch), 1)
    assert accounts.drop_after(0) == 8
    accounts.add(0, "rolled_back_s", 8)
    assert accounts.close(0).rolled_back_s == 8
    accounts.begin(1)
    accounts.trained(span("train", 40, 41, 1), 1)
    assert accounts.close(1).trained_s == 1
    assert [account.epoch for account in accounts.closed()] == [0, 1]


def test_closed_epochs_keep_no_spans():
    accounts = Accounts()
    for epoch in range(50):
        accounts.begin(epoch)
        accounts.trained(span("train", epoch, epoch + 0.5, epoch), 1)
        if epoch:
            accounts.close(epoch - 1)
        assert len(accounts._recent) <= 2


def test_a_name_that_no_account_has_is_refused():
    accounts = Accounts()
    accounts.begin(0)
    accounts.add(0, "lost_s", 1.0)
    with pytest.raises(TypeError, match="lost_s"):
        accounts.close(0)


def test_the_host_that_the_others_waited_for_is_noted():
    accounts = Accounts()
    accounts.begin(0)
    accounts.slow_host(0, 3, 1.5)
    account = accounts.close(0)
    assert (account.slow_host, account.slow_host_s) == (3, 1.5)
