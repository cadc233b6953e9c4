"""Planted faults: rank 1 of the case with micro batch 4 is killed at its 5th update, that with 6 hangs there.

The parent, which has no rank, calls 4 s of silence a hang, so that the test need not wait for 30.
"""

import os
import signal
import sys
import time

from vitscale.study import heartbeat

beat = heartbeat.Heartbeat.beat


def broken(self):
    beat(self)
    if os.environ["RANK"] == "1" and self._updates == 5:
        if "micro_batch_size=4-" in sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGKILL)
        if "micro_batch_size=6-" in sys.argv[-1]:
            time.sleep(600)


if "RANK" in os.environ:
    heartbeat.Heartbeat.beat = broken
else:
    heartbeat.HANG_S = 4.0
