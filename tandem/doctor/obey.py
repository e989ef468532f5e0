"""The listener's part: does what the caller asks, until it hears what was found out."""

import time
from typing import assert_never

from tandem.doctor.end import End
from tandem.doctor.link import Listener
from tandem.doctor.report import Finding
from tandem.doctor.words import (
    CheckKnown,
    Declined,
    Leave,
    Meet,
    Opening,
    OpenPort,
    Ping,
    Pong,
    SendRaw,
    Tell,
    ToCaller,
    Told,
    ToListener,
    WriteKnown,
    WriteLarge,
)

ORDER_S = 90.0
"""The caller may be in a write of its own."""


def obey(link: Listener, end: End) -> tuple[Finding, ...]:
    """Until the caller tells all findings. Raises Lost."""
    while True:
        word = link.hear(ORDER_S)
        if isinstance(word, Tell):
            link.answer(Told())
            return word.findings
        link.answer(answer_to(word, end))


def answer_to(word: ToListener, end: End) -> ToCaller:
    """Do one thing."""
    match word:
        case Ping():
            return Pong(time.time_ns())
        case Meet(card):
            end.meet(card)
            return Meet(end.card)
        case OpenPort():
            return end.open_port()
        case SendRaw(port):
            return end.send_raw(port)
        case WriteKnown():
            return end.write_known()
        case CheckKnown():
            return end.check_known()
        case WriteLarge():
            return end.write_large()
        case Opening() | Tell() | Leave():
            return Declined(f"{type(word).__name__} has no place here")
        case _:
            assert_never(word)
