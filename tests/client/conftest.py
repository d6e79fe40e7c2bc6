"""A server of each protocol, with the `models` of the test file, and what its tests call."""

import pytest


@pytest.fixture(scope="session")
def served_model(exported):
    """The translator's export, as a server holds it."""
    pytest.importorskip("tensorflow_serving")
    from servers import ServedModel

    return ServedModel(exported)


@pytest.fixture(scope="module", params=["http", "grpc"])
def served(request, models):
    """A backend and the URL where it answers."""
    pytest.importorskip("tensorflow_serving")
    from servers import SERVERS, Backend

    backend = Backend(models, {"stable": 1})
    with SERVERS[request.param](backend) as url:
        yield backend, url


@pytest.fixture
def backend(served):
    """The backend, without the requests and faults of the test before."""
    served[0].reset()
    return served[0]


@pytest.fixture
def url(served, backend):
    return served[1]
