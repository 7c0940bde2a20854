"""Errors of the user's code, and workers that end when they should not."""

from __future__ import annotations

import time

from benchmarks.fault_cases.case import Case, Measured, Place, wait


def raised(place: Place, where: str, *texts: str) -> Measured:
    """Measures the end after an exception; its traceback is shown once."""
    run = place.launch(fault=f"two:1 {where} boom")
    run.wait_for("two:1", where)
    found = place.died(run, time.monotonic(), "two:1 failed", "ValueError: boom", *texts)
    shown = run.output.count("Traceback (most recent call last)")
    return Measured(f"{found.text}; {shown} traceback", found.ok and shown == 1)


def raised_twice(place: Place) -> Measured:
    """one:1 raises 50 ms after two:1."""
    run = place.launch("run.steps=1000", fault="two:1 5 boom;two:0 5 boom_soon")
    run.wait_for("two:1", "5")
    found = place.died(run, time.monotonic(), "two:1 failed", "ValueError: boom")
    return Measured(found.text, found.ok and "too late" not in run.output)


def raised_while_others_wait(place: Place) -> Measured:
    run = place.launch(fault="one:0 5 boom")
    run.wait_for("one:0", "5")
    return place.died(run, time.monotonic(), "one:0 failed in stage batch, step 5: ValueError: boom")


def vanished(place: Place, fault: str, *texts: str) -> Measured:
    run = place.launch(fault=fault)
    group = fault.split()[0]
    run.wait_for(group if ":" in group else f"{group}:0", "5")
    return place.died(run, time.monotonic(), *texts)


def whole_program_ends(place: Place) -> Measured:
    """A service, which must outlive the others, exits with 0."""
    text = (place.folder / "recipe.yaml").read_text()
    service = "  serve: {ranks: 1, device_type: cpu, program: serve.py, service: true}\ncomponents:"
    (place.folder / "recipe.yaml").write_text(text.replace("components:", service, 1))
    (place.folder / "serve.py").write_text("import sys, time\ntime.sleep(2)\nsys.exit(0)\n")
    run = place.launch()
    run.until(lambda: bool(run.events("exited")), "the end of the service")
    return place.died(run, time.monotonic(), "serve:0 failed")


def out_of_address_space(place: Place) -> Measured:
    """RLIMIT_AS: torch raises, and nothing is killed."""
    limited = ["bash", "-c", 'ulimit -v 12000000; exec "$@"', "limit"]
    run = place.launch(fault="two:1 5 reserve", before=limited)
    run.wait_for("two:1", "5")
    wait(lambda: bool(run.events("fault", "exited")), "the failure", 90.0)
    found = place.died(run, time.monotonic(), "two:1 failed in stage update, step 5")
    return Measured(found.text, found.ok and "memory" in found.text)


def killed_without_a_hint(place: Place) -> Measured:
    run = place.running()
    moment = time.monotonic()
    run.kill("two:1")
    found = place.died(run, moment, "two:1 failed", "SIGKILL")
    return Measured(found.text, found.ok and "memory" not in run.output)


def crashed(place: Place, act: str, name: str) -> Measured:
    """Measures the end after a fatal signal. The first frame of the stack in the user's file is shown first,
    below at most one of a library."""
    run = place.launch(fault=f"two:1 5 {act}")
    run.wait_for("two:1", "5")
    found = place.died(run, time.monotonic(), "two:1 failed", name)
    frames = [line.strip() for line in run.output.splitlines() if line.strip().startswith("File ")]
    own = next((frame for frame in frames[:2] if "parts.py" in frame), "no frame of the user")
    return Measured(f"{found.text}; {own}", found.ok and f"in {act}" in own)


OWN = "the error names it, with its traceback once, in 3 s"
CASES = [
    Case(7, "at import", OWN, lambda place: raised(place, "import")),
    Case(7, "in setup", OWN, lambda place: raised(place, "setup")),
    Case(7, "in step 5", OWN, lambda place: raised(place, "5", "in stage update, step 5")),
    Case(7, "in two ranks, 50 ms apart", "the error names the first one, in 3 s", raised_twice),
    Case(
        7,
        "in one group while the other waits",
        "the error names the first group, in 3 s",
        raised_while_others_wait,
    ),
    Case(
        8,
        "`os._exit(0)` of a rank",
        "exit 5; the error names the rank",
        lambda place: vanished(place, "two:1 5 vanish", "two:1 failed", "ended before the run was over"),
    ),
    Case(
        8,
        "`sys.exit(0)` of a whole group",
        "exit 5; the error names the group",
        lambda place: vanished(place, "two 5 leave", "two:"),
    ),
    Case(8, "a service exits with 0", "exit 5; the error names the service", whole_program_ends),
    Case(
        9,
        "the limit of its address space (RLIMIT_AS)",
        "the error names the worker and memory, in 3 s",
        out_of_address_space,
    ),
    Case(9, "SIGKILL while memory is free", "the error names SIGKILL and not memory", killed_without_a_hint),
    Case(
        10,
        "a segfault",
        "the error names SIGSEGV and the innermost frame of the user's code",
        lambda place: crashed(place, "segfault", "SIGSEGV"),
    ),
    Case(
        10,
        "`abort()`",
        "the error names SIGABRT and the innermost frame of the user's code",
        lambda place: crashed(place, "abort", "SIGABRT"),
    ),
]
