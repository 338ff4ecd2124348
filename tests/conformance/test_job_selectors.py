"""A Job selects its pods by its own uid; whoever wants another selector has to say so."""

from __future__ import annotations

import pytest

UID = "batch.kubernetes.io/controller-uid"
POD = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
LABELS, TEMPLATE = "spec.template.metadata.labels", "`selector` does not match template `labels`"
NOT_OURS = "`selector` not auto-generated"
ASKED = {"matchLabels": {"a": "b"}}


@pytest.mark.parametrize(
    ("spec", "labels", "fields"),
    [
        ({}, {}, {}),
        ({"selector": {}}, {"a": "b"}, {}),
        ({"selector": ASKED}, {}, {"spec.selector": NOT_OURS, LABELS: TEMPLATE}),
        ({"selector": ASKED}, {"a": "b"}, {"spec.selector": NOT_OURS}),
        ({}, {"job-name": "other"}, {f"{LABELS}[job-name]": "must be 'j'"}),
        ({}, {UID: "other"}, {f"{LABELS}[{UID}]": "must be '", LABELS: TEMPLATE}),
        ({"manualSelector": True}, {}, {"spec.selector": "Required value", LABELS: TEMPLATE}),
        ({"manualSelector": True, "selector": ASKED}, {"a": "c"}, {LABELS: TEMPLATE}),
        ({"manualSelector": True, "selector": ASKED}, {"a": "b"}, {}),
    ],
)
def test_a_selector_of_the_users_own_needs_manual_selector(ns, spec, labels, fields):
    body = {"metadata": {"name": "j"}, "spec": {**spec, "template": {"metadata": {"labels": labels}, "spec": POD}}}

    status, _, answer = ns.api.request("POST", ns.path("jobs", group="batch/v1"), body, {"dryRun": "All"})

    assert status == (422 if fields else 201), answer
    causes = {cause["field"]: cause["message"] for cause in answer.get("details", {}).get("causes", ())}
    assert causes.keys() == fields.keys()
    assert all(words in causes[field] for field, words in fields.items())
