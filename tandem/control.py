"""`tandem control`: an operator's order to a group, by way of a router's admin port."""

import urllib.error
import urllib.request
from urllib.parse import quote

from tandem.core.errors import ConfigError
from tandem.core.inputs import Order
from tandem.local.readiness import reason

ANSWER_S = 10.0


def control(order: Order, group: str, admin_url: str) -> int:
    """Pass the order on. Raises ConfigError with what the router says, or that nobody says anything."""
    url = f"{admin_url.rstrip('/')}/workers/{quote(group, safe='')}/{order.value}"
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=ANSWER_S).close()
    except urllib.error.HTTPError as error:
        with error:
            raise ConfigError(f"the router refuses: {reason(error.read())}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"--admin-url is {admin_url!r}: no router answers there, {error}") from None
    print(f"group {group} is told to {order.value}")
    return 0
