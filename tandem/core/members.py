"""What a rank says of itself in the registry. An entry is a hint: identity is proved in the handshake."""

import msgspec

from tandem.core.config import Group, Limits
from tandem.core.ids import Epoch, RankId


class Member(msgspec.Struct, frozen=True):
    """One rank of one group. Addresses are ZMQ endpoints; those a rank does not bind are empty."""

    group: Group
    rank: RankId
    incarnation: int  # random, another one after each epoch
    boot_ms: int  # start of the process, ms since 1970
    host: str  # equal for processes that share memory
    fingerprint: str  # model, layout and protocol: only equal ones are paired
    model: str  # the name clients use
    ring: str  # PULL: batons, returns, ballots
    hidden: str  # PULL: hidden states
    http: str  # host:port of /livez, /readyz, /state
    limits: Limits
    leader: str = ""  # rank 0, ROUTER: Join, Facts, Heartbeat
    intake: str = ""  # rank 0, ROUTER: Submit, Cancel
    peers: str = ""  # prefill, ROUTER: Hello, Grant, Cancelled
    epoch: Epoch = Epoch(0)  # 0 until the ring has formed; `limits` are the agreed ones from then on
    last_end: str = ""  # why the last epoch of this process is over
    engine: str = ""  # what computes there, and in which dtype
    engine_why: str = ""  # why that one
    engine_fallback: bool = False  # it stands in for a faster one
