"""What the router alone knows of the newest requests: ranks that tell of them later do not, and may have died since."""

from tandem.core.ids import RequestId

MOST = 1024
"""Of each kind; the oldest goes for one more."""


class Recalled:
    """Only requests that had to wait, or that failed, cost anything. The ids of one's choices follow each other."""

    def __init__(self) -> None:
        self._waited_s: dict[int, float] = {}
        self._failures: dict[int, str] = {}

    def waited(self, rid: RequestId, choices: int, seconds: float) -> None:
        """It was in this router's queue for so long."""
        for number in range(choices):
            self._waited_s[rid + number] = seconds
        while len(self._waited_s) > MOST:
            del self._waited_s[next(iter(self._waited_s))]

    def failed(self, rid: RequestId, choices: int, code: str) -> None:
        """Its client was told this error, or had left."""
        for number in range(choices):
            self._failures[rid + number] = code
        while len(self._failures) > MOST:
            del self._failures[next(iter(self._failures))]

    def waited_ms(self, request_id: str) -> float:
        """0 for a request that did not wait, or is not remembered."""
        return round(1000 * self._waited_s.get(int(request_id, 16), 0.0), 3)

    def failure(self, request_id: str) -> str:
        """Empty for a request that did not fail, or is not remembered."""
        return self._failures.get(int(request_id, 16), "")
