"""What `tandem up` is doing with its cluster, as a table."""

import enum


class Phase(enum.Enum):
    """It only goes forward."""

    STARTING = "starting"
    SERVING = "serving"  # whatever ends is started again
    DRAINING = "draining"  # the router has been told to end: it finishes what is open
    LEAVING = "leaving"  # the router has gone, the ranks have been told to end
    ENDING = "ending"  # all have been told to end at once
    KILLING = "killing"  # SIGKILL has been sent


class Input(enum.Enum):
    """What moves it on."""

    READY = "that the cluster serves"
    LOST = "that a process has ended"
    STOP = "a signal"
    ROUTER_GONE = "that the router has gone"
    LATE = "that its time is over"


NEXT: dict[tuple[Phase, Input], Phase] = {
    (Phase.STARTING, Input.READY): Phase.SERVING,
    (Phase.STARTING, Input.LOST): Phase.ENDING,
    (Phase.STARTING, Input.STOP): Phase.ENDING,
    (Phase.STARTING, Input.LATE): Phase.ENDING,
    (Phase.SERVING, Input.STOP): Phase.DRAINING,
    (Phase.DRAINING, Input.ROUTER_GONE): Phase.LEAVING,
    (Phase.DRAINING, Input.STOP): Phase.ENDING,
    (Phase.DRAINING, Input.LATE): Phase.KILLING,
    (Phase.LEAVING, Input.STOP): Phase.ENDING,
    (Phase.LEAVING, Input.LATE): Phase.KILLING,
    (Phase.ENDING, Input.STOP): Phase.KILLING,
    (Phase.ENDING, Input.LATE): Phase.KILLING,
    (Phase.KILLING, Input.STOP): Phase.KILLING,
}
"""A process that ends while all of them shall ends nothing else."""
UP = (Phase.STARTING, Phase.SERVING)
"""In these phases there is a cluster to be had."""
