"""The links to the groups with somebody who sees what goes by: how full the groups are follows from that."""

from router.dispatch import Links
from router.membership import Membership
from router.traffic import Traffic
from tandem.core.inputs import Submit
from tandem.core.messages import Cancel, ToGroup


class WatchedLinks:
    """Fits `dispatch.Links`, and does what `links` does."""

    def __init__(self, links: Links, membership: Membership, traffic: Traffic) -> None:
        self._links = links
        self._membership = membership
        self._traffic = traffic

    def connect(self, group: str, address: str) -> None:
        """Whoever talks there now has nothing of ours."""
        self._traffic.forget(group)
        self._links.connect(group, address)

    def send(self, group: str, message: ToGroup) -> bool:
        """False when the message cannot leave."""
        sent = self._links.send(group, message)
        if isinstance(message, Submit):
            head = self._membership.head(group)
            if sent and head is not None:
                self._traffic.on_submit(head, message)
        elif isinstance(message, Cancel):
            self._traffic.on_end(group, message.room)
        return sent

    def drop(self, group: str) -> None:
        """Close the connection."""
        self._traffic.forget(group)
        self._links.drop(group)
