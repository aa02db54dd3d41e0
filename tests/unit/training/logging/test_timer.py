"""The clock on a made-up machine, whose time is a number and whose device is done at a moment."""

import pytest

from vit_jax.training.logging.timer import StepTimer, StepTimes


class Machine:
    """A host and a device; a step takes `step` seconds on the device, one after the other."""

    def __init__(self, monkeypatch, step):
        self.now, self.done, self.step = 0.0, 0.0, step
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def batches(self, waits):
        for seconds in waits:
            self.now += seconds
            yield seconds

    def call(self, host=0.0):
        """Asks for a step, which takes the host `host` seconds, and returns its output."""
        self.done = max(self.now, self.done) + self.step
        self.now += host
        return Output(self, self.done)

    def wait(self):
        self.now = max(self.now, self.done)


class Output:
    def __init__(self, machine, done):
        self.machine, self.done = machine, done

    def is_ready(self):
        return self.machine.now >= self.done


def run(machine, waits, host=0.0, after=0.0):
    """The times of one lap, begun on an idle device."""
    clock = StepTimer()
    clock.start(10)
    for number, _ in enumerate(clock.batches(machine.batches(waits)), start=1):
        clock.stepped(machine.call(host))
        machine.now += after if number < len(waits) else 0.0
    machine.wait()
    return clock.lap(10 + len(waits))


def test_a_slow_device_hides_the_wait_for_data_and_the_host(monkeypatch):
    times = run(Machine(monkeypatch, step=10.0), waits=[1.0, 4.0, 4.0, 4.0], host=0.5)
    # Only the first batch was waited for by an idle device.
    assert times == StepTimes(step=41 / 4, data=1 / 4, device=40 / 4, host=0)


def test_a_slow_loader_is_the_wait_for_data(monkeypatch):
    times = run(Machine(monkeypatch, step=2.0), waits=[10.0] * 5)
    # 5 waits of 10 and the last step; each wait hides the step before it.
    assert times.step == 52 / 5
    assert times.device == pytest.approx(2.0)
    assert times.data == pytest.approx(52 / 5 - 2.0)
    assert times.host == pytest.approx(0)


def test_what_the_host_does_with_an_idle_device_is_the_hosts(monkeypatch):
    times = run(Machine(monkeypatch, step=2.0), waits=[0.0] * 4, after=8.0)
    # Three times 8 seconds, and the last step.
    assert times == StepTimes(step=26 / 4, data=0.0, device=2.0, host=18 / 4)


def test_the_three_parts_sum_to_the_step_where_the_loader_hesitates(monkeypatch):
    times = run(Machine(monkeypatch, step=3.0), waits=[1.0, 1.0, 20.0, 1.0, 1.0, 9.0], host=0.25)
    assert times.data + times.device + times.host == pytest.approx(times.step)
    assert times.device == pytest.approx(3.0)  # as the device had six steps of three seconds
    # Idle for the first batch, and for the rest of the two long waits: the steps asked for at 1 and
    # 2.25 end at 7 and the third comes at 22.5; those at 22.5, 23.75 and 25 end at 31.5, and the
    # last comes at 34.25.
    assert times.data == pytest.approx((1.0 + 15.5 + 2.75) / 6)


def test_pauses_do_not_count(monkeypatch):
    machine = Machine(monkeypatch, step=2.0)
    clock = StepTimer()
    clock.start(0)
    for number in clock.batches(machine.batches([1.0, 2.0])):
        clock.stepped(machine.call())
        if number == 1.0:
            machine.wait()
            clock.pause()
            machine.now += 100.0
            clock.go_on()
    machine.wait()
    assert clock.lap(2) == StepTimes(step=3.5, data=1.5, device=2.0, host=0.0)


def test_a_lap_without_a_step_has_no_times(monkeypatch):
    clock = StepTimer()
    clock.start(3)
    assert clock.lap(3) is None


def test_the_clock_does_nothing_before_it_is_started(monkeypatch):
    clock = StepTimer()
    clock.pause()
    clock.go_on()
    assert not clock.started and clock.lap(0) is None


def test_arrays_of_jax_say_whether_they_are_ready():
    import jax.numpy as jnp

    clock = StepTimer()
    clock.start(0)
    for number in clock.batches([1.0, 2.0]):
        clock.stepped({"step": jnp.sin(number).block_until_ready()})
    times = clock.lap(2)
    assert times.step == pytest.approx(times.data + times.device + times.host)
