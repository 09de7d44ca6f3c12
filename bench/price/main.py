# SPDX-License-Identifier: GPL-2.0-or-later
"""`kage bench`: options in; runs, results and report out."""
import argparse
import concurrent.futures
import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from price import compare, crowd, facts, hosts, mechanisms, page, plan, real, table, text

ROOT = Path(__file__).resolve().parent.parent.parent
FORMAT = 1
RUN_SECONDS = 300  # of one run of a program, after which its column counts as hung
WHOLE_SECONDS = 3600  # the same for programs of others
STARTS = 3  # how often a column is started before its cells are errors


def log(line):
    print(line, file=sys.stderr, flush=True)


def stop(message):
    log(f"kage bench: {message}")
    sys.exit(1)


def words(value):
    return [word for word in value.split(",") if word]


def scales(value):
    """'32,nbody=192' → 32, {'nbody': 192}"""
    general, own = 1, {}
    for word in words(value):
        name, _, number = word.rpartition("=")
        if not number.isdigit() or not 1 <= int(number) <= 256:
            raise ValueError(f"'{word}' is no number from 1 to 256, nor NAME=NUMBER")
        if name:
            own[name] = int(number)
        else:
            general = int(number)
    return general, own


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
    parser.add_argument("--full", action="store_true", help="also clblast, clpeak, hashcat; 1 to 8 VMs at once; takeovers, checkpoints, tracer, peers: hours")
    parser.add_argument("--programs", type=words, default=None, help="only these, with commas between them")
    parser.add_argument("--columns", type=words, default=list(table.COLUMNS), help="only these: " + ", ".join(table.COLUMNS))
    parser.add_argument("--vms", type=words, default=list(map(str, crowd.COUNTS)), help="of --full: so many at once (default: 1,2,4,8)")
    parser.add_argument("--crowd", type=words, default=list(crowd.USUAL),
                        help=f"of --full: these kinds of VMs at once: {', '.join(crowd.COLUMNS)} (default: {','.join(crowd.USUAL)})")
    parser.add_argument("--crowd-program", default=crowd.PROGRAM, help="what each of them runs, of the suite (default: %(default)s)")
    parser.add_argument("--mechanisms", type=words, default=None,
                        help="of --full: only these of " + ", ".join(one["name"] for one in mechanisms.ALL) + "; none: \"\"")
    parser.add_argument("--scale", default="1", help="larger input, for real GPUs: 1 to 256; 32,nbody=192: one program's is another")
    parser.add_argument("--gpu", default="", help="the host's GPU, as `kage gpus` lists them (default: PoCL)")
    parser.add_argument("--standby-gpu", default=None, help="the standbys' GPU (default: the same one)")
    parser.add_argument("--gpu-options", default="", help="of the OpenCL backend, to compare its ways: transfer=staging, for example")
    parser.add_argument("--memory", type=int, default=1024, help="of each guest, MiB")
    parser.add_argument("--cpus", type=int, default=2, help="of each guest")
    parser.add_argument("--fresh", action="store_true", help="do not go on with an interrupted run")
    parser.add_argument("--keep", action="store_true", help="keep the VMs' directories with their logs")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds and --seconds are at least 1, and more than 0")
    try:
        options.scale, options.scales = scales(options.scale)
    except ValueError as error:
        parser.error(f"--scale: {error}")
    if options.standby_gpu is None:
        options.standby_gpu = options.gpu
    unknown = [name for name in options.columns if name not in table.COLUMNS]
    if unknown or not options.columns:
        parser.error(f"no such column: {', '.join(unknown)}; there are {', '.join(table.COLUMNS)}")
    if "vm" not in options.crowd or set(options.crowd) - set(crowd.COLUMNS):
        parser.error(f"--crowd: vm, and what is compared with it: {', '.join(crowd.COLUMNS)}")
    options.vms = [int(count) for count in options.vms if count.isdigit() and int(count) > 0]
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


def choose_device(options):
    """The native column computes on the device that the VMs' workers take."""
    lister = str(options.build / "replicator" / "gpu" / "kagemusha-gpus")
    try:
        done = subprocess.run([lister, "--json", options.gpu], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True,
                              timeout=600, check=False)
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        stop(f"{lister}: {error}")
    if not found["gpus"]:
        stop(f"--gpu: {found['error']}")
    gpu = found["gpus"][0]
    os.environ["SUITE_DEVICE"] = f"{gpu['platform_index']}.{gpu['device_index']}"


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
    return {"rounds": options.rounds, "seconds": options.seconds, "scale": options.scale, "scales": options.scales,
            "columns": options.columns, "full": options.full, "memory_mib": options.memory, "cpus": options.cpus,
            "crowd_program": options.crowd_program, "gpu": options.gpu, "standby_gpu": options.standby_gpu, "programs": [program["name"] for program in programs]}


def begun_before(path, settings, commit):
    """The results of an interrupted run that this one can go on with, or None."""
    if not path.exists():
        return None
    results = read_results(path)
    same = all(results["settings"].get(key) == value for key, value in settings.items())
    return results if same and not results["finished"] and results["machine"]["commit"] == commit else None


def begin(options):
    """→ where the results go, and the results: new ones, or those to go on with."""
    known = suite(options, "list") + real.programs()
    chosen = options.programs or [program["name"] for program in known if options.full or "command" not in program]
    unknown = sorted({*chosen, *options.scales, options.crowd_program} - {program["name"] for program in known})
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
    results = None if options.fresh else begun_before(path, settings, machine["commit"])
    if results:
        log(f"Going on with {path}: {len(results['cells'])} runs are done. (--fresh: from the beginning)")
        return path, results
    if path.exists():
        os.replace(path, out / "previous.json")
        log(f"The results that were in {path} are in {out / 'previous.json'} now.")
    return path, {"format": FORMAT, "finished": False, "machine": machine, "settings": settings, "programs": programs, "cells": []}


# ---- runs ----

def forget(directories, keep):
    for directory in directories:
        if keep:
            log(f"logs kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)


class Columns:
    """All columns; each is started when its first turn comes, and anew when it was lost."""

    def __init__(self, options):
        self.options, self.up, self.starts, self.reason, self.directories = options, {}, {}, {}, []

    def make(self, name):
        if name == "native":
            return hosts.Native(self.options.suite)
        if name == "loopback":
            return hosts.Loopback(self.options)
        if name == "vm":
            return hosts.Machine(self.options, name)
        if name == "protected":
            return hosts.Protected(self.options, name)
        return hosts.Mirrored(self.options, name, "null" if name == "logged" else "opencl")

    def get(self, name):
        while name not in self.up:
            if self.starts.get(name, 0) >= STARTS:
                raise hosts.Lost(f"not started any more: {self.reason[name]}")
            self.starts[name] = self.starts.get(name, 0) + 1
            if name not in ("native", "loopback"):
                log(f"  starting: {table.COLUMNS[name][1]}")
            column = self.make(name)
            self.up[name] = column  # before it is started: what was started half has to be ended
            try:
                column.start()
            except hosts.Lost as error:
                self.lose(name, error)
                log(f"  {hosts.one_line(error)}")
        return self.up[name]

    def lose(self, name, error):
        column = self.up.pop(name, None)
        if column or name not in self.reason:
            self.reason[name] = hosts.one_line(error)
        if column:
            column.end()
            self.directories += column.directories

    def end(self, keep):
        for name in list(self.up):
            self.lose(name, "ended")
        forget(self.directories, keep)

    def measure(self, name, program, settings):
        """One run in one column. → what a cell says of it"""
        arguments = ["whole", program["command"]] if "command" in program else [
            "run", program["name"], str(settings["repeats"][program["name"]]), str(plan.scale_of(settings, program["name"]))]
        try:
            column = self.get(name)
            column.enter()
            for _ in range(STARTS):
                before = column.counters()
                run = column.run(arguments, WHOLE_SECONDS if "command" in program else RUN_SECONDS)
                after = column.counters()
                if not run.missed:
                    break
            column.leave()
        except (hosts.Lost, AssertionError, OSError) as error:
            self.lose(name, error)
            return {"seconds": None, "error": hosts.one_line(error)}
        return self.cell(program, run, before, after)

    def repeats(self, name, program, seconds, scale):
        """How often the program does its work in that time there; None when that can't be found out."""
        column = self.get(name)
        column.enter()
        run = column.run(["calibrate", program, f"{seconds:g}", str(scale)], RUN_SECONDS)
        column.leave()
        return run.result().get("repeats")

    @staticmethod
    def cell(program, run, before, after):
        cell = {"seconds": run.seconds, "error": None, "own_clock_seconds": run.result().get("seconds"),
                "device": run.result().get("device"),
                "counters": {**{key: round(after[key] - before.get(key, 0), 6) for key in after}, **run.more}}
        if "command" in program:
            cell["error"] = real.wrong(program, run.status, run.said) or None
            return cell
        wrong = run.result().get("wrong") or run.result().get("error") or (
            "its begin and its end were seen at once: the machine is too busy for so short a run" if run.missed and run.status == 0 else None)
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
    limits = [("native", 1), ("native", 1), ("vm", 3)]  # twice, because a machine with other work finds too few
    if "vm" not in settings["columns"]:
        limits.pop()
    if programs:
        log(f"Finding out how often a program has to do its work to take {settings['seconds']:g} s …")
    found = {program: {"native": 1} for program in programs}
    for name, factor in limits:
        for program in programs:
            try:
                repeats = columns.repeats(name, program, settings["seconds"] * factor, plan.scale_of(settings, program))
            except (hosts.Lost, AssertionError, OSError) as error:
                columns.lose(name, error)
                repeats = None  # its cells will say what is wrong with it
            if repeats:
                found[program][name] = max(repeats, found[program].get(name, 1))
    settings["repeats"] = {program: min(repeats.values()) for program, repeats in found.items()}


def run_all(options, path, results):
    settings, programs = results["settings"], {program["name"]: program for program in results["programs"]}
    done = [(cell["round"], cell["program"], cell["column"]) for cell in results["cells"]]
    todo = plan.left_over(settings["rounds"], list(programs), settings["columns"], done,
                          {name: program.get("not_in", ()) for name, program in programs.items()})
    columns, took = Columns(options), {}
    try:
        if "repeats" not in settings:
            of_suite = [name for name, program in programs.items() if "command" not in program]
            crowds = [crowd.program(results)] if settings["full"] and crowd.program(results) not in of_suite else []
            calibrate(columns, settings, of_suite + crowds)
        while todo:
            number, program, column = todo[0]
            started = time.monotonic()
            cell = columns.measure(column, programs[program], settings)
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
    finally:
        columns.end(options.keep)


def started(options, column, number, directories):
    """One more VM for the crowd, paused. Tried as often as any column."""
    name = f"{column}{number}"
    for attempt in range(STARTS):
        machine = {"vm": lambda: hosts.Machine(options, name), "logged": lambda: hosts.Mirrored(options, name, "null"),
                   "checkpointed": lambda: hosts.Protected(options, name, "null"),
                   "protected": lambda: hosts.Protected(options, name)}[column]()
        try:
            machine.start()
            machine.leave()
            return machine
        except BaseException as error:
            machine.end()
            directories += machine.directories
            if not isinstance(error, (hosts.Lost, AssertionError, OSError)) or attempt == STARTS - 1:
                raise
            log(f"  {hosts.one_line(error)}; tried again")
    return None


def start_crowd(pool, options, columns, count, machines, directories):
    """So many VMs of each column. What was started is in `machines`, whatever happens: whoever called ends it."""
    names = [(column, number) for column in columns for number in range(count)]
    log(f"  starting {len(names)} VMs for several at once")
    made = [(column, pool.submit(started, options, column, number, directories)) for column, number in names]
    try:
        for _, one in made:
            one.result()
    finally:
        for _, one in made:
            one.cancel()
        for column, one in made:
            if not one.cancelled() and one.exception() is None:
                machines[column].append(one.result())


def run_crowd(options, path, results):
    """Several VMs at once."""
    samples = results.setdefault("crowd", [])
    columns = [column for column in crowd.COLUMNS if column in options.crowd]
    todo = crowd.todo(results["settings"]["rounds"], options.vms, samples, columns)
    if not todo:
        return
    smaller = copy.copy(options)
    smaller.memory = crowd.MEMORY_MIB
    machines, directories = {column: [] for column in columns}, []
    program = crowd.program(results)
    # At once as far as there are processors. A VM dies with the thread that has started it (tied.sh), so they stay.
    pool = concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // (2 * options.cpus)))
    try:
        start_crowd(pool, smaller, columns, max(count for _, count, _ in todo), machines, directories)
        for place, (number, count, column) in enumerate(todo):
            repeats = results["settings"]["repeats"].get(program, 1)
            one = crowd.sample(machines[column][:count], column, number,
                               (program, repeats, plan.scale_of(results["settings"], program)), RUN_SECONDS)
            samples.append(one)
            write_whole(path, json.dumps(results, indent=1) + "\n")
            said = one["error"] or ", ".join(f"{seconds:.3f} s" for seconds in one["seconds"])
            log(f"  {place + 1} of {len(todo)}: {count} VMs, {crowd.COLUMNS[column]}: {said}")
    finally:
        for machine in [machine for some in machines.values() for machine in some]:
            machine.end()
            directories += machine.directories
        pool.shutdown()
        forget(directories, options.keep)


def run_mechanisms(options, path, results):
    """Each mechanism alone."""
    done = results.setdefault("mechanisms", [])
    import guest_vm  # needs the environment
    assets = json.loads(Path(guest_vm.environment()["KAGE_ASSETS"]).read_text(encoding="utf-8"))
    places = {"root": ROOT, "build": options.build.resolve(), "out": path.parent.resolve(), "qemu": assets["qemu"],
              "tool": os.environ["KAGE_TOOL"], "gpu": options.gpu, "standby_gpu": options.standby_gpu}
    for mechanism in mechanisms.left_over(done, options.mechanisms):
        log(f"  measuring: {mechanism['title']}")
        done.append(mechanisms.measure(mechanism, places))
        write_whole(path, json.dumps(results, indent=1) + "\n")


def write_report(path, results):
    """→ the report as text. With the run before it in the same directory, where that can be compared."""
    before = path.with_name("previous.json")
    try:
        again = compare.again(json.loads(before.read_text(encoding="utf-8")) if before.exists() else None, results)
    except (OSError, ValueError, KeyError, TypeError) as error:
        log(f"{before} is left out: {error}")
        again = []
    said = text.report(results, again)
    write_whole(path.with_name("report.html"), page.page(results, again))
    write_whole(path.with_name("report.txt"), said + "\n")
    return said


def measure(options):
    choose_device(options)
    path, results = begin(options)
    status = 0
    try:
        run_all(options, path, results)
        if options.full:
            run_crowd(options, path, results)
            run_mechanisms(options, path, results)
        results["finished"] = True
    except (hosts.Lost, AssertionError, OSError) as error:
        log(f"kage bench: {error}")
        status = 1
    except KeyboardInterrupt:
        log(f"Interrupted. What is done is in {path}; the same command goes on with it.")
        status = 130
    if not results["cells"]:
        return status or 1
    write_whole(path, json.dumps(results, indent=1) + "\n")
    print(write_report(path, results))
    log(f"{path.with_name('report.html')} is the report with pictures, {path} has everything.")
    return status or (1 if text.failed(results) else 0)


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
        print(write_report(Path(arguments[1]), results))
        return 0
    options = parse(arguments)
    os.environ["KAGE_BENCH_TOOL"] = str(options.build.resolve() / "control" / "kagemusha")
    os.environ["KAGE_TOOL"] = str(Path(__file__).resolve().parent / "tied.sh")
    os.environ["KAGE_BUILD_DIR"] = str(options.build)
    sys.path.insert(0, str(ROOT / "tests" / "vm"))

    # To be ended by a signal is to be interrupted: what was started has to be ended too.
    def interrupted(*_):
        raise KeyboardInterrupt
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    return measure(options)
