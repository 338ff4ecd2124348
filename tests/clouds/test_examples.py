"""Every example spec loads, and the sandbox ones name what the simulated clouds have."""

from __future__ import annotations

from importlib import resources

import pytest
import yaml

from infra.model.spec import MigrationSpec
from infra.sandbox.clouds import names

EXAMPLES = sorted(
    f.name
    for f in resources.files("infra.examples").iterdir()
    if f.name.endswith(".yaml") and not f.name.endswith("-revalidate.yaml")
)


def load(name: str) -> MigrationSpec:
    return MigrationSpec.model_validate(yaml.safe_load((resources.files("infra.examples") / name).read_text()))


def test_there_is_one_for_each_kind_of_pool():
    kinds = {load(name).target.kind for name in EXAMPLES}

    assert kinds == {"eks", "gke", "external"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_loads(name):
    spec = load(name)

    assert MigrationSpec.model_validate_json(spec.model_dump_json()) == spec


def test_the_sandbox_examples_name_the_simulated_resources():
    eks, gke = load("sandbox-eks.yaml").target, load("sandbox-gke.yaml").target

    assert (eks.subnet, eks.reservation.id, eks.lustre) == (names.SUBNET, names.RESERVATION, names.FILE_SYSTEM)
    assert (eks.node_role, eks.security_groups) == (names.NODE_ROLE, (names.EFA_GROUP,))
    assert gke.reservation.name == names.GKE_RESERVATION
    assert gke.lustre.endswith(names.GKE_LUSTRE)


@pytest.mark.parametrize("cloud", ["eks", "gke"])
def test_a_sandbox_example_plans_without_a_blocking_finding(world, cloud):
    from tasks import pools as steps

    w = world(cloud)
    spec = load(f"sandbox-{cloud}.yaml")

    findings = steps.preflight(w.pools, spec, spec.name, w.clock.now())

    assert [f.code for f in findings if f.level == "block"] == []
