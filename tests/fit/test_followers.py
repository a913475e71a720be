"""What the chief's callbacks do reaches the other hosts, and theirs do nothing of their own."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from overlap_train._checkpoint.content import StartPoint
from overlap_train._data.array_feed import make_feed
from overlap_train._data.cursor import Cursor, CursorState
from overlap_train._fit.followers import deliver_together, start_together
from overlap_train._keras.data import recognize
from overlap_train._snapshot import ModelState, Snapshot
from overlap_train.errors import HostMismatchError
from overlap_train.records import Reason, ValidationResult
from tests.parallel.together import on_hosts

kc = keras.callbacks
RESULTS = {"": ValidationResult({"loss": 0.5})}


class Place:
    """One host's model with its state."""

    def __init__(self):
        self.model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, name="d", kernel_initializer="ones")]
        )
        self.model.compile(keras.optimizers.SGD(0.1), "mse")
        self.model.optimizer.build(self.model.trainable_variables)
        self.state = ModelState(self.model)
        self.model.stop_training = False
        self.history = self.model.history = kc.History()
        self.history.on_train_begin()

    @property
    def kernel(self):
        return float(self.model.get_weights()[0].item())

    @property
    def rate(self):
        return round(float(self.model.optimizer.learning_rate), 6)

    def set(self, kernel):
        self.model.layers[-1].kernel.assign([[kernel]])

    def together(self, host, *callbacks, on_change="rollback", in_step=None):
        """Returns the callbacks and the delivery of this host."""
        settings = SimpleNamespace(hosts=host, validation=SimpleNamespace(on_change=on_change))
        found = kc.CallbackList([*callbacks, self.history], model=self.model)  # in Keras's order
        request = SimpleNamespace(model=self.model, settings=settings)
        suite = SimpleNamespace(reasons=in_step or [], live_sets=lambda epoch: [])
        suite.evaluate = lambda *asked, alone: ValidationResult({"loss": 0.25})
        return deliver_together(request, self.state, found, suite)

    def snapshot(self, epoch=0):
        return Snapshot(epoch, 4 * epoch + 4, self.state.read(), None)


class Sets(kc.Callback):
    """Sets a weight when an epoch begins, and the learning rate when it ends."""

    def __init__(self, stop=False):
        super().__init__()
        self.stop, self.calls = stop, []

    def on_epoch_begin(self, epoch, logs=None):
        self.calls.append("begin")
        self.model.layers[-1].kernel.assign([[7.0]])
        self.model.stop_training = self.stop

    def on_epoch_end(self, epoch, logs=None):
        self.calls.append("end")
        self.model.optimizer.learning_rate = 0.5
        self.model.stop_training = self.stop


@pytest.fixture
def places():
    return [Place(), Place()]


def test_a_validation_in_step_is_for_one_host(places):
    def work(host):
        in_step = [] if host.index else [Reason("draws", "it draws", ("draw in it",))]
        places[host.index].together(host, in_step=in_step)

    for error in on_hosts(work):
        assert "it draws; draw in it; that is for one host" in str(error)


@pytest.mark.parametrize("stop", [False, True])
def test_what_a_hook_of_the_chief_sets_is_set_everywhere(places, stop):
    called = [Sets(stop), Sets(stop)]

    def work(host):
        place = places[host.index]
        callbacks, _ = place.together(host, called[host.index])
        callbacks.on_epoch_begin(0)
        return place.kernel, place.model.stop_training

    assert on_hosts(work) == [(7.0, stop)] * 2
    assert [each.calls for each in called] == [["begin"], []]


@pytest.mark.parametrize(
    ("acts", "error", "message"),
    [
        (lambda model: fails(model), KeyError, "KeyError: 'of mine'"),
        (lambda model: model.make_train_function(), ValueError, "ValueError: a callback compiled the model"),
    ],
)
def test_what_a_hook_of_the_chief_raises_or_may_not_do_ends_all(places, acts, error, message):
    class Acts(kc.Callback):
        def on_train_begin(self, logs=None):
            acts(self.model)

    def work(host):
        callbacks, _ = places[host.index].together(host, Acts())
        callbacks.on_train_begin()

    own, other = on_hosts(work)
    assert type(own) is error
    assert isinstance(other, HostMismatchError)
    assert f"the chief has failed: {message}" in str(other)


def test_weights_that_are_set_for_a_validation_are_validated_by_the_chief_also_in_a_last_epoch(places):
    class Swaps(kc.Callback):
        def on_test_begin(self, logs=None):
            self.model.layers[-1].kernel.assign([[3.0]])

    def work(host):
        place = places[host.index]
        _, delivery = place.together(host, *([] if host.index else [Swaps()]))
        place.model.stop_training = True
        return delivery.deliver(place.snapshot(), {"loss": 2.0}, RESULTS, stops=True, trained_on=False)

    for outcome, place in zip(on_hosts(work), places, strict=True):
        assert (outcome.logs["val_loss"], outcome.stop) == (0.25, True)
        assert place.kernel == 3.0


def test_hooks_of_batches_are_the_chiefs_and_have_their_effect_everywhere(places):
    class SetsByBatch(kc.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            self.model.layers[-1].kernel.assign([[batch]])

        def on_train_batch_end(self, batch, logs=None):
            noted.append((batch, logs))

    noted = []

    def work(host):
        callbacks, _ = places[host.index].together(host, *([] if host.index else [SetsByBatch()]))
        callbacks.on_train_batch_begin(5)
        callbacks.on_train_batch_end(5, {"loss": 1.0})
        return places[host.index].kernel

    assert on_hosts(work) == [5.0, 5.0]
    assert noted == [(5, {"loss": 1.0})]


class Everywhere(kc.Callback):
    """Is called on all hosts; `acts` does something with the model, in all hooks but `on_train_begin`."""

    on_all_hosts = True

    def __init__(self, acts=lambda model: None):
        super().__init__()
        self.acts, self.calls = acts, []

    def _note(self, hook, *arguments):
        self.calls.append((hook, *arguments))
        self.acts(self.model)

    def on_train_begin(self, logs=None):
        self.calls.append(("on_train_begin",))

    def on_epoch_begin(self, epoch, logs=None):
        self._note("on_epoch_begin", epoch)

    def on_batch_end(self, batch, logs=None):  # which Keras calls for on_train_batch_end
        self._note("on_batch_end", batch)

    def on_epoch_end(self, epoch, logs=None):
        self._note("on_epoch_end", epoch, logs["loss"])


def fails(model):
    raise KeyError("of mine")


def stops(model):
    model.stop_training = True


@pytest.mark.parametrize("where", [0, 1])
@pytest.mark.parametrize("hook", ["on_epoch_begin", "on_train_batch_end", "on_epoch_end"])
@pytest.mark.parametrize(
    ("acts", "message"),
    [
        (fails, "{host} has failed: KeyError: 'of mine'"),
        (stops, "{host} has failed: ValueError: Everywhere.{hook} set stop_training, and callbacks with"),
    ],
)
def test_where_a_callback_of_all_hosts_fails_all_of_them_learn_of_it(places, where, hook, acts, message):
    """Behind it stands one that all hosts or none have to reach, such as one that waits for the others."""

    def work(host):
        first, second = Everywhere(acts if host.index == where else lambda model: None), Everywhere()
        callbacks, delivery = places[host.index].together(host, first, second)
        for callback in (first, second):
            callback.set_model(places[host.index].model)
        try:
            if hook == "on_epoch_end":
                snapshot = places[host.index].snapshot()
                delivery.deliver(snapshot, {"loss": 0.5}, RESULTS, stops=False, trained_on=False)
            else:
                getattr(callbacks, hook)(0)
        except Exception as error:
            return error, first.calls, second.calls
        return None, first.calls, second.calls

    for host, (error, first, second) in enumerate(on_hosts(work)):
        assert (len(first), second) == (1, [])
        if host != where:
            assert isinstance(error, HostMismatchError)
            name = f"host {where}" if where else "the chief"
            assert message.format(host=name, hook=hook) in str(error)
        else:
            assert isinstance(error, KeyError if acts is fails else ValueError)


@pytest.mark.parametrize("on_change", ["rollback", "continue"])
def test_an_epochs_end_changes_the_same_everywhere_and_all_see_its_weights(places, on_change):
    """The chief's callbacks change something, and one of all hosts looks, where the training has gone on."""
    seen = []

    class Looks(Everywhere):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(float(self.model.get_weights()[0].item()))

    def work(host):
        place, looks = places[host.index], Looks()
        looks.set_model(place.model)
        _, delivery = place.together(host, looks, *([] if host.index else [Sets()]), on_change=on_change)
        snapshot = place.snapshot()
        place.set(9.0)
        return delivery.deliver(snapshot, {"loss": 2.0}, RESULTS, stops=False, trained_on=True)

    outcomes = own, other = on_hosts(work)
    rolled_back = on_change == "rollback"
    assert own.rolled_back is other.rolled_back is rolled_back
    assert (own.reason, own.stop, own.logs) == (other.reason, other.stop, other.logs)
    for place, outcome in zip(places, outcomes, strict=True):
        assert (place.kernel, place.rate) == (1.0 if rolled_back else 9.0, 0.5)
        assert place.history.history == {"loss": [2.0], "val_loss": [0.5]}
        assert float(outcome.values.trainable[0].numpy().item()) == 1.0, "as the chief's callbacks left it"
    assert seen == [1.0, 1.0]


DATA = {"seed": None, "own_seed": 17, "attributes": {"order": (2, 0, 1)}}


class Found:
    """A resumer with a checkpoint of epoch 3, or with one inside an epoch."""

    def __init__(self, place, *, inside=False):
        self.place, self.inside = place, inside

    def start(self, state, cursor, begin_epoch):
        assert state is self.place.state
        if self.inside:
            begin_epoch(3)
        self.place.set(5.0)
        self.place.history.epoch, self.place.history.history = [0, 1, 2], {"loss": [3.0, 2.0, 1.0]}
        cursor.restore(CursorState(3, 4, self.inside, 3, self.inside, data=DATA))
        return StartPoint(3, 12, False, {"loss": 1.0}, cursor.state())


def started(places, callbacks=(), **options):
    found = Found(places[0], **options)
    rows = recognize(np.zeros((8, 1), "float32"), np.zeros((8, 1), "float32"), batch_size=2)
    cursors = [Cursor(make_feed(rows, hold_in_memory=lambda size: True), None) for _ in places]
    for place in places:
        place.history.epoch = []

    def work(host):
        place = places[host.index]
        shared, _ = place.together(host, *callbacks)
        return start_together(shared, None if host.index else found, cursors[host.index])

    return on_hosts(work), cursors


def test_all_hosts_begin_where_the_chiefs_checkpoint_says(places):
    points, cursors = started(places)
    for point, place, cursor in zip(points, places, cursors, strict=True):
        assert (point.epoch, point.step, point.logs) == (3, 12, {"loss": 1.0})
        assert point.position == cursor.state() == CursorState(3, 4, False, 3)
        assert place.kernel == 5.0
        assert place.history.epoch == [0, 1, 2]
        assert place.history.history == {"loss": [3.0, 2.0, 1.0]}


def test_in_an_epoch_that_goes_on_callbacks_of_all_hosts_are_called_on_all(places):
    everywhere = Everywhere()
    started(places, inside=True, callbacks=[everywhere])
    assert everywhere.calls == [("on_epoch_begin", 3)] * 2  # one by each host
