#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-or-later
"""
Topology: two supervisors on one machine, again and again others; a Linux guest with a GPU and a network card, and a peer that
hears it. The host of the VM is killed, frozen or cut off at random moments; the guest lives through all of it, and everything
that it has told the peer stays true (soak/README.md).

    tests/vm/test_soak.py [--faults 4] [--minutes M] [--faults-per-vm 25] [--failures 1] [--seed N] [--only KIND,…]
                          [--programs NAME,…] [--arbiter lock|etcd|fence] [--results FILE [--resume]] [--chain N]
    tests/vm/test_soak.py --budget-ms 30 [--gpu-budget-ms MS] [--busy N] …
    tests/vm/test_soak.py --summary FILE…
    tests/vm/test_soak.py --pairs N --directory DIRECTORY [--seconds 3600] [--faults-per-vm 25] [--seed N] [--only KIND,…] …

  --budget-ms  of heartbeats, and the arbiter's lease: so short that a host may give the other one up without a fault. Who goes on
             is found out, not expected; faults are those of soak/suspicion.py
  --busy     so many processes compute beside the VM all the time
  --results  a line of JSON for each fault, as it happens; without --resume the file must not be there
  --resume   goes on behind the last VM of this file; --faults counts what is in it
  --chain    the number of the first VM: a failure prints seed and number, which repeat what was drawn
  --pairs    so many soaks at once, which all end in time; the directory gets summary.md, results and the logs of failures
  --summary  only says what these results are, which may be of several runs: of one seed, with numbers of their own

Environment: KAGE_GPU and KAGE_STANDBY_GPU, of the hosts in turns (default: the default one)
"""
import sys
from functools import partial

from soak import run, suspicion
from soak.chain import Chain
from soak.kinds import WEIGHTS
from soak.suspicious import Suspicious


def main():
    options = run.parse(__doc__, WEIGHTS, faults=4, faults_per_vm=25)
    if not options.budget_ms:
        return not run.run(options, Chain)[1]
    results, right = run.run(options, partial(Suspicious, budget_ms=options.budget_ms,
                                             gpu_budget_ms=options.gpu_budget_ms, busy=options.busy))
    print(suspicion.text(results), flush=True)
    return not right


if __name__ == "__main__":
    sys.exit(main())
