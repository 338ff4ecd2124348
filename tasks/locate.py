"""Find the node or link behind a failed probe by testing groups of nodes side by side, within the budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from infra.model.verdict import Finding, Level, Outcome
from infra.probes.catalogue import Probe
from tasks.checks import trial
from tasks.measuring import Session
from tasks.rules import cost
from tasks.rules.localise import Group, Limits, Located, localise
from tasks.rules.wording import and_more, plural

AT_ONCE = 16  # groups tested side by side; each is a few requests every five seconds


def locate(session: Session, probe: Probe) -> Located:
    """Drive the search, and file what it found as findings."""
    by_name = {node.name: node for node in session.nodes}
    per_node = cost.of(probe, 1, session.gpus)
    limits = Limits(node_tests=int(session.spending.left() / per_node) if per_node else 0)
    rounds = 0

    def run(groups: Sequence[Group]) -> Mapping[Group, Outcome] | None:
        nonlocal rounds
        rounds += 1
        name, need = f"localisation round {rounds}", per_node * sum(map(len, groups))
        if need > session.spending.left(name):  # a round may have held its nodes longer than was estimated
            return None
        session.say(
            f"localisation round {rounds}: {plural(len(groups), 'group')} of "
            f"{plural(max(map(len, groups)), 'node')} at most"
        )

        def one(item: tuple[int, Group]) -> tuple[Group, Outcome, float]:
            number, group = item
            nodes = [by_name[name] for name in sorted(group)]
            outcome, minutes = trial(session, probe, nodes, f"{session.attempt}l{rounds}-{number}", name)
            return group, outcome, minutes

        session.spending.begin(name, need)
        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            done = list(pool.map(one, enumerate(groups)))
        minutes = sum(spent for _, _, spent in done)
        session.spending.end(name, minutes)
        session.spent += minutes
        return {group: outcome for group, outcome, _ in done}

    located = localise(by_name, run, limits)
    found = findings(located)
    session.findings += found
    for finding in found:
        session.say(finding.wording())
    return located


def findings(located: Located) -> list[Finding]:
    """One finding for each bad node and link, and one for what stayed open."""
    tests = f"{plural(located.tests, 'test')} in {plural(located.rounds, 'round')}"
    found = [
        Finding(
            level=Level.BLOCK,
            code="bad-node",
            object=f"node {name}",
            observed=f"fails together with nodes that are well ({tests})",
            remedy=f"replace it: kubectl cordon {name}, then have the cloud replace the machine",
        )
        for name in located.bad_nodes
    ]
    found += [
        Finding(
            level=Level.BLOCK,
            code="bad-link",
            object=f"nodes {a} and {b}",
            observed=f"fail together, and each is well with others ({tests})",
            remedy="report the pair to the cloud: a rail or a switch port between them; until then replace one of them",
        )
        for a, b in located.bad_pairs
    ]
    if located.unresolved:
        why = located.reason or "a test gave no answer, or the fault comes and goes"
        found.append(
            Finding(
                level=Level.WARN,
                code="not-localised",
                object=f"nodes {and_more(located.unresolved, 6)}",
                observed=f"under suspicion still ({tests}): {why}",
                remedy="raise validation.budget_gpu_minutes and run again",
            )
        )
    return found
