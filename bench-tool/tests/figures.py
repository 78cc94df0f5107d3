#!/usr/bin/env python3
"""Computes the figures of bench-tool's reports without bench-tool, and compares them.

    figures.py models FILE     reports of simulated time: every percentile from the schedule alone
    figures.py tool PROGRAM    runs PROGRAM with stalls, suspensions, a fleet, a merge and a knee

It has its own reader of HdrHistogram's format, and its own definitions of a percentile, of the correction for coordinated
omission, of the knee, and of the calls that are due. A figure may differ by one bucket of the histogram. In real time a
machine may delay any call: there the schedule says what each percentile is at least.
Nothing but the standard library is needed.
"""

import base64
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import zlib

PERCENTILES = [("p50", 50), ("p90", 90), ("p99", 99), ("p99_9", 99.9), ("p99_99", 99.99)]
DRAIN_NS = 10_000_000_000

faults = []


def check(truth, words):
    if not truth:
        faults.append(words)


# --- Histograms: three decimal digits, so 2048 buckets and then 1024 for each power of two ------------------------------


def bucket(value):
    shift = max(0, value.bit_length() - 11)
    return shift * 1024 + (value >> shift)


def least_of(index):
    shift = max(0, index // 1024 - 1)
    return (index - shift * 1024) << shift


def most_of(index):
    return least_of(index + 1) - 1


def decoded(text):
    """The counts by bucket of a histogram in HdrHistogram's version 2 format."""
    data = base64.b64decode(text)
    if data[:4] == bytes([0x1C, 0x84, 0x93, 0x14]):
        data = zlib.decompress(data[8:])
    assert data[:4] == bytes([0x1C, 0x84, 0x93, 0x13]), data[:4].hex()
    length = int.from_bytes(data[4:8], "big")
    data, at, index, counts = data[40 : 40 + length], 0, 0, {}
    while at < len(data):
        word, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            if shift == 56:
                word |= byte << shift
                break
            word |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        number = (word >> 1) ^ -(word & 1)
        if number < 0:
            index -= number
        else:
            if number:
                counts[index] = number
            index += 1
    return counts


def rank_of(percent, total):
    # Exact: the percentiles have at most two decimal digits.
    return max(1, -(-round(percent * 100) * total // 10_000))


def bucket_at(counts, percent):
    rank, seen = rank_of(percent, sum(counts.values())), 0
    for index in sorted(counts):
        seen += counts[index]
        if seen >= rank:
            return index
    raise AssertionError("an empty histogram has no percentiles")


def same_bucket(name, said, expected):
    check(
        abs(bucket(said) - expected) <= 1,
        f"{name} is {said}, and {least_of(expected)} to {most_of(expected)} was computed",
    )


def check_summary(name, latency, counts):
    """The figures of a report against its own histogram."""
    check(latency["count"] == sum(counts.values()), f"{name}: its histogram has another count")
    for key, percent in PERCENTILES:
        same_bucket(f"{name}: {key}", latency[key], bucket_at(counts, percent))
    same_bucket(f"{name}: max", latency["max"], max(counts))
    same_bucket(f"{name}: min", latency["min"], min(counts))


def corrected(counts, interval_ns):
    """Each latency with those of the calls that would have been made while it lasted, one for each interval."""
    added = dict(counts)
    for index, count in counts.items():
        value = most_of(index) - interval_ns
        while value >= interval_ns:
            added[bucket(value)] = added.get(bucket(value), 0) + count
            value -= interval_ns
    return added


def added(histograms):
    total = {}
    for counts in histograms:
        for index, count in counts.items():
            total[index] = total.get(index, 0) + count
    return total


# --- Simulated time -----------------------------------------------------------------------------------------------------


def behind(spans, moment):
    for begin, end in spans:
        if begin <= moment < end:
            return end
    return moment


def latencies_of(model):
    """The latency of each call of the measured time, and how many were not answered."""
    spans = {key: [(a * 10**6, b * 10**6) for a, b in model[key]] for key in ("stops_ms", "suspensions_ms")}
    stops, suspensions = spans["stops_ms"], spans["suspensions_ms"]
    begin = model["warmup_ms"] * 10**6
    end = begin + model["duration_ms"] * 10**6
    made_until = behind(suspensions, end) + DRAIN_NS
    service, depth = model["service_us"] * 1000, model["depth"]
    seen, idle, latencies, waiting = [], 0, [], []
    number = 0
    while (due := number * 10**9 // model["rate_per_s"]) < end:
        free = seen[number - depth] if number >= depth else 0
        made = behind(suspensions, max(due, free))
        number += 1
        if made >= made_until:
            waiting.append(due)
            seen.append(made)
            continue
        work = behind(stops, max(made, idle))
        idle = work + service
        for stop, resume in stops:
            if work < stop < idle:
                idle += resume - stop
        seen.append(behind(suspensions, idle))
        if due >= begin:
            latencies.append(seen[-1] - due)
    last = max(moment for moment in seen if moment) if not waiting else behind(suspensions, idle)
    waits = [last - due for due in waiting if due >= begin]
    return latencies + waits, len(waits)


def check_model(model):
    name, report = model["name"], model["report"]
    latencies, unanswered = latencies_of(model)
    latencies.sort()
    due = model["rate_per_s"] * model["duration_ms"] // 1000
    check(len(latencies) == due, f"{name}: {len(latencies)} calls were computed, and {due} are due")
    check(report["calls_due"] == due, f"{name}: calls_due is {report['calls_due']}, and {due} are")
    check(report["calls_unanswered"] == unanswered, f"{name}: {report['calls_unanswered']} and not {unanswered} unanswered")
    check(report["calls"] == due - unanswered, f"{name}: {report['calls']} calls")
    check(report["whole"] == (unanswered == 0), f"{name}: whole is {report['whole']}")
    counts = decoded(report["histogram"])
    check_summary(name, report["latency_ns"], counts)
    for key, percent in PERCENTILES:
        expected = latencies[rank_of(percent, due) - 1]
        same_bucket(f"{name}: {key}", report["latency_ns"][key], bucket(expected))
    for key, expected in (("min", latencies[0]), ("max", latencies[-1])):
        same_bucket(f"{name}: {key}", report["latency_ns"][key], bucket(expected))


# --- Real time ----------------------------------------------------------------------------------------------------------

SHORT = "--set idle=park --quiet".split()
PATIENT = (
    "--set keep_alive_silent_ticks_max=255 --set connect_timeout_ms=240000 --set call_timeout_ms=240000 "
    "--set stall_timeout_ms=600000"
).split()
RATE, DEPTH, PLANNED_MS = 500, 4096, 1500


class Tool:
    def __init__(self, program, folder):
        self.program, self.folder, self.started = program, pathlib.Path(folder), []

    def start(self, *words, **options):
        process = subprocess.Popen([self.program, *words], stdout=subprocess.PIPE, text=True, **options)
        self.started.append(process)
        return process

    def end(self):
        """Kills what a failure of this program left behind."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()

    def serve(self, name, *words):
        address = f"shm:figures-{name}-{os.getpid()}"
        server = self.start("serve", "--listen", address, "--set", "idle=park", *PATIENT, *words)
        line = server.stdout.readline()
        assert line.startswith("listening on"), line
        return server, address

    def json(self, name):
        return json.loads((self.folder / f"{name}.json").read_text())

    def path(self, name):
        return str(self.folder / f"{name}.json")


def stop(process):
    process.send_signal(signal.SIGTERM)
    process.wait()


def stopped(process):
    """Stops a process, and returns when it does not run: stopped, or at its end already where this one came late."""
    process.send_signal(signal.SIGSTOP)
    while open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()[0] not in "TZX":
        time.sleep(0.001)


def check_open(name, report):
    """An open loop, whoever stood still in it: the schedule says what each percentile is at least and at most."""
    due = RATE * PLANNED_MS // 1000
    latency, counts = report["latency_ns"], decoded(report["histogram"])
    check(report["calls_due"] == due, f"{name}: calls_due is {report['calls_due']}, and {due} are")
    check(latency["count"] == due, f"{name}: {latency['count']} calls are in the histogram, and {due} were due")
    check(report["calls"] == due and report["calls_unanswered"] == 0, f"{name}: the calls are no sum")
    check(report["whole"], f"{name}: it is not whole")
    check_summary(name, latency, counts)
    interval, longest = 10**9 // RATE, latency["max"]
    ended = round(report["duration_s"] * 1e9)
    # No call ended later than the last one. So the call with the longest latency was due at `ended - longest` at the latest,
    # and replies come in the order of the calls: those that were due after it waited for as much less as they were due later.
    behind_it = min(due, max(0, (PLANNED_MS * 10**6 - (ended - longest)) // interval))
    least = [0] * (due - behind_it) + [max(0, longest - number * interval) for number in range(behind_it)][::-1]
    most = [ended - number * interval for number in range(due)][::-1]
    for key, percent in PERCENTILES:
        rank = rank_of(percent, due) - 1
        check(
            bucket(least[rank]) - 1 <= bucket(latency[key]) <= bucket(most[rank]) + 1,
            f"{name}: {key} is {latency[key]}, and by the schedule from {least[rank]} to {most[rank]}",
        )


def open_loops(tool):
    """Loops whose server is stopped at the beginning, in the middle and over the end, and one whose client is."""
    plans = {
        # From when after the start to when, in seconds, and who is stopped.
        "at the beginning": (0.0, 0.6, "server"),
        "in the middle": (0.5, 1.1, "server"),
        "over the end": (1.1, 2.1, "server"),
        "suspended over the end": (1.1, 2.1, "client"),
    }
    running, events = {}, []
    for number, (name, (begin, end, who)) in enumerate(plans.items()):
        server, address = tool.serve(number)
        words = f"run --connect {address} --rate {RATE} --depth {DEPTH} --duration {PLANNED_MS}ms --warmup 200ms".split()
        client = tool.start(*words, *SHORT, *PATIENT, "--json", tool.path(f"open-{number}"), stderr=subprocess.PIPE)
        running[name] = (number, server, client)
        victim = server if who == "server" else client
        events += [(begin, "stop", victim), (end, "go", victim)]
    events.sort(key=lambda event: event[0])
    # Where the stalls fall is a matter of the machine: what is checked holds wherever that is.
    began = time.monotonic() + 0.6
    for moment, what, victim in events:
        time.sleep(max(0, began + moment - time.monotonic()))
        if what == "stop":
            stopped(victim)
        else:
            victim.send_signal(signal.SIGCONT)
    for name, (number, server, client) in running.items():
        _, errors = client.communicate()
        check(client.returncode == 0, f"{name}: exit status {client.returncode}: {errors}")
        stop(server)
        check_open(name, tool.json(f"open-{number}"))
    return tool.path("open-1"), tool.path("open-2")


def unanswered(tool):
    """A loop whose calls are not all answered: the last ones have waited until the same moment."""
    server, address = tool.serve("slow", "--service-time", "100ms")
    words = f"run --connect {address} --rate {RATE} --depth 1 --duration 10m --warmup 0 --interval 100ms --checkpoint 200ms".split()
    client = tool.start(*words, *SHORT, *PATIENT, "--json", tool.path("slow"), stderr=subprocess.PIPE)
    # Checkpoints say that calls are made.
    while not pathlib.Path(tool.path("slow")).exists() or tool.json("slow")["calls"] < 5:
        assert client.poll() is None, client.stderr.read()
        time.sleep(0.05)
    client.send_signal(signal.SIGTERM)
    _, errors = client.communicate()
    stop(server)
    report = tool.json("slow")
    check(client.returncode == 1, f"unanswered: exit status {client.returncode}")
    check("were not answered" in errors, f"unanswered: it says {errors}")
    check(not report["whole"] and report["calls_unanswered"] > 0, "unanswered: it is whole")
    due, latency, counts = report["calls_due"], report["latency_ns"], decoded(report["histogram"])
    check(latency["count"] == due == report["calls"] + report["calls_unanswered"], "unanswered: calls are missing")
    check_summary("unanswered", latency, counts)
    # All that were not answered waited until one moment, an interval less each; the answered ones can be among them.
    interval = 10**9 / RATE
    for key, percent in PERCENTILES:
        above = due - rank_of(percent, due)
        least = latency["max"] - above * interval
        most = latency["max"] - max(0, above - report["calls"]) * interval
        check(
            above >= report["calls_unanswered"] or bucket(int(least)) - 1 <= bucket(latency[key]) <= bucket(int(most)) + 1,
            f"unanswered: {key} is {latency[key]}, and by the schedule from {least} to {most}",
        )


def fleet(tool):
    """Two clients of one server, each corrected for omission by its own interval."""
    server, address = tool.serve("fleet", "--service-time", "100us")
    words = f"fleet --clients 2 --quiet --json {tool.path('fleet')} -- run --connect {address} --depth 2".split()
    words += "--count 4000 --warmup 0 --set idle=park --cores 0".split() + PATIENT
    client = tool.start(*words, stderr=subprocess.PIPE)
    time.sleep(0.5)
    # A stall, so that there is more to correct; wherever it falls.
    stopped(server)
    time.sleep(0.2)
    server.send_signal(signal.SIGCONT)
    _, errors = client.communicate()
    check(client.returncode == 0, f"fleet: exit status {client.returncode}: {errors}")
    stop(server)
    report = tool.json("fleet")
    parts, intervals = [], []
    for client in report["clients"]:
        own = client["report"]
        counts = decoded(own["histogram"])
        check_summary(f"client {client['client']}", own["latency_ns"], counts)
        interval = int(own["duration_s"] * 1e9) * own["depth"] * own["connections"] // own["calls"]
        own_corrected = corrected(counts, interval)
        compare_corrected(f"client {client['client']}", own["latency_corrected_ns"], own_corrected)
        parts.append(own_corrected)
        intervals.append(interval)
    check_summary("fleet", report["latency_ns"], decoded(report["histogram"]))
    compare_corrected("fleet", report["latency_corrected_ns"], added(parts))
    check(report["disturbed"] == any(it["report"]["disturbed"] for it in report["clients"]), "fleet: disturbed")


def compare_corrected(name, said, counts):
    for key, percent in PERCENTILES:
        same_bucket(f"{name} corrected: {key}", said[key], bucket_at(counts, percent))
    # The interval has been rounded to a nanosecond, here and there from another time.
    total = sum(counts.values())
    check(abs(said["count"] - total) <= max(2, total // 1000), f"{name} corrected: {said['count']} calls, and not {total}")


def merge(tool, paths):
    client = tool.start("merge", *paths, "--quiet", "--json", tool.path("sum"), stderr=subprocess.PIPE)
    _, errors = client.communicate()
    check(client.returncode == 0, f"merge: exit status {client.returncode}: {errors}")
    parts = [json.loads(pathlib.Path(path).read_text()) for path in paths]
    report = tool.json("sum")
    counts = added(decoded(part["histogram"]) for part in parts)
    check(decoded(report["histogram"]) == counts, "merge: its histogram is not the sum")
    check_summary("merge", report["latency_ns"], counts)
    for key in ("calls", "calls_due", "calls_unanswered", "errors"):
        check(report[key] == sum(part[key] for part in parts), f"merge: {key}")
    again = tool.start("merge", paths[0], tool.path("sum"), "--quiet", stderr=subprocess.PIPE)
    _, errors = again.communicate()
    check(again.returncode == 1 and "count twice" in errors, f"merge: it counts its own sum: {errors}")


def knee_of(steps):
    """The knee by the documentation: the share, how far, and whether it is clear. None without one."""
    curve = [step for step in steps if step["latency_ns"]]
    reached = [step["is_reached"] for step in curve]
    if sum(reached) < 4:
        return None
    p99s, least = [], None
    for step in reversed(curve):
        p99 = step["latency_ns"]["p99"]
        if step["is_reached"]:
            least = p99 if least is None else min(least, p99)
        p99s.insert(0, p99 if least is None else min(p99, least))
    most = 3 * max(p99 for p99, is_reached in zip(p99s, reached) if is_reached)
    p99s = [min(p99, most) for p99 in p99s]

    def farthest(p99s):
        low, high = min(p99s), max(p99s)
        first, last = curve[0]["offered_rate_per_s"], curve[-1]["offered_rate_per_s"]
        if low == high or first == last:
            return None
        best = None
        for step, p99, is_reached in zip(curve, p99s, reached):
            along = (step["offered_rate_per_s"] - first) / (last - first)
            distance = along - (p99 - low) / (high - low)
            if is_reached and (best is None or distance >= best[0]):
                best = (distance, step["share_percent"])
        return best if best[0] > 0 else None

    found = farthest(p99s)
    if found is None:
        return None
    risen = farthest([max(p99, 2 * min(p99s)) for p99 in p99s])
    if risen is None:
        return None
    is_enough = all(step["latency_ns"] and step["latency_ns"]["count"] >= 1000 for step in steps)
    is_quiet = not any(step["disturbed"] for step in steps)
    return risen[1], found[0], found[0] >= 0.5 and is_enough and is_quiet


def knee(tool):
    server, address = tool.serve("knee", "--service-time", "200us")
    words = f"run --connect {address} --to-knee --repeat-disturbed 0 --depth 4 --duration 120ms --warmup 20ms".split()
    client = tool.start(*words, *SHORT, *PATIENT, "--json", tool.path("knee"), stderr=subprocess.PIPE)
    _, errors = client.communicate()
    stop(server)
    # A machine without time for a call in the closed loop is no fault of the figures.
    check(client.returncode in (0, 1), f"knee: exit status {client.returncode}: {errors}")
    report = tool.json("knee")
    for step in report["steps"]:
        rate, reached = step["offered_rate_per_s"], step["rate_per_s"] >= 0.95 * step["offered_rate_per_s"]
        check(step["is_reached"] == (step["whole"] and reached), f"knee: {step['share_percent']} % is_reached")
        count = (step["latency_ns"] or {"count": 0})["count"]
        # A call is due every 1/rate from the start of the warm-up on.
        due = -(-140 * rate // 1000) - -(-20 * rate // 1000)
        check(abs(count - due) <= 1, f"knee: {step['share_percent']} %: {count} calls, and {due} were due")
    found = knee_of(report["steps"])
    if found is None:
        check(report["knee"] is None, f"knee: {report['knee']}, and none was computed")
        return
    check(report["knee"] is not None, f"knee: none, and {found} was computed")
    if report["knee"]:
        check(report["knee"]["share_percent"] == found[0], f"knee: {report['knee']['share_percent']} % and not {found[0]} %")
        check(abs(report["knee_distance"] - found[1]) < 1e-9, f"knee: distance {report['knee_distance']} and not {found[1]}")
        certainty = "clear" if found[2] else "faint"
        check(report["knee_certainty"] == certainty, f"knee: {report['knee_certainty']} and not {certainty}")
        check(bool(report["knee_doubts"]) != found[2], f"knee: doubts {report['knee_doubts']}")


def main():
    if sys.argv[1] == "models":
        models = json.loads(pathlib.Path(sys.argv[2]).read_text())
        for model in models:
            check_model(model)
        for fault in faults:
            print(fault, file=sys.stderr)
        print(f"{len(models)} models")
    else:
        with tempfile.TemporaryDirectory() as folder:
            tool = Tool(sys.argv[2], folder)
            try:
                paths = open_loops(tool)
                merge(tool, paths)
                unanswered(tool)
                fleet(tool)
                knee(tool)
            finally:
                tool.end()
                for fault in faults:
                    print(fault, file=sys.stderr)
        print("all figures agree" if not faults else f"{len(faults)} figures differ")
    sys.exit(1 if faults else 0)


main()
