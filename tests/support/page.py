"""What the tests of the dashboard agree on."""

KEY = "a-key-of-the-operators"
HOSTILE = "<img src=x onerror='window.hacked = 1'>"
"""What the model is called, and what somebody looks for."""
LIVE = "body[data-state=live]"
