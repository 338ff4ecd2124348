"""Which node, or which link between two nodes, is bad? A planner that knows nothing but names and test results.

A group of nodes failed together. Each round tests disjoint groups, so that all tests of a round run at the same
time. A failing group is halved; a single suspect is tested with a partner that has passed elsewhere. When both halves
pass, the fault lies between them, and the halves are crossed against each other until one pair is left. At the end
all that is left is tested as a whole. About log2(nodes) rounds, whatever the number of bad nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from infra.model.verdict import Outcome

Group = frozenset[str]
Pair = tuple[str, str]
Run = Callable[[Sequence[Group]], Mapping[Group, Outcome] | None]
SILENT = 2  # a test that gave no answer is tried once more
REOPEN = 3  # times that what was found may turn out not to be all


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Where to stop: tests, and node-tests (one node in one test). What is left then is unresolved."""

    tests: int = 200
    node_tests: int = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspects:
    """Nodes that failed together. With `against`, each side passes alone and the fault is between the two.

    `swapped` tells which of the two ways of crossing the halves is asked now.
    """

    nodes: tuple[str, ...]
    against: tuple[str, ...] = ()
    swapped: bool = False

    @property
    def questions(self) -> tuple[Group, ...]:
        """The groups whose answers narrow these suspects; a single name is asked together with a well partner."""
        a, b = _halve(self.nodes)
        if not self.against:
            return (frozenset(a), frozenset(b))
        c, d = _halve(self.against)
        crossings = ((a, d), (b, c)) if self.swapped else ((a, c), (b, d))
        return tuple(frozenset((*x, *y)) for x, y in crossings if x and y)


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """What was found. `unresolved` nodes are under suspicion still: no test could tell, or a limit was reached."""

    bad_nodes: tuple[str, ...] = ()
    bad_pairs: tuple[Pair, ...] = ()
    unresolved: tuple[str, ...] = ()
    good: tuple[str, ...] = ()
    rounds: int = 0
    tests: int = 0
    node_tests: int = 0
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """All that is known between two rounds. `good` nodes were part of a test that passed.

    `doubted` pairs failed together once, while each of the two passed with others: asked again before they are named.
    """

    nodes: tuple[str, ...]
    suspects: tuple[Suspects, ...]
    results: Mapping[Group, Outcome] = field(default_factory=dict)
    silent: Mapping[Group, int] = field(default_factory=dict)
    good: frozenset[str] = frozenset()
    bad_nodes: frozenset[str] = frozenset()
    bad_pairs: frozenset[Pair] = frozenset()
    doubted: frozenset[Pair] = frozenset()
    unresolved: frozenset[str] = frozenset()
    reopened: int = 0
    rounds: int = 0
    tests: int = 0
    node_tests: int = 0

    @property
    def rest(self) -> tuple[str, ...]:
        """Nodes neither bad nor in doubt; of a bad pair one stays out, since the other may work with all others."""
        out = self.bad_nodes | self.unresolved | {first for first, _ in self.bad_pairs}
        return tuple(n for n in self.nodes if n not in out)

    def answer(self, question: Group) -> Outcome | None:
        """What the tests so far say. A single node is bad when it failed with two others that had passed elsewhere:
        with one alone, the link to it may be what is bad, or that one has turned bad since.
        """
        if question in self.results:
            return self.results[question]
        if len(question) > 1:
            return None
        if question <= self.good:
            return Outcome.PASS
        failed_with = {
            name
            for group, outcome in self.results.items()
            if outcome is Outcome.FAIL and len(group) == 2 and question < group
            for name in group - question
        }
        return Outcome.FAIL if len(failed_with & self.good) > 1 else None


def localise(nodes: Iterable[str], run: Run, limits: Limits | None = None) -> Located:
    """Drive rounds until everything is known. The nodes are known to fail as a whole.

    Args:
        nodes: at least two names.
        run: tests disjoint groups, all at once, and says pass, fail or unmeasured for each; None: it may run no more.
        limits: of tests.

    """
    limits = limits or Limits()
    names = tuple(sorted(set(nodes)))
    state = State(nodes=names, suspects=(Suspects(nodes=names),), results={frozenset(names): Outcome.FAIL})
    while groups := plan(state):
        cost = sum(len(group) for group in groups)
        if state.tests + len(groups) > limits.tests or state.node_tests + cost > limits.node_tests:
            return _located(state, f"stopped at the limit after {state.tests} tests")
        answers = run(groups)
        if answers is None:
            return _located(state, f"the budget allows no further round after {state.tests} tests")
        state = learn(state, groups, answers)
    return _located(state, "")


def plan(state: State) -> tuple[Group, ...]:
    """The disjoint groups to test next; empty when nothing more can be learned."""
    if not state.suspects and not state.doubted:
        rest = frozenset(state.rest)
        return () if len(rest) < 2 or rest in state.results else (rest,)
    open_questions = [q for s in state.suspects for q in s.questions if state.answer(q) is None]
    groups: list[Group] = []
    used: set[str] = set()
    for pair in sorted(state.doubted):
        if not used & set(pair):
            groups.append(frozenset(pair))
            used |= set(pair)
    for question in sorted(open_questions, key=lambda q: (-len(q), sorted(q))):
        group = question if len(question) > 1 else _with_partner(state, question, used)
        if group and not used & group:
            groups.append(group)
            used |= group
    return tuple(groups) or _among_suspects(state)


def learn(state: State, groups: Sequence[Group], answers: Mapping[Group, Outcome]) -> State:
    """What one round's results say. A group without an answer is unmeasured."""
    outcomes = {group: answers.get(group, Outcome.UNMEASURED) for group in groups}
    told = {group: outcome for group, outcome in outcomes.items() if outcome is not Outcome.UNMEASURED}
    state = replace(
        state,
        results={**state.results, **told},
        silent={**state.silent, **{g: state.silent.get(g, 0) + 1 for g in groups if g not in told}},
        good=state.good | {name for group, outcome in told.items() if outcome is Outcome.PASS for name in group},
        rounds=state.rounds + 1,
        tests=state.tests + len(groups),
        node_tests=state.node_tests + sum(len(group) for group in groups),
    )
    if not state.suspects and not state.doubted:
        return _confirm(state)
    return _narrow_all(_settle_pairs(state, outcomes))


def _settle_pairs(state: State, outcomes: Mapping[Group, Outcome]) -> State:
    """A pair that fails again is bad; one that passes now came and went, and nobody is blamed for it."""
    for pair in sorted(state.doubted):
        group = frozenset(pair)
        outcome = outcomes.get(group)
        if outcome is Outcome.FAIL:
            state = replace(state, bad_pairs=state.bad_pairs | {pair}, doubted=state.doubted - {pair})
        elif outcome is Outcome.PASS or state.silent.get(group, 0) >= SILENT:
            state = replace(state, unresolved=state.unresolved | group, doubted=state.doubted - {pair})
    return state


def _confirm(state: State) -> State:
    """All that is left, together: a failure opens the search again on it.

    What passed before may have hidden it, or a node may have turned bad since: no earlier pass counts any more.
    """
    rest = frozenset(state.rest)
    if state.results.get(rest) is Outcome.FAIL:
        if state.reopened == REOPEN:
            return replace(state, unresolved=state.unresolved | rest)
        return _narrow_all(
            replace(
                state,
                suspects=(Suspects(nodes=state.rest),),
                results={rest: Outcome.FAIL},
                silent={},
                good=frozenset(),
                reopened=state.reopened + 1,
            )
        )
    if state.silent.get(rest, 0) >= SILENT:
        return replace(state, unresolved=state.unresolved | rest)
    return state


def _narrow_all(state: State) -> State:
    """Narrow as far as the answers reach; some may already answer the next question."""
    waiting: list[Suspects] = []
    queue = list(state.suspects)
    while queue:
        suspects = queue.pop(0)
        answers = [state.answer(q) for q in suspects.questions]
        if None not in answers:
            state, further = _narrow(state, suspects, answers)
            queue += further
        elif any(state.silent.get(q, 0) >= SILENT for q in suspects.questions):
            state = replace(state, unresolved=state.unresolved | {*suspects.nodes, *suspects.against})
        else:
            waiting.append(suspects)
    return replace(state, suspects=tuple(waiting))


def _narrow(state: State, suspects: Suspects, answers: Sequence[Outcome | None]) -> tuple[State, list[Suspects]]:
    """One step: the failing parts go on; when no part fails, the fault is between them."""
    failing = [q for q, a in zip(suspects.questions, answers, strict=True) if a is Outcome.FAIL]
    if suspects.against:
        sides = [(_only(suspects.nodes, part), _only(suspects.against, part)) for part in failing]
        if not failing and suspects.swapped:  # it failed before and passes in every crossing: it comes and goes
            doubt = {*suspects.nodes, *suspects.against}
            return replace(state, unresolved=state.unresolved | doubt), []
        if not failing:
            return state, [replace(suspects, swapped=True)]
    else:
        singles = {name for part in failing if len(part) == 1 for name in part}
        state = replace(state, bad_nodes=state.bad_nodes | singles)
        if failing:
            return state, [Suspects(nodes=tuple(sorted(part))) for part in failing if len(part) > 1]
        sides = [_halve(suspects.nodes)]
    pairs = {_pair(left[0], right[0]) for left, right in sides if len(left) == len(right) == 1}
    further = [Suspects(nodes=left, against=right) for left, right in sides if len(left) + len(right) > 2]
    return replace(state, doubted=state.doubted | pairs), further


def _with_partner(state: State, question: Group, used: set[str]) -> Group | None:
    """The suspect and a well node that is free in this round, not one with which it was silent before."""
    for partner in sorted(state.good - state.bad_nodes - used - question):
        group = question | {partner}
        if group not in state.results and state.silent.get(group, 0) < SILENT:
            return group
    return None


def _among_suspects(state: State) -> tuple[Group, ...]:
    """No well partner is free: pair the suspects with each other, never twice the same two. Who passes is well."""
    names = sorted({name for s in state.suspects for name in s.nodes} - state.bad_nodes)
    groups: list[Group] = []
    used: set[str] = set()
    for index, name in enumerate(names):
        for other in names[index + 1 :]:
            group = frozenset((name, other))
            if group not in state.results and group not in state.silent and not used & group:
                groups.append(group)
                used |= group
    return tuple(groups)


def _only(names: tuple[str, ...], part: Group) -> tuple[str, ...]:
    return tuple(n for n in names if n in part)


def _pair(a: str, b: str) -> Pair:
    return (a, b) if a < b else (b, a)


def _halve(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two halves, the first one larger when the count is odd; the second is empty for a single name."""
    middle = (len(names) + 1) // 2
    return names[:middle], names[middle:]


def _located(state: State, reason: str) -> Located:
    doubted = {n for s in state.suspects for n in (*s.nodes, *s.against)} - state.bad_nodes
    doubted |= {n for pair in state.doubted for n in pair}
    unresolved = state.unresolved | doubted
    if doubted and not reason:
        reason = "no node is known to be well, so a bad node cannot be told from a bad link"
    return Located(
        bad_nodes=tuple(sorted(state.bad_nodes)),
        bad_pairs=tuple(sorted(state.bad_pairs)),
        unresolved=tuple(sorted(unresolved)),
        good=tuple(sorted(state.good - unresolved - state.bad_nodes)),
        rounds=state.rounds,
        tests=state.tests,
        node_tests=state.node_tests,
        reason=reason,
    )
