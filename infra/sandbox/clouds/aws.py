"""Simulated AWS: moto's server on loopback, with what it lacks filled in.

moto gives EC2's networks, security groups, launch templates and real instance-type data. Node groups, capacity
reservations, placement groups, scaling activities, EC2 quotas and Lustre are ours (moto has them not, or without
states and time). They are put in place of moto's methods, on its private surface, so moto is pinned; a test starts
this server and asks each of them, and fails when a new moto moved something. One simulated AWS per process.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from infra.sandbox.clouds import aws_answers as answers
from infra.sandbox.clouds import names
from infra.sandbox.clouds.capacity import Capacity, Faults
from infra.sandbox.clouds.eks import NodeGroups
from infra.sandbox.clouds.machines import Nodes
from infra.sandbox.clouds.scaling import Refusal
from infra.sandbox.clouds.timeline import Timeline
from infra.sandbox.scenario import CloudConfig


class SimulatedAws:
    """EKS, EC2, Auto Scaling, FSx and Service Quotas at `endpoint`."""

    def __init__(
        self, config: CloudConfig, nodes: Nodes, timeline: Timeline, faults: Faults, capacity: Capacity
    ) -> None:
        self.config = config
        self.timeline = timeline
        self.capacity = capacity
        self.endpoint = ""
        self._undo: list[Callable[[], None]] = []
        self._server: Any = None
        self.groups = NodeGroups(
            config=config,
            timeline=timeline,
            nodes=nodes,
            capacity=capacity,
            faults=faults,
            template=self._template,
            subnet_zone=self._subnet_zone,
            cluster_group=names.CLUSTER_GROUP,
        )

    def start(self) -> None:
        """Serve on a free port, with the scenario's cluster, network and source pool in place."""
        from moto.moto_server.werkzeug_app import MotoRequestHandler
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # one line per request otherwise
        os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # a second at each start, and nothing here asks for images
        self.ec2.reset()
        self.eks.reset()
        self._install()
        self._seed()
        handler: Any = MotoRequestHandler
        self._server = make_server("127.0.0.1", 0, _application(), threaded=True, request_handler=handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        serve = partial(self._server.serve_forever, poll_interval=0.05)
        threading.Thread(target=serve, name="simulated-aws", daemon=True).start()

    def stop(self) -> None:
        """Close the port and give moto its own methods back."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _seed(self) -> None:
        """The network that the examples name, the cluster, and the source pool."""
        place = self.config.place
        ec2 = self.ec2
        with _named("vpcs", "random_vpc_id", names.VPC):
            ec2.create_vpc("10.0.0.0/16")
        for name, zone, block in (
            (names.SUBNET, place.zone, "10.0.64.0/18"),
            (names.OTHER_SUBNET, place.other_zone, "10.0.128.0/18"),
        ):
            with _named("subnets", "random_subnet_id", name):
                ec2.create_subnet(names.VPC, block, availability_zone=zone)
        for name, title in (
            (names.CLUSTER_GROUP, "eks-cluster"),
            (names.EFA_GROUP, "efa"),
            (names.LUSTRE_GROUP, "lustre"),
        ):
            with _named("security_groups", "random_security_group_id", name):
                ec2.create_security_group(title, title, vpc_id=names.VPC)
        rule: dict[str, Any] = {"ip_protocol": "-1", "from_port": None, "to_port": None, "ip_ranges": []}
        for name in (names.CLUSTER_GROUP, names.EFA_GROUP):
            peers = [{"GroupId": name}]
            ec2.authorize_security_group_ingress(name, **rule, source_groups=peers)
            ec2.authorize_security_group_egress(name, **rule, source_groups=peers)
        for low, high in ((988, 988), (1018, 1023)):
            ec2.authorize_security_group_ingress(
                names.LUSTRE_GROUP,
                ip_protocol="tcp",
                from_port=low,
                to_port=high,
                ip_ranges=[],
                source_groups=[{"GroupId": names.CLUSTER_GROUP}],
            )
        subnet = ec2.get_subnet(self.lustre_subnet)
        with _named("elastic_network_interfaces", "random_eni_id", names.LUSTRE_INTERFACE):
            ec2.create_network_interface(subnet, None, group_ids=[names.LUSTRE_GROUP])
        self._seed_cluster()

    def _seed_cluster(self) -> None:
        place = self.config.place
        from moto.eks.models import Cluster

        # Not through moto's create_cluster: it reads all of AWS' partitions to check the role's ARN, for half a second.
        cluster = Cluster(
            name=place.cluster,
            role_arn=f"arn:aws:iam::{names.ACCOUNT}:role/train-cluster",
            version="1.34",
            resources_vpc_config={"subnetIds": [names.SUBNET, names.OTHER_SUBNET]},
            account_id=names.ACCOUNT,
            region_name=place.region,
            aws_partition="aws",
        )
        self.eks.clusters[place.cluster] = cluster
        cluster.resources_vpc_config |= {"vpcId": names.VPC, "clusterSecurityGroupId": names.CLUSTER_GROUP}
        interfaces = [
            {
                "NetworkCardIndex": 0,
                "DeviceIndex": 0,
                "InterfaceType": "interface",
                "Groups": [names.CLUSTER_GROUP],
            }
        ]
        if self.config.scenario.source.rdma:
            from infra.fabrics import fabric_of

            fabric = fabric_of(place.machine_type)
            interfaces += [
                {
                    "NetworkCardIndex": card,
                    "DeviceIndex": 1 if card == 0 else 0,
                    "InterfaceType": "efa-only",
                    "Groups": [names.CLUSTER_GROUP],
                }
                for card in range(fabric.nics if fabric else 0)
            ]
        data: dict[str, Any] = {"InstanceType": place.machine_type, "NetworkInterfaces": interfaces}
        if self.config.scenario.reservation.source:
            data["CapacityReservationSpecification"] = {
                "CapacityReservationTarget": {"CapacityReservationId": names.RESERVATION}
            }
        template = self.ec2.create_launch_template(names.SOURCE_TEMPLATE, "the old pool", data, tag_spec={})
        nodes = len(self.config.source_nodes)
        self.groups.adopt(
            {
                "nodegroupName": place.source_pool,
                "subnets": [names.SUBNET],
                "nodeRole": names.NODE_ROLE,
                "amiType": "AL2023_x86_64_NVIDIA",
                "scalingConfig": {"minSize": 0, "maxSize": max(nodes, 1) + 2, "desiredSize": nodes},
                "launchTemplate": {"id": template.id, "version": "1"},
                "nodeRepairConfig": {"enabled": True},
                "labels": {},
                "taints": [],
                "tags": {"team": "platform"},
            },
            self.config.source_nodes,
        )

    def _template(self, named: Mapping[str, Any]) -> tuple[str, str, Mapping[str, Any]]:
        """Id, name and data of a launch template version. KeyError: there is none."""
        ec2 = self.ec2
        for template in ec2.launch_templates.values():
            if named.get("id", template.id) == template.id and named.get("name", template.name) == template.name:
                version = str(named.get("version") or "1")
                for found in template.versions:
                    if str(found.number) == version:
                        return template.id, template.name, found.data
        raise KeyError(str(dict(named)))

    def _subnet_zone(self, subnet: str) -> str:
        for zone, subnets in self.ec2.subnets.items():
            if subnet in subnets:
                return str(zone)
        raise KeyError(subnet)

    @property
    def lustre_subnet(self) -> str:
        """Where the Lustre file system is."""
        return names.SUBNET if self.config.scenario.lustre.zone == "same" else names.OTHER_SUBNET

    @property
    def ec2(self) -> Any:
        """The EC2 backend of moto."""
        from moto.ec2.models import ec2_backends

        return ec2_backends[names.ACCOUNT][self.config.place.region]

    @property
    def eks(self) -> Any:
        """The EKS backend of moto."""
        from moto.eks.models import eks_backends

        return eks_backends[names.ACCOUNT][self.config.place.region]

    def _install(self) -> None:
        """Put our answers in place of moto's, remembering what was there."""
        from moto.autoscaling.responses import AutoScalingResponse
        from moto.ec2.responses import EC2Response
        from moto.eks import urls
        from moto.eks.responses import EKSResponse
        from moto.fsx.responses import FSxResponse
        from moto.servicequotas.responses import ServiceQuotasResponse

        for name, answer in answers.EKS.items():
            self._put(EKSResponse, name, self._eks_method(answer))
        for name, answer in answers.EC2.items():
            self._put(EC2Response, name, self._result(answer))
        self._put(AutoScalingResponse, "describe_scaling_activities", self._result(answers.scaling_activities))
        self._put(AutoScalingResponse, "describe_auto_scaling_groups", self._result(answers.scaling_groups))
        self._put(AutoScalingResponse, "terminate_instance_in_auto_scaling_group", self._result(answers.terminate))
        self._put(AutoScalingResponse, "suspend_processes", self._result(answers.suspend))
        self._put(AutoScalingResponse, "resume_processes", self._result(answers.resume))
        self._put(FSxResponse, "describe_file_systems", self._json(answers.file_systems))
        self._put(ServiceQuotasResponse, "get_service_quota", self._json(answers.quota))
        for path in ("updates/(?P<updateId>[^/]+)$", "addons$", "addons/(?P<addonName>[^/]+)$"):
            # stays: without our method it answers 404 as before
            urls.url_paths.setdefault("{0}/clusters/(?P<name>[^/]+)/" + path, urls.response.dispatch)

    def _put(self, owner: type, name: str, method: Callable[[Any], Any]) -> None:
        before = owner.__dict__.get(name)
        setattr(owner, name, method)
        if before is None:
            self._undo.append(lambda: delattr(owner, name))
        else:
            self._undo.append(lambda: setattr(owner, name, before))

    def _eks_method(self, answer: Callable[[SimulatedAws, Any], Any]) -> Callable[[Any], Any]:
        from moto.core.responses import ActionResult, EmptyResult
        from moto.eks import exceptions

        def method(response: Any) -> Any:
            self.timeline.run_due()
            try:
                result = answer(self, response)
            except Refusal as refusal:
                kind = getattr(exceptions, refusal.code, exceptions.ResourceNotFoundException)
                raise kind(message=str(refusal), clusterName=self.config.place.cluster) from refusal
            return EmptyResult() if result is None else ActionResult(result)

        return method

    def _result(self, answer: Callable[[SimulatedAws, Any], Any]) -> Callable[[Any], Any]:
        from moto.core.responses import ActionResult

        def method(response: Any) -> Any:
            self.timeline.run_due()
            return ActionResult(answer(self, response))

        return method

    def _json(self, answer: Callable[[SimulatedAws, Any], Any]) -> Callable[[Any], Any]:
        """For services whose moto response methods return JSON text."""
        import json

        def method(response: Any) -> str:
            self.timeline.run_due()
            return json.dumps(answer(self, json.loads(response.body or "{}")), default=str)

        return method


@contextmanager
def _named(module: str, function: str, name: str) -> Iterator[None]:
    """Within it, moto gives the next resource of a kind the identifier that the examples name."""
    its = importlib.import_module(f"moto.ec2.models.{module}")
    before = getattr(its, function)
    setattr(its, function, lambda *args, **kwargs: name)
    try:
        yield
    finally:
        setattr(its, function, before)


@cache
def _application() -> Any:
    """The WSGI application of moto's server: it keeps no state of ours, and making it takes a while."""
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app

    return DomainDispatcherApplication(create_backend_app)
