"""Mutates good and bad outputs many times over: no crash, and no pass that the undamaged output does not give.

python tests/readers/campaign.py 1000000
"""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

from mutate import MUTATIONS, mutate
from nccl_writer import Job, write
from table_writer import Table, write_table

from infra.model.verdict import Outcome
from infra.probes.readers.lines import from_text
from tasks.judge import judge

SMALL = {"gpus": 2, "channels": 2, "rounds": 2, "sizes": (67108864,)}
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
        "wrong": write_table(Table.with_defect("wrong")),
        "single": write_table(Table.with_defect("single")),
    }
    for directory in sorted(CASES.iterdir()):
        found[directory.name] = next(directory.glob("input.*")).read_bytes()
    return found


def run(inputs: int, *, seed: int = 0) -> Result:
    """Read `inputs` damaged outputs, each damaged one to three times."""
    rng, result = random.Random(seed), Result()
    outputs = sources()
    names = sorted(outputs)
    machines = [None, "p5en.48xlarge", "a3-ultragpu-8g", "a2-highgpu-8g"]
    for number in range(inputs):
        name = names[number % len(names)]
        chosen = [rng.choice(MUTATIONS) for _ in range(rng.choice([1, 1, 2, 3]))]
        data, start = outputs[name], rng.randrange(2**32)
        for step, mutation in enumerate(chosen):
            data = mutate(data, mutation, start + step, other=outputs[rng.choice(names)])
        result.inputs += 1
        try:
            answer = judge(from_text(data), machine_type=rng.choice(machines), nodes=rng.choice([None, 2]))
            answer.lines()
            answer.to_json()
        except Exception as error:  # finding any of them is the purpose
            result.failures.append((name, "+".join(chosen), start, repr(error)))
            continue
        if answer.outcome is Outcome.PASS:
            result.passes += 1
            result.failures.append((name, "+".join(chosen), start, "passes"))
    return result


if __name__ == "__main__":
    outcome = run(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    sys.stdout.write(f"{outcome.inputs} inputs, {len(outcome.failures)} failures\n")
    for failure in outcome.failures[:20]:
        sys.stdout.write(f"{failure}\n")
    sys.exit(1 if outcome.failures else 0)
