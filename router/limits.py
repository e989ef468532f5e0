"""What one tenant may use in a minute and at once. Pure: time is an argument."""

from dataclasses import dataclass

from router.errors import tenant_limit

MINUTE_S = 60.0


@dataclass(frozen=True)
class Quota:
    """A tenant's limits. None: there is none."""

    requests_per_minute: int | None = None
    concurrent: int | None = None
    tokens_per_minute: int | None = None  # of prompts and answers


class Bucket:
    """A token bucket that holds a minute's worth. It may go into debt: what an answer costs is known at its end."""

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def wait_s(self, now: float, amount: float) -> float:
        """How long until the bucket holds the amount, or until it is full; 0.0 when it does now."""
        self._fill(now)
        missing = min(amount, float(self.per_minute)) - self._level
        return max(0.0, missing * MINUTE_S / self.per_minute)

    def take(self, now: float, amount: float) -> None:
        """Take it, whatever is left."""
        self._fill(now)
        self._level -= amount

    def resize(self, per_minute: int, now: float) -> None:
        """Another rate from now on; a debt stays."""
        self._fill(now)
        self.per_minute = per_minute
        self._level = min(self._level, float(per_minute))

    def _fill(self, now: float) -> None:
        self._level = min(float(self.per_minute), self._level + (now - self._at) * self.per_minute / MINUTE_S)
        self._at = now


def resized(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    """The bucket under a rate that may be another one, or none."""
    if per_minute is None or bucket is None:
        return None if per_minute is None else Bucket(per_minute, now)
    bucket.resize(per_minute, now)
    return bucket


class Usage:
    """What one tenant uses now."""

    def __init__(self, quota: Quota, now: float) -> None:
        self.open = 0
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.limit(quota, now)

    def limit(self, quota: Quota, now: float) -> None:
        """Other limits from now on; what is used stays used."""
        self.quota = quota
        self._requests = resized(self._requests, quota.requests_per_minute, now)
        self._tokens = resized(self._tokens, quota.tokens_per_minute, now)

    def begin(self, now: float) -> None:
        """One request more. Raises ApiError 429 that says which limit is reached and when to come again."""
        quota = self.quota
        if quota.concurrent is not None and self.open >= quota.concurrent:
            raise tenant_limit(f"{quota.concurrent} requests at once", 1.0)
        if self._requests is not None and (wait_s := self._requests.wait_s(now, 1.0)):
            raise tenant_limit(f"{quota.requests_per_minute} requests in a minute", wait_s)
        if self._tokens is not None and (wait_s := self._tokens.wait_s(now, 1.0)):
            raise tenant_limit(f"{quota.tokens_per_minute} tokens in a minute", wait_s)
        if self._requests is not None:
            self._requests.take(now, 1.0)
        self.open += 1

    def spend(self, now: float, tokens: int) -> None:
        """Tokens that were read or written for it."""
        if self._tokens is not None:
            self._tokens.take(now, float(tokens))

    def end(self) -> None:
        """One request less."""
        assert self.open > 0
        self.open -= 1


class Usages:
    """Of all tenants, by name. A tenant that is not allowed in any more is forgotten once nothing of it is open."""

    def __init__(self) -> None:
        self._usages: dict[str, Usage] = {}

    def of(self, name: str, quota: Quota, now: float) -> Usage:
        """What this tenant uses, under the limits that it has now."""
        usage = self._usages.get(name)
        if usage is None:
            usage = self._usages[name] = Usage(quota, now)
        elif usage.quota != quota:
            usage.limit(quota, now)
        return usage

    def keep(self, names: set[str]) -> None:
        """Forget all others."""
        self._usages = {name: usage for name, usage in self._usages.items() if name in names or usage.open}
