"""Errors named by who is at fault. A lost transfer or a dead peer is a value, never one of these."""


class Divergence(Exception):
    """Two ranks of a group disagree about replicated state, or a ring message does not fit. The epoch ends."""


class IllegalTransition(Exception):
    """Our bug: a state machine was fed an input its table does not have."""


class ConfigError(Exception):
    """The operator's input cannot work. The message names the field, the value and what to do."""
