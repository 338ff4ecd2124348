"""One request, read: what it is about and how it wants to be treated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import yaml

from infra.sandbox.control_plane import errors, protobuf
from infra.sandbox.control_plane.resources import Kind

Object = dict[str, Any]

VALIDATIONS = ("Ignore", "Warn", "Strict")
MANAGER_LIMIT = 128
OPTIONS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions", "DELETE": "DeleteOptions"}


@dataclass(kw_only=True)
class Call:
    """One request on a resource.

    Attributes:
        namespace: of the path, None for a collection over all namespaces and for cluster resources.
        name: of the path, "" for a collection.
        sub: the subresource, "".
        body: as sent.
        warnings: what the answer's Warning headers will say.

    """

    method: str
    kind: Kind
    namespace: str | None
    name: str
    sub: str
    query: Mapping[str, str]
    accept: str = ""
    content_type: str = ""
    user_agent: str = ""
    body: bytes = b""
    warnings: list[str] = field(default_factory=list)

    def check(self) -> None:
        """422 for options that are wrong whatever the object is."""
        causes = []
        if self.query.get("dryRun", "All") != "All":
            text = f'Unsupported value: ["{self.query["dryRun"]}"]: supported values: "All"'
            causes.append(errors.Cause(reason="FieldValueNotSupported", message=text, field="dryRun"))
        wanted = self.query.get("fieldValidation", "")
        if wanted and wanted not in VALIDATIONS:
            text = f'Unsupported value: "{wanted}": supported values: "Ignore", "Strict", "Warn"'
            causes.append(errors.Cause(reason="FieldValueNotSupported", message=text, field="fieldValidation"))
        manager = self.query.get("fieldManager", "")
        if len(manager) > MANAGER_LIMIT:
            text = f"Too long: may not be more than {MANAGER_LIMIT} bytes"
            causes.append(errors.Cause(reason="FieldValueTooLong", message=text, field="fieldManager"))
        if causes:
            raise self.bad_options(causes)

    def bad_options(self, causes: list[errors.Cause]) -> errors.ApiError:
        """The refusal of the request's own options."""
        return errors.invalid("meta.k8s.io", OPTIONS[self.method], "", causes)

    @property
    def dry_run(self) -> bool:
        return bool(self.query.get("dryRun"))

    @property
    def validation(self) -> str:
        """Ignore, Warn or Strict; the server's own default is Warn."""
        return self.query.get("fieldValidation") or "Warn"

    @property
    def manager(self) -> str:
        """The field manager: named, or the program that the user agent names."""
        named = self.query.get("fieldManager")
        return named or self.user_agent.partition("/")[0][:MANAGER_LIMIT] or "unknown"

    @property
    def wants_table(self) -> bool:
        return "as=Table" in self.accept

    @property
    def wants_metadata(self) -> bool:
        return "as=PartialObjectMetadata" in self.accept

    @property
    def media_type(self) -> str:
        return self.content_type.partition(";")[0].strip().lower()

    def json(self) -> Any:
        """The body, from JSON or YAML. 400 if it is neither, 415 if it claims to be something else."""
        media = self.media_type
        if media == protobuf.MEDIA_TYPE:
            try:
                return protobuf.read(self.body)
            except protobuf.BadProtobuf as problem:
                raise errors.bad_request(str(problem)) from None
        if media in ("application/yaml", "application/apply-patch+yaml"):
            return self._yaml()
        if self.method != "PATCH" and media not in ("", "application/json", "*/*"):
            accepted = "application/json, application/yaml, application/vnd.kubernetes.protobuf"
            raise errors.unsupported_media_type(
                f"the body of the request was in an unknown format - accepted media types include: {accepted}"
            )
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError as problem:
            if self.method == "PATCH":
                raise errors.bad_request(f"error decoding patch: {problem}") from None
            raise self._unrecognized(str(problem)) from None

    def _yaml(self) -> Any:
        try:
            return orjson.loads(self.body)
        except orjson.JSONDecodeError:
            pass
        try:
            return yaml.safe_load(self.body)
        except yaml.YAMLError as problem:
            raise errors.bad_request(f"error decoding YAML: {problem}") from None

    def duplicates(self) -> list[str]:
        """Fields that the JSON body holds twice, as a strict reader words them. YAML and clean bodies have none."""
        found: list[str] = []

        def pairs(items: list[tuple[str, Any]]) -> Object:
            seen: Object = {}
            for key, value in items:
                if key in seen:
                    found.append(key)
                seen[key] = value
            return seen

        try:
            json.loads(self.body, object_pairs_hook=pairs)
        except ValueError:
            return []
        return [f'duplicate field "{key}"' for key in dict.fromkeys(found)]

    def object(self) -> Object:
        """The body as one object of the API. 400 if it is something else."""
        body = self.json()
        if not isinstance(body, dict):
            raise self._unrecognized("json: cannot unmarshal array into Go value of type struct")
        return body

    def _unrecognized(self, why: str) -> errors.ApiError:
        what = f"the object provided is unrecognized (must be of type {self.kind.kind})"
        return errors.bad_request(f"{what}: couldn't get version/kind; json parse error: {why}")
