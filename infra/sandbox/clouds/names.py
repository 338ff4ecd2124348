"""Identifiers of the simulated clouds' resources. Fixed, so that a spec can name them; the examples do."""

from __future__ import annotations

ACCOUNT = "123456789012"
VPC = "vpc-0a11ce0000000001"
SUBNET = "subnet-0a11ce0000000001"  # in the target's zone
OTHER_SUBNET = "subnet-0a11ce0000000002"  # in the scenario's other zone
CLUSTER_GROUP = "sg-0a11ce0000000001"
EFA_GROUP = "sg-0a11ce0000000002"
LUSTRE_GROUP = "sg-0a11ce0000000003"
LUSTRE_INTERFACE = "eni-0a11ce0000000001"
RESERVATION = "cr-0a11ce0000000001"
FILE_SYSTEM = "fs-0a11ce0000000001"
NODE_ROLE = f"arn:aws:iam::{ACCOUNT}:role/train-nodes"
PLACEMENT_GROUP = "train-cluster"
SOURCE_TEMPLATE = "gpu-old-template"

GKE_RESERVATION = "train-h200"
GKE_BLOCK = "train-h200-block-0001"  # the only one of it
GKE_NETWORK = "train-vpc"
GKE_SUBNETWORK = "train-nodes"
GKE_POD_RANGE = "train-pods"
GKE_GVNIC_NETWORK = "train-gvnic"
GKE_RDMA_NETWORK = "train-rdma"
GKE_LUSTRE = "train-lustre"
