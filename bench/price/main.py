# SPDX-License-Identifier: GPL-2.0-or-later
"""`kage bench`: options in; runs, results and report out."""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from price import compare, facts, hosts, page, plan, table, text

ROOT = Path(__file__).resolve().parent.parent.parent
FORMAT = 1
RUN_SECONDS = 300  # of one run of a program, after which its column counts as hung
STARTS = 3  # how often a column is started before its cells are errors


def log(line):
    print(line, file=sys.stderr, flush=True)


def stop(message):
    log(f"kage bench: {message}")
    sys.exit(1)


def words(value):
    return [word for word in value.split(",") if word]


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="kage bench", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measures what protection costs programs: the same ones natively, in a VM, with its GPU mirrored, and fully protected; in turns.\n"
                    "  kage bench                    some ten minutes; results.json, report.html and report.txt in --out\n"
                    "  kage bench compare OLD NEW    two results.json side by side\n"
                    "  kage bench report RESULTS     the report of results once more\n"
                    "A run that was interrupted is gone on with by the same command.")
    parser.add_argument("--out", default="kagemusha-bench", help="directory of the results (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="how often each program runs in each column (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="how long a program computes natively (default: %(default)s)")
    parser.add_argument("--programs", type=words, default=None, help="only these, with commas between them")
    parser.add_argument("--columns", type=words, default=list(table.COLUMNS), help="only these: " + ", ".join(table.COLUMNS))
    parser.add_argument("--scale", type=int, default=1, help="larger input, for real GPUs: 1 to 64")
    parser.add_argument("--gpu", default="", help="the host's GPU, as `kage gpus` lists them; not for the native column")
    parser.add_argument("--memory", type=int, default=1024, help="of each guest, MiB")
    parser.add_argument("--cpus", type=int, default=2, help="of each guest")
    parser.add_argument("--anew", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--keep", action="store_true", help="keep the VMs' directories with their logs")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0 or not 1 <= options.scale <= 64:
        parser.error("--rounds, --seconds and --scale are at least 1, more than 0, and 1 to 64")
    unknown = [name for name in options.columns if name not in table.COLUMNS]
    if unknown or not options.columns:
        parser.error(f"no such column: {', '.join(unknown)}; there are {', '.join(table.COLUMNS)}")
    options.build = Path(os.environ.get("KAGE_BUILD_DIR", ROOT / "build" / "default"))
    options.suite = str(options.build / "bench" / "suite" / "kagemusha_bench_suite")
    options.kernel = os.environ.get("KAGE_KERNEL") or "6.12-cloud"
    options.accel = os.environ.get("KAGE_ACCEL") or "auto"
    return options


def suite(options, *arguments):
    """One of the suite's answers, natively."""
    try:
        done = subprocess.run([options.suite, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              text=True, timeout=600, check=False)
        return json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return stop(f"{options.suite} {' '.join(map(str, arguments))}: {error}")


# ---- results ----

def write_whole(path, content):
    """Never half of it, whatever interrupts us."""
    temporary = path.with_suffix(path.suffix + ".new")
    temporary.write_text(content, encoding="utf-8")
    os.replace(temporary, path)


def read_results(path):
    try:
        results = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        stop(f"{path}: {error}")
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        stop(f"{path} has no results of this version of kage bench")
    return results


def settings_of(options, programs):
    return {"rounds": options.rounds, "seconds": options.seconds, "scale": options.scale, "columns": options.columns,
            "memory_mib": options.memory, "cpus": options.cpus, "gpu": options.gpu,
            "programs": [program["name"] for program in programs]}


def begun_before(path, settings, commit):
    """The results of an interrupted run that this one can go on with, or None."""
    if not path.exists():
        return None
    results = read_results(path)
    same = all(results["settings"].get(key) == value for key, value in settings.items())
    return results if same and not results["finished"] and results["machine"]["commit"] == commit else None


def begin(options):
    """→ where the results go, and the results: new ones, or those to go on with."""
    known = suite(options, "list")
    chosen = options.programs or [program["name"] for program in known]
    unknown = sorted(set(chosen) - {program["name"] for program in known})
    if unknown:
        stop(f"no such program: {', '.join(unknown)}; there are {', '.join(program['name'] for program in known)}")
    programs = [program for program in known if program["name"] in chosen]
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    path = out / "results.json"
    import guest_vm  # needs the environment
    assets = json.loads(Path(guest_vm.environment()["KAGE_ASSETS"]).read_text(encoding="utf-8"))
    machine = facts.collect(ROOT, options.build, options.suite, assets, options.kernel)
    settings = settings_of(options, programs)
    results = None if options.anew else begun_before(path, settings, machine["commit"])
    if results:
        log(f"Going on with {path}: {len(results['cells'])} runs are done. (--anew: from the beginning)")
        return path, results
    if path.exists():
        os.replace(path, out / "previous.json")
        log(f"The results that were in {path} are in {out / 'previous.json'} now.")
    return path, {"format": FORMAT, "finished": False, "machine": machine, "settings": settings, "programs": programs, "cells": []}


# ---- runs ----

class Columns:
    """All columns; each is started when its first turn comes, and anew when it was lost."""

    def __init__(self, options):
        self.options, self.up, self.starts, self.reason, self.directories = options, {}, {}, {}, []

    def make(self, name):
        if name == "native":
            return hosts.Native(self.options.suite)
        if name == "vm":
            return hosts.Machine(self.options, name)
        if name == "protected":
            return hosts.Protected(self.options, name)
        return hosts.Mirrored(self.options, name, "null" if name == "logged" else "opencl")

    def get(self, name):
        if name in self.up:
            return self.up[name]
        if self.starts.get(name, 0) >= STARTS:
            raise hosts.Lost(f"not started any more: {self.reason[name]}")
        self.starts[name] = self.starts.get(name, 0) + 1
        if name != "native":
            log(f"  starting: {table.COLUMNS[name][1]}")
        column = self.make(name)
        self.up[name] = column  # before it is started: what was started half has to be ended
        try:
            column.start()
        except hosts.Lost as error:
            self.lose(name, error)
            raise
        return column

    def lose(self, name, error):
        self.reason[name] = str(error).splitlines()[0]
        column = self.up.pop(name, None)
        if column:
            column.end()
            self.directories += column.directories

    def end(self, keep):
        for name in list(self.up):
            self.lose(name, "ended")
        for directory in self.directories:
            if keep:
                log(f"logs kept: {directory}")
            else:
                shutil.rmtree(directory, ignore_errors=True)

    def measure(self, name, arguments):
        """One run in one column. → what a cell says of it"""
        try:
            column = self.get(name)
            column.enter()
            before = column.counters()
            run = column.run(arguments, RUN_SECONDS)
            after = column.counters()
            column.leave()
        except (hosts.Lost, AssertionError, OSError) as error:
            self.lose(name, error)
            return {"seconds": None, "error": str(error).splitlines()[0]}
        return self.cell(run, before, after)

    def repeats(self, name, program, seconds, scale):
        """How often the program does its work in that time there; None when that can't be found out."""
        column = self.get(name)
        column.enter()
        run = column.run(["calibrate", program, f"{seconds:g}", str(scale)], RUN_SECONDS)
        column.leave()
        return run.result().get("repeats")

    @staticmethod
    def cell(run, before, after):
        cell = {"seconds": run.seconds, "error": None, "own_clock_seconds": run.result().get("seconds"),
                "device": run.result().get("device"),
                "counters": {key: round(after[key] - before.get(key, 0), 6) for key in after}}
        wrong = run.result().get("wrong") or run.result().get("error")
        if run.status != 0 or run.seconds is None or wrong:
            cell["error"] = wrong or f"status {run.status}: {' / '.join(run.said[-3:])}"
        return cell


def accelerator(columns):
    for column in columns.up.values():
        if isinstance(column, hosts.Machine):
            return "kvm" if column.qmp("query-kvm")["enabled"] else "tcg"
    return "unknown"


def calibrate(columns, settings, programs):
    """So that a program takes `seconds` natively, but not much more in a VM: what is cheap natively may be dear there, and a
    round is to end. All columns do the same work."""
    limits = [("native", 1), ("vm", 3)]
    if "vm" not in settings["columns"]:
        limits = limits[:1]
    log(f"Finding out how often a program has to do its work to take {settings['seconds']:g} s …")
    found = {}
    for name, factor in limits:
        for program in programs:
            try:
                repeats = columns.repeats(name, program, settings["seconds"] * factor, settings["scale"])
            except (hosts.Lost, AssertionError, OSError) as error:
                columns.lose(name, error)
                repeats = None  # its cells will say what is wrong with it
            found[program] = min(repeats or found.get(program, 1), found.get(program, repeats or 1))
    settings["repeats"] = found


def run_all(options, path, results):
    settings, programs = results["settings"], [program["name"] for program in results["programs"]]
    done = [(cell["round"], cell["program"], cell["column"]) for cell in results["cells"]]
    todo = plan.left_over(settings["rounds"], programs, settings["columns"], done)
    columns, took = Columns(options), {}
    try:
        if "repeats" not in settings:
            calibrate(columns, settings, programs)
        while todo:
            number, program, column = todo[0]
            started = time.monotonic()
            cell = columns.measure(column, ["run", program, str(settings["repeats"][program]), str(settings["scale"])])
            results["cells"].append({"round": number, "program": program, "column": column, "load": round(os.getloadavg()[0], 2),
                                     **cell})
            if results["machine"]["accelerator"] == "unknown":
                results["machine"]["accelerator"] = accelerator(columns)
            results["machine"]["load_end"] = round(os.getloadavg()[0], 2)
            write_whole(path, json.dumps(results, indent=1) + "\n")
            todo.pop(0)
            took.setdefault((program, column), []).append(time.monotonic() - started)
            what = cell["error"] or f"{cell['seconds']:.3f} s"
            log(f"  {len(results['cells']):3d} of {len(results['cells']) + len(todo)}, about "
                f"{plan.duration(plan.remaining_seconds(todo, took))} left: {program}, {table.COLUMNS[column][0]}: {what}")
        results["finished"] = True
    finally:
        columns.end(options.keep)


def write_report(path, results):
    write_whole(path.with_name("report.html"), page.page(results))
    write_whole(path.with_name("report.txt"), text.report(results) + "\n")


def measure(options):
    path, results = begin(options)
    status = 0
    try:
        run_all(options, path, results)
    except KeyboardInterrupt:
        log(f"Interrupted. What is done is in {path}; the same command goes on with it.")
        status = 130
    if not results["cells"]:
        return status or 1
    write_whole(path, json.dumps(results, indent=1) + "\n")
    write_report(path, results)
    print(text.report(results))
    log(f"{path.with_name('report.html')} is the report with pictures, {path} has everything.")
    return status or (1 if text.errors(results) else 0)


def main(arguments):
    if arguments[:1] == ["compare"]:
        if len(arguments) != 3:
            stop("usage: kage bench compare OLD NEW")
        old, new = read_results(arguments[1]), read_results(arguments[2])
        why = compare.refusal(old, new)
        if why:
            stop(why)
        print(compare.report(old, new))
        return 0
    if arguments[:1] == ["report"]:
        if len(arguments) != 2:
            stop("usage: kage bench report RESULTS")
        results = read_results(arguments[1])
        write_report(Path(arguments[1]), results)
        print(text.report(results))
        return 0
    options = parse(arguments)
    os.environ["KAGE_TOOL"] = str(options.build / "control" / "kagemusha")
    os.environ["KAGE_BUILD_DIR"] = str(options.build)
    sys.path.insert(0, str(ROOT / "tests" / "vm"))
    # To be ended by a signal is to be interrupted: what was started has to be ended too.
    def interrupted(*_):
        raise KeyboardInterrupt
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    return measure(options)
