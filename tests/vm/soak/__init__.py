# SPDX-License-Identifier: GPL-2.0-or-later
"""
The soak: a protected VM loses its host again and again, at random moments and in every way. README.md says how to run it.

What judges it is pure and has unit tests (judges_test.py): ledger.py (what the programs said), speakers.py (who may speak),
leaks.py (what is left over), summary.py (the results as a person reads them). chain.py does what is done to the VM.
"""
