#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""The checker of histories accepts what can have happened, and nothing else."""
import itertools
import random
import struct
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from soak.clients import ANSWER, CLIENTS, RETRY_NS, Clients  # pylint: disable=wrong-import-position
from soak.linearizable import CAS, READ, WRITE, Register, apply  # pylint: disable=wrong-import-position


def judged(history):
    """`history`: ("invoke", name, operation) and ("complete", name, result)."""
    register = Register()
    for event, name, what in history:
        (register.invoke if event == "invoke" else register.complete)(name, what)
    return register.broken is None


def explained(history):
    """The same by trying every order of the operations: the definition."""
    invoked, returned, operations, results = {}, {}, {}, {}
    for at, (event, name, what) in enumerate(history):
        if event == "invoke":
            invoked[name], operations[name] = at, what
        else:
            returned[name], results[name] = at, what
    # An operation that has not returned may have taken effect at any later moment, or never.
    unfinished = [name for name in invoked if name not in returned]
    for count in range(len(unfinished) + 1):
        for also in itertools.combinations(unfinished, count):
            for order in itertools.permutations([*returned, *also]):
                if any(returned.get(later, len(history)) < invoked[earlier]
                       for earlier, later in itertools.combinations(order, 2)):
                    continue
                value = 0
                for name in order:
                    value, result = apply(value, operations[name])
                    if results.get(name, result) != result:
                        break
                else:
                    return True
    return False


def drawn(draw, lies):
    """A short history of a register that is served in some order; with `lies`, some results are other ones."""
    history, value, waiting, names = [], 0, {}, itertools.count()
    for _ in range(draw.randrange(2, 9)):
        if len(waiting) < 3 and draw.random() < 0.6:
            name = next(names)
            operation = draw.choice([(READ, 0, 0), (WRITE, draw.randrange(3), 0), (CAS, draw.randrange(3), draw.randrange(3))])
            history.append(("invoke", name, operation))
            waiting[name] = (operation, None)
        elif waiting:
            name = draw.choice(list(waiting))
            operation, result = waiting[name]
            if result is None:
                value, result = apply(value, operation)
                waiting[name] = (operation, result)
            if draw.random() < 0.7:
                if lies and draw.random() < 0.3:
                    result = (draw.randrange(2), draw.randrange(3))
                history.append(("complete", name, result))
                del waiting[name]
    return history


class RegisterTest(unittest.TestCase):
    def test_one_after_the_other(self):
        self.assertTrue(judged([("invoke", 1, (WRITE, 5, 0)), ("complete", 1, (1, 0)),
                                ("invoke", 2, (READ, 0, 0)), ("complete", 2, (1, 5))]))

    def test_a_stale_read(self):
        self.assertFalse(judged([("invoke", 1, (WRITE, 5, 0)), ("complete", 1, (1, 0)),
                                 ("invoke", 2, (READ, 0, 0)), ("complete", 2, (1, 0))]))

    def test_a_read_beside_a_write_may_see_either(self):
        for seen in (0, 5):
            self.assertTrue(judged([("invoke", 1, (WRITE, 5, 0)), ("invoke", 2, (READ, 0, 0)),
                                    ("complete", 2, (1, seen)), ("complete", 1, (1, 0))]))

    def test_a_value_that_was_seen_stays(self):
        self.assertFalse(judged([("invoke", 1, (WRITE, 5, 0)), ("invoke", 2, (READ, 0, 0)), ("complete", 2, (1, 5)),
                                 ("invoke", 3, (READ, 0, 0)), ("complete", 3, (1, 0)), ("complete", 1, (1, 0))]))

    def test_a_write_that_is_done_twice(self):
        self.assertFalse(judged([("invoke", 1, (CAS, 0, 7)), ("complete", 1, (1, 0)), ("invoke", 2, (WRITE, 0, 0)),
                                 ("complete", 2, (1, 7)), ("invoke", 3, (READ, 0, 0)), ("complete", 3, (1, 7))]))

    def test_two_cannot_both_exchange(self):
        self.assertFalse(judged([("invoke", 1, (CAS, 0, 1)), ("invoke", 2, (CAS, 0, 2)), ("complete", 1, (1, 0)),
                                 ("complete", 2, (1, 0))]))

    def test_as_the_definition_says(self):
        draw = random.Random(1)
        verdicts = {True: 0, False: 0}
        for _ in range(4000):
            history = drawn(draw, lies=draw.random() < 0.7)
            verdict = judged(history)
            self.assertEqual(verdict, explained(history), history)
            verdicts[verdict] += 1
        self.assertGreater(min(verdicts.values()), 200, verdicts)


class ClientsTest(unittest.TestCase):
    """Against a server that is as short as it can be."""

    def setUp(self):
        self.clients, self.registers, self.now, self.forgets = Clients(random.Random(2)), {}, 0, None

    def serve(self, payload):
        client, number, key, kind, first, second = struct.unpack("<QQIIQQ", payload[8:48])
        value = self.registers.get(key, 0)
        self.registers[key], (taken, before) = apply(value, (kind, first, second))
        if self.forgets and self.forgets(number):
            self.registers[key] = value
        return ANSWER + struct.pack("<QQQQ", client, number, taken, before)

    def run_for(self, turns):
        for _ in range(turns):
            self.now += RETRY_NS
            for payload in self.clients.due(self.now):
                self.clients.hear(self.serve(payload), 1)

    def test_an_honest_server(self):
        self.run_for(200)
        self.assertEqual(self.clients.faults, [])
        self.assertGreater(self.clients.last, 100)
        self.assertTrue(self.clients.whole())

    def test_a_server_that_forgets_a_write(self):
        self.forgets = lambda number: number == 40
        self.run_for(200)
        self.assertIn("no order of the operations explains it", self.clients.faults[0])

    def test_a_request_is_sent_again_until_it_is_answered(self):
        first = self.clients.due(1)
        self.assertEqual(len(first), CLIENTS)
        self.assertEqual(self.clients.due(2), [])
        self.assertEqual(self.clients.due(1 + RETRY_NS), first)

    def test_an_answer_that_comes_twice_counts_once(self):
        payload = self.clients.due(1)[0]
        answer = self.serve(payload)
        for _ in range(2):
            self.clients.hear(answer, 1)
        self.assertEqual((self.clients.last, self.clients.faults), (1, []))

    def test_an_answer_to_what_nobody_asked(self):
        self.clients.hear(ANSWER + struct.pack("<QQQQ", 0, 9, 1, 0), 1)
        self.assertIn("was never asked", self.clients.faults[0])


if __name__ == "__main__":
    unittest.main()
