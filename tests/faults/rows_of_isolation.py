"""Faults of a model that is handed to ``layoutdoctor.diagnose`` with ``isolate=True``."""

from __future__ import annotations

from faults.fault import ALL_OK, BOTH_TIMED, HANG, LAST, LAST_CRASHED, LAST_TIMED_OUT, Fault

ISOLATED = (
    Fault(
        name="isolated-segfault",
        planted="a segmentation fault in one configuration",
        at="run",
        of=LAST,
        way="isolated",
        plant="ctypes.string_at(0)",
        status=4,
        trials=LAST_CRASHED,
        timed="eager",
        says="eager-channels-last crashed (run): the process died of signal 11 (SIGSEGV, segmentation fault)",
    ),
    Fault(
        name="isolated-hang",
        planted="an infinite loop in forward",
        at="run",
        of=LAST,
        way="isolated",
        options=HANG,
        plant="while True: pass",
        status=4,
        trials=LAST_TIMED_OUT,
        timed="eager",
        says="eager-channels-last timed out (run)",
    ),
    Fault(
        name="isolated-crash-at-first-call",
        planted="the first call ends the process",
        at="rehearsal",
        way="isolated",
        plant="os._exit(0)",
        status=3,
        says="the process ended with exit status 0",
    ),
    Fault(
        name="isolated-first-call-raises",
        planted="the first call raises",
        at="rehearsal",
        way="isolated",
        plant="raise RuntimeError('planted')",
        status=3,
        says="cannot run Model on float32[1, 8, 8, 8]: RuntimeError: planted",
    ),
    Fault(
        name="isolated-cannot-be-saved",
        planted="the model cannot be taken to another process",
        at="copy",
        way="isolated",
        before="class Stubborn:\n"
        "    def __deepcopy__(self, memo): return self\n"
        "    def __reduce_ex__(self, protocol): raise TypeError('planted')",
        build="self.stubborn = Stubborn()",
        status=0,
        trials=ALL_OK,
        timed=BOTH_TIMED,
        says="not isolated: ... TypeError: planted",
        is_slow=False,
    ),
)
