"""Planted faults in a training: VITSCALE_FAULT=kill@20 kills rank 1 at its 20th update, hang@20 lets it sleep there.

Once: the file VITSCALE_FAULT_DONE is made first, so that a run that goes on is left alone.
"""

import os
import signal
import time
from pathlib import Path

if os.environ.get("RANK") == "1" and "VITSCALE_FAULT" in os.environ:
    from vitscale.study import heartbeat

    kind, _, update = os.environ["VITSCALE_FAULT"].partition("@")
    done = Path(os.environ["VITSCALE_FAULT_DONE"])
    beat = heartbeat.Heartbeat.beat

    def broken(self):
        beat(self)
        if self._updates == int(update) and not done.exists():
            done.touch()
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)

    heartbeat.Heartbeat.beat = broken
