"""Which inference worker is asked where some are lost, without a cluster."""

import pytest

from bray_core.errors import WorkerLostError
from bray_model.distributed.load_balancer import InferenceLoadBalancer
from bray_model.distributed.row_messages import encode_order
from bray_server import ServerThread


class Worker:
    async def tick(self, body):
        return encode_order(version=3, sequence=3)


@pytest.fixture
def live():
    server = ServerThread(Worker(), http_port=None)
    yield server.addresses[0]
    server.close(0)


@pytest.fixture
def make():
    made = []

    def make(*addresses):
        def locate(index):
            if addresses[index] is None:
                raise WorkerLostError(f"inference worker {index} is not started again")
            return addresses[index]

        made.append(InferenceLoadBalancer("demo", len(addresses), locate, "", timeout_s=None))
        return made[-1]

    yield make
    for balancer in made:
        balancer.close()


def test_whoever_waits_for_workers_that_are_lost_for_good_is_told(make):
    with pytest.raises(WorkerLostError, match="inference worker 0 is not started again"):
        _ = make(None).version
    with pytest.raises(WorkerLostError, match=r"inference worker \d is not started again"):
        _ = make(None, None).version


def test_a_worker_that_is_lost_for_good_is_not_asked_again_while_another_lives(make, live):
    for _ in range(20):
        balancer = make(None, live)
        assert balancer.version == 3
        assert balancer.run(balancer.ask(b""))["version"] == 3
