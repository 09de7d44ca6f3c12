# SPDX-License-Identifier: GPL-2.0-or-later
"""
Whether what clients saw of one register can have happened: linearizability, checked while the history grows. Pure.

A history is linearizable when each operation can be given one moment between its invocation and its return so that a
plain register, doing them at those moments one after the other, gives the same results. The method is just-in-time
linearization (Lowe, "Testing for linearizability", 2017): the checker keeps every state in which the register may be,
together with the operations that took effect and have not returned. Only a return can rule states out. When none is
left, no order explains the history.

The number of states is bounded by the operations that are open at the same time, which is the number of clients.
"""

READ, WRITE, CAS = 0, 1, 2


def apply(value, operation):
    """What a register with `value` does. → its new value, the operation's result (taken, value before)."""
    kind, first, second = operation
    if kind == READ:
        return value, (1, value)
    if kind == WRITE:
        return first, (1, value)
    return (second if value == first else value), (int(value == first), value)


class Register:
    """One register and all that is known of it."""

    def __init__(self, value=0):
        # Pairs: value, and the operations that took effect but have not returned, as (name, result).
        self.states = {(value, frozenset())}
        self.open = {}  # name → operation
        self.broken = None  # the first return that nothing explains

    def invoke(self, name, operation):
        self.open[name] = operation

    def complete(self, name, result):
        """The operation has returned this. → whether the history can still have happened."""
        operation = self.open[name]
        if self.broken is None:
            kept = {(value, effects - {(name, result)}) for value, effects in self.reachable() if (name, result) in effects}
            if not kept:
                self.broken = (f"operation {name} {operation} returned {result}; no order of the operations explains it; "
                               f"the register was one of {sorted({value for value, _ in self.states})[:8]}")
            self.states = kept
        del self.open[name]
        return self.broken is None

    def reachable(self):
        """Every state after any of the open operations took effect, in any order."""
        seen, todo = set(self.states), list(self.states)
        while todo:
            value, effects = todo.pop()
            done = {name for name, _ in effects}
            for name, operation in self.open.items():
                if name in done:
                    continue
                after, result = apply(value, operation)
                state = (after, effects | {(name, result)})
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
        return seen
