"""The published schema of audit.json, and every form that an adversary has in it."""

import json

import jsonschema
import pytest

from tests.vfl.audit.made import attempt, finding, made_audit
from vfl.audit.schema import Audit

SCHEMA = Audit.model_json_schema(mode="serialization")


@pytest.mark.parametrize(
    "adversary",
    [
        "coordinator",
        {"worker": 1},
        {"coordinator": "malicious"},
        {"label_holder": "malicious"},
        {"worker": 1, "malicious": True},
        ["coordinator", "label_holder"],
    ],
)
def test_every_adversary_is_as_the_schema_says(adversary):
    found = json.loads(made_audit(attempt(finding(adversary=adversary), adversary=adversary)).model_dump_json())
    assert found["attempts"][0]["adversary"] == adversary
    jsonschema.validate(found, SCHEMA)


def test_what_is_no_adversary_is_not():
    found = json.loads(made_audit(attempt(finding())).model_dump_json())
    found["attempts"][0]["adversary"] = {"coordinator": "kind"}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found, SCHEMA)
