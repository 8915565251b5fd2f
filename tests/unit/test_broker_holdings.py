"""What a kernel may have, keeps, and is told: pools, replaced grants, names, refusals."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from genv_jupyter.errors import AmbiguousDevice, NoCapacity, OutOfRange, UnknownDevice
from genv_jupyter.model import NewEnvironment, Request
from tests.unit.brokers import GIB, WHOLE, Bench, bench


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Bench]:
    with bench(tmp_path) as made:
        made.register(pool="1")
        yield made


def test_a_kernel_that_outlives_its_server_keeps_its_pool(desk: Bench) -> None:
    kernel = desk.kernel(unattached="all")
    desk.end(desk.server_process)
    desk.tick()
    assert not desk.broker.books.servers
    with pytest.raises(OutOfRange):
        kernel.attach(Request(gpus=2))
    desk.broker.attach(desk.me, kernel.id, WHOLE, cuda="not_initialized")
    assert kernel.devices == [desk.device(1)]
    released = kernel.detach()
    assert released.environ is not None
    assert released.environ["CUDA_VISIBLE_DEVICES"] == desk.device(1)


def test_a_kernel_that_its_server_has_ended_and_that_lives_on_keeps_its_pool(desk: Bench) -> None:
    kernel = desk.kernel()
    desk.broker.end_kernel(desk.me, desk.server, kernel.id)
    desk.broker.attach(desk.me, kernel.id, WHOLE, cuda="not_initialized")
    assert kernel.devices == [desk.device(1)]


def test_what_a_sidebar_replaces_is_kept_until_the_process_has_let_go(tmp_path: Path) -> None:
    with bench(tmp_path) as desk:
        kernel, other = desk.kernel(), desk.kernel()
        kernel.attach(Request(devices=("0",)))
        # The server has looked: no CUDA. Its variables are on their way, and not there yet.
        desk.broker.attach(desk.me, kernel.id, Request(devices=("1",)), cuda="not_initialized")
        states = {grant.device: grant.state for grant in kernel.now.grants}
        assert states == {desk.device(0): "draining", desk.device(1): "granted"}
        assert kernel.now.reason is not None
        desk.tick()
        with pytest.raises(NoCapacity):
            other.attach(WHOLE)
        desk.applied(kernel.id)
        other.attach(WHOLE)
        assert kernel.now.reason is None
        assert (kernel.devices, other.devices) == ([desk.device(1)], [desk.device(0)])


def test_one_device_is_given_back_by_any_name_it_has(tmp_path: Path) -> None:
    with bench(tmp_path) as desk:
        kernel = desk.kernel()
        for name in ("1", desk.device(1), desk.device(1)[4:12]):
            kernel.attach(Request(gpus=2))
            desk.broker.detach(desk.me, kernel.id, device=name)
            assert kernel.devices == [desk.device(0)]
            desk.applied(kernel.id)
            assert len(kernel.now.grants) == 1
        for name, error in (("7", UnknownDevice), ("GPU-5", AmbiguousDevice)):
            kernel.attach(Request(gpus=2))
            with pytest.raises(error):
                desk.broker.detach(desk.me, kernel.id, device=name)


def test_a_refusal_names_the_holders_of_what_was_asked_for_and_the_outsiders(
    tmp_path: Path,
) -> None:
    with bench(tmp_path) as desk:
        mine, kernel = desk.kernel("mine.ipynb"), desk.kernel("other.ipynb")
        mine.attach(Request(devices=("0",)))
        kernel.attach(Request(devices=("1",), memory="1G"))
        desk.source.devices[1].external_memory = 20 * GIB
        desk.tick()
        with pytest.raises(NoCapacity) as refusal:
            desk.kernel().attach(Request(devices=("1",), memory="9G"))
        assert "other.ipynb" in refusal.value.message and "mine.ipynb" not in refusal.value.message
        assert "outside any environment" in refusal.value.message
        assert [h["device"] for h in refusal.value.details["holders"]] == [desk.device(1)]


def test_one_process_has_one_environment(desk: Bench) -> None:
    process = desk.process()
    own = desk.broker.create(desk.me, NewEnvironment(kind="kernel", pid=process.pid))
    got = desk.broker.attach(desk.me, own.id, WHOLE, cuda="not_initialized", peer_pid=process.pid)
    kernel = desk.kernel(process=process)  # its server reaches the broker only now
    assert [grant.device for grant in kernel.now.grants] == [grant.device for grant in got.grants]
    assert kernel.now.request == WHOLE
    assert [environment.id for environment in desk.broker.environments(desk.me)] == [kernel.id]
    assert desk.broker.create(desk.me, NewEnvironment(kind="kernel", pid=process.pid)) == kernel.now


def test_what_a_server_has_not_confirmed_is_wanted_again(desk: Bench) -> None:
    kernel, calm = desk.kernel(), desk.kernel()
    calm.attach(Request(memory="1G"))
    desk.broker.attach(desk.me, kernel.id, Request(memory="1G"))
    assert [want.kernel for want in desk.broker.take_wants(desk.server)] == [kernel.id]
    desk.reopen()  # it was sent, and nobody knows whether it came
    desk.broker.renew_wants(desk.server)
    (want,) = desk.broker.take_wants(desk.server)
    assert (want.kernel, want.action) == (kernel.id, "apply")
    assert want.environ is not None and want.environ["CUDA_VISIBLE_DEVICES"] == desk.device(1)
    desk.applied(kernel.id)
    desk.broker.renew_wants(desk.server)
    assert desk.broker.take_wants(desk.server) == ()


def test_who_uses_too_much_may_ask_for_more_and_is_no_outsider(tmp_path: Path) -> None:
    with bench(tmp_path) as desk:
        kernel, other = desk.kernel("greedy.ipynb"), desk.kernel()
        kernel.attach(Request(devices=("0",), memory="12GiB"))
        kernel.use(0, 20 * GIB)
        desk.tick()
        with pytest.raises(NoCapacity) as refusal:
            other.attach(Request(devices=("0",), memory="9GiB"))
        assert "GPU 0 has 4 GiB left of 24 GiB; environments use 8 GiB more of it than they were "
        assert "granted" in refusal.value.message
        assert "outside any environment" not in refusal.value.message
        for amount in (20, 22, 24):  # within one reading
            asked = Request(devices=("0",), memory=f"{amount}GiB")
            after = desk.broker.attach(desk.me, kernel.id, asked, cuda="unknown")
            assert [grant.memory for grant in after.grants] == [amount * GIB]
        with pytest.raises(NoCapacity):
            other.attach(Request(devices=("0",), memory="1GiB"))
