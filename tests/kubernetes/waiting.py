# SPDX-License-Identifier: GPL-2.0-or-later
"""What the test's own kubelet and the real one are waited for with."""
import time


def wait_for(condition, what, seconds, every):
    """Its first true value; seconds."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(every)
