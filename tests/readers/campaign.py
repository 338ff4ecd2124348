"""Mutates good and bad outputs many times over: no crash, and no pass that the undamaged output does not give.

python tests/readers/campaign.py 1000000 [FIRST]
"""

from __future__ import annotations

import functools
import json
import random
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from mutate import MUTATIONS, mutate
from nccl_writer import Job, write
from table_writer import Table, write_table
from tool_outputs import FIO_JSON, PERFTEST, fi_info, ibstat, steps

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import judge

PIECE = 2_500  # inputs
SMALL = {"gpus": 2, "channels": 2, "rounds": 2, "sizes": (67108864,)}
MACHINES = (None, "p5en.48xlarge", "a3-ultragpu-8g", "a2-highgpu-8g", "p4d.24xlarge")
# A device list has no end mark: cut to the number that another machine has, it is that machine's whole list.
OWN_MACHINE = {"fi-info": "p5en.48xlarge", "ibstat": "p5en.48xlarge", "ibstat-down": "p5en.48xlarge"}
CASES = Path(__file__).parent / "cases"


@dataclass
class Result:
    """How many inputs were read, and what went wrong: (source, mutations, seed, complaint)."""

    inputs: int = 0
    passes: int = 0
    failures: list[tuple[str, str, int, str]] = field(default_factory=list)


def sources() -> dict[str, bytes]:
    """Outputs that do not pass undamaged: bad runs, tables and the golden cases."""
    found = {
        "sockets": write(Job(**SMALL, fabric="socket")),
        "one-rank": write(Job(**SMALL, socket_ranks=frozenset({3}))),
        "later": write(Job(**SMALL, socket_ranks=frozenset(range(4)), bad_rounds=frozenset({1}))),
        "no-gdr": write(Job(**SMALL, plain_ranks=frozenset({1}))),
        "one-host": write(Job(**SMALL, same_host=True)),
        "old": write(Job(**SMALL, version="2.10.3", fabric="ib", plain_ranks=frozenset({0}))),
        "gib": write(Job(**SMALL, fabric="gib", nics=8, socket_ranks=frozenset({0}))),
        "fastrak": write(Job(**SMALL, fabric="fastrak", socket_ranks=frozenset({2}))),
        "wrong": write_table(Table.with_defect("wrong")),
        "single": write_table(Table.with_defect("single")),
        "error-column": write_table(Table(layout="error", rows=2)),
        "jitter": write_table(Table(layout="jitter", factor=0.1)),
        "stamped": write_table(Table(layout="stamped", hosts=1)),
        "fio": json.dumps(FIO_JSON).encode(),
        "perftest": PERFTEST.replace("391.72", "191.72").encode(),
        "fi-info": fi_info(range(15)).encode(),
        "ibstat": ibstat(*["Active"] * 15).encode(),
        "ibstat-down": ibstat(*["Active"] * 15, "Down").encode(),
        "steps": steps(warmup=2, seconds=(6.1, 6.0, 6.2)).encode(),
    }
    for directory in sorted(CASES.iterdir()):
        found[directory.name] = next(directory.glob("input.*")).read_bytes()
    return found


@functools.cache
def passes(data: bytes, machine: str | None) -> bool:
    """What the campaign stands on: an undamaged source does not pass."""
    return judge(from_text(data), machine_type=machine, nodes=2).outcome is Outcome.PASS


def run(inputs: int, *, seed: int = 0) -> Result:
    """Read `inputs` damaged outputs, each damaged one to three times."""
    rng, result = random.Random(seed), Result()
    outputs = sources()
    names = sorted(outputs)
    for name in names:
        result.failures += [(name, "undamaged", 0, f"passes on {m}") for m in MACHINES if passes(outputs[name], m)]
    for number in range(inputs):
        name = names[number % len(names)]
        chosen = [rng.choice(MUTATIONS) for _ in range(rng.choice([1, 1, 2, 3]))]
        data, start = outputs[name], rng.randrange(2**32)
        for step, mutation in enumerate(chosen):
            data = mutate(data, mutation, start + step, other=outputs[rng.choice(names)])
        result.inputs += 1
        try:
            machine = OWN_MACHINE.get(name) or rng.choice(MACHINES)
            answer = judge(from_text(data), machine_type=machine, nodes=rng.choice([None, 2]))
            answer.lines()
            answer.to_json()
        except Exception as error:  # finding any of them is the purpose
            result.failures.append((name, "+".join(chosen), start, repr(error)))
            continue
        if answer.outcome is Outcome.PASS:
            result.passes += 1
            result.failures.append((name, "+".join(chosen), start, "passes"))
    return result


def main(inputs: int, first: int = 0) -> int:
    """Run in pieces, each with its own seed, on every core; say after each how far it is. `first`: go on from there."""
    done, failed = 0, 0
    seeds = range(first, first + inputs, PIECE)
    with ProcessPoolExecutor() as pool:
        for outcome in pool.map(piece, seeds, [min(PIECE, first + inputs - seed) for seed in seeds]):
            done += outcome.inputs
            failed += len(outcome.failures)
            for failure in outcome.failures[:20]:
                sys.stdout.write(f"{failure}\n")
            sys.stdout.write(f"{done} inputs, {failed} failures\n")
            sys.stdout.flush()
    return 1 if failed else 0


def piece(seed: int, inputs: int) -> Result:
    """One piece of a campaign."""
    return run(inputs, seed=seed)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:] or ["10000"])))
