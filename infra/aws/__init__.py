"""Amazon EKS managed node groups, and what they stand on: EC2, Auto Scaling, FSx. boto3 stays inside."""
