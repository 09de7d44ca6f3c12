#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures out of what the clients print, and the table."""
import unittest

import figures

WRK = """Running 2s test @ http://10.77.0.2:8080/
  1 threads and 8 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    12.31ms    3.20ms  40.01ms   80.00%
    Req/Sec   650.00     20.00   700.00     70.00%
  Latency Distribution
     50%  812.00us
     75%   13.00ms
     90%   15.10ms
     99%    1.20s
  1301 requests in 2.00s, 120.00KB read
Requests/sec:    650.25
Transfer/sec:     60.00KB
"""
REDIS = '''WARNING: Could not fetch server CONFIG
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"GET","1204.82","6.100","1.000","5.999","9.000","12.500","20.000"
'''


def cell(number, column, per_s):
    return {"round": number, "client": "wrk", "connections": 8, "column": column, "per_s": per_s, "p50_ms": 1.0, "p99_ms": 2.0}


class Figures(unittest.TestCase):
    def test_wrk(self):
        self.assertEqual(figures.of_wrk(WRK), {"per_s": 650.25, "p50_ms": 0.812, "p99_ms": 1200.0})

    def test_errors_are_no_figures(self):
        for line in ("  Socket errors: connect 0, read 0, write 0, timeout 3\n", "  Non-2xx or 3xx responses: 4\n"):
            with self.assertRaises(figures.Failure):
                figures.of_wrk(WRK + line)
        for text in ("", "Requests/sec:  3.0"):
            with self.assertRaises(figures.Failure):
                figures.of_wrk(text)
        with self.assertRaises(figures.Failure):
            figures.of_redis_benchmark("Could not connect to Redis")

    def test_redis_benchmark(self):
        self.assertEqual(figures.of_redis_benchmark(REDIS), {"per_s": 1204.82, "p50_ms": 5.999, "p99_ms": 12.5})

    def test_ratios_are_made_round_by_round(self):
        cells = [cell(0, "vm", 100), cell(0, "protected", 80), cell(1, "vm", 50), cell(1, "protected", 45), cell(2, "vm", 70)]
        self.assertEqual(figures.ratios(cells, "wrk", 8), [0.8, 0.9])
        row = figures.table(cells).splitlines()[-1]
        self.assertEqual(row, "| wrk | 8 | 70 | 62 | 0.85 (0.80 to 0.90) | 1.0, 2.0 | 1.0, 2.0 |")


if __name__ == "__main__":
    unittest.main()
