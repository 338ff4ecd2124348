"""What the cloud must agree to before anything is created: pure checks over what an adapter read.

The driver collects every finding of every check; nothing stops at the first. A check whose facts could not be read
says so and never passes silently.
"""

from __future__ import annotations

from datetime import datetime

from infra.model.spec import MigrationSpec, Strategy
from infra.model.survey import Survey
from infra.model.verdict import Finding, Level
from tasks.rules import preflight_capacity as capacity
from tasks.rules import preflight_fabric as fabric
from tasks.rules import preflight_network as network
from tasks.rules import preflight_pools as pools
from tasks.rules import preflight_storage as storage
from tasks.rules.preflight_question import Check, Question


def judge(
    survey: Survey,
    spec: MigrationSpec,
    run: str,
    now: datetime,
    *,
    server: str = "",
    source_nodes: int | None = None,
) -> list[Finding]:
    """Every finding of every check, blocking ones first, else in the order of `CHECKS`.

    Args:
        survey: what the cloud said.
        spec: what is wanted.
        run: the run's name.
        now: the cluster's time.
        server: URL of the Kubernetes API that the kubeconfig names; "": it is not compared with the cloud's.
        source_nodes: how many nodes of the source pool Kubernetes shows; None: not compared.

    """
    question = Question(survey=survey, spec=spec, run=run, now=now, server=server, source_nodes=source_nodes)
    findings = [finding for check in CHECKS for finding in check(question)]
    order = list(Level)
    return sorted(findings, key=lambda finding: order.index(finding.level))


def strategy(survey: Survey, spec: MigrationSpec) -> Strategy:
    """Side by side when both pools fit, swap when one reservation must hold both in turn.

    An explicit choice in the spec stands; `check_reservation_room` says when it cannot work.
    """
    if spec.strategy is not Strategy.AUTO:
        return spec.strategy
    return Strategy.SWAP if capacity.must_swap(survey, spec) else Strategy.SIDE_BY_SIDE


CHECKS: tuple[Check, ...] = (
    pools.check_cluster,
    pools.check_same_cluster,
    pools.check_source,
    pools.check_name,
    pools.check_external_target,
    pools.check_role,
    capacity.check_machine,
    capacity.check_offered,
    capacity.check_reservation,
    capacity.check_reservation_room,
    capacity.check_reservation_end,
    capacity.check_placement_group,
    capacity.check_quota,
    network.check_zones,
    network.check_subnet,
    network.check_security_groups,
    network.check_cluster_features,
    network.check_networks,
    fabric.check_version,
    fabric.check_nearness,
    fabric.check_addresses,
    fabric.check_addons,
    storage.check_lustre,
)
