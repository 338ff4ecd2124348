"""Types of the API, from the distilled OpenAPI or from a CustomResourceDefinition."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from infra.sandbox.control_plane.resources import distilled

Object = dict[str, Any]

GO_NAMES = {"integer": "int32", "boolean": "bool", "string": "string", "number": "float64"}
FORMS_BY_NAME = {
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "micro-time",
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON": "any",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray": "any",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool": "any",
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray": "any",
}
ZEROS = ("", 0, False)
REF = "#/components/schemas/"
OBJECT_META = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"


@dataclass(slots=True, eq=False)
class Type:
    """One type.

    Attributes:
        form: object | map | array | string | integer | number | boolean | bytes | any | time | micro-time |
            quantity | int-or-string.
        name: the Go struct ("DeploymentSpec"), "" if it has none.
        fields: properties of an object.
        items: element of an array, or value of a map.
        merge_key, patch_strategies: for strategic merge.
        list_type, list_keys: atomic | set | map, and the keys of a map list, for server-side apply.
        atomic: a map or struct that has one owner.
        open: keeps unknown fields.
        nulls: time fields that show as null when unset.
        inline: struct fields that are always there, so that nobody owns them as such.
        zeros: plain fields that are always there, with the value of an unset one.
        limits: the validation keywords of a custom type.

    """

    form: str
    name: str = ""
    fields: dict[str, Type] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    items: Type | None = None
    merge_key: str = ""
    patch_strategies: frozenset[str] = frozenset()
    list_type: str = ""
    list_keys: tuple[str, ...] = ()
    atomic: bool = False
    open: bool = False
    default: Any = None
    go: str = ""
    nulls: tuple[str, ...] = ()
    inline: frozenset[str] = frozenset()
    zeros: dict[str, Any] = field(default_factory=dict)
    limits: Object = field(default_factory=dict)
    embedded: bool = False


_types: dict[str, Type] = {}


def type_of(name: str) -> Type:
    """The type of a distilled schema by its full name."""
    found = _types.get(name)
    if found is None:
        form = FORMS_BY_NAME.get(name, "object")
        found = _types[name] = Type(form=form, name=name.rpartition(".")[2])
        if form == "object":
            _fill_struct(found, distilled()["schemas"][name])
    return found


def _fill_struct(target: Type, schema: Object) -> None:
    if "properties" not in schema:
        target.form = schema.get("type", "any") if schema.get("type") != "object" else "any"
        return
    target.required = frozenset(schema.get("required", ()))
    target.atomic = schema.get("x-kubernetes-map-type") == "atomic"
    target.fields = {name: _built_in(each) for name, each in schema["properties"].items()}
    target.inline = frozenset(name for name, each in schema["properties"].items() if each.get("default") == {})
    target.zeros = {
        name: each["default"]
        for name, each in schema["properties"].items()
        if each.get("default") in ZEROS and (each["default"] == "" or name in target.required)
    }
    if target.name.endswith("Condition") or target.name == "Event":
        timed = ("time", "micro-time")
        target.nulls = tuple(name for name, each in target.fields.items() if each.form in timed)


def _built_in(schema: Object) -> Type:
    reference = schema.get("$ref") or (schema["allOf"][0].get("$ref") if "allOf" in schema else None)
    if reference:
        base = type_of(reference.removeprefix(REF))
        if schema.get("x-kubernetes-map-type") == "atomic" and not base.atomic:
            # An atomic field of a type that is not atomic elsewhere.
            return Type(form=base.form, name=base.name, fields=base.fields, required=base.required, atomic=True)
        return base
    kind = schema.get("type")
    if kind == "array":
        return Type(
            form="array",
            items=_built_in(schema["items"]),
            merge_key=schema.get("x-kubernetes-patch-merge-key", ""),
            patch_strategies=frozenset(schema.get("x-kubernetes-patch-strategy", "").split(",")) - {""},
            list_type=schema.get("x-kubernetes-list-type", "atomic"),
            list_keys=tuple(schema.get("x-kubernetes-list-map-keys", ())),
        )
    if kind == "object" and "additionalProperties" in schema:
        return Type(
            form="map",
            items=_built_in(schema["additionalProperties"]),
            atomic=schema.get("x-kubernetes-map-type") == "atomic",
        )
    if kind == "string" and schema.get("format") == "byte":
        return Type(form="bytes", go="[]uint8")
    if kind in GO_NAMES:
        default = schema.get("default")
        return Type(form=kind, go=schema.get("format", GO_NAMES[kind]), default=default if default != "" else None)
    return Type(form="any")


@cache
def object_meta() -> Type:
    """metadata, the same for every kind."""
    return type_of(OBJECT_META)


# Custom resources


def custom_type(schema: Object) -> Type:
    """The type that a CRD's openAPIV3Schema describes, with apiVersion, kind and metadata added."""
    top = _custom(schema)
    top.form = "object"
    top.fields = {
        **top.fields,
        "apiVersion": Type(form="string"),
        "kind": Type(form="string"),
        "metadata": object_meta(),
    }
    return top


def _custom(schema: Object) -> Type:
    is_open = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    limits = {key: value for key, value in schema.items() if key in LIMIT_KEYWORDS}
    default = schema.get("default")
    if schema.get("x-kubernetes-int-or-string"):
        return Type(form="int-or-string", limits=limits, default=default)
    kind = schema.get("type")
    if kind == "array":
        return Type(
            form="array",
            items=_custom(schema.get("items", {})),
            list_type=schema.get("x-kubernetes-list-type", "atomic"),
            list_keys=tuple(schema.get("x-kubernetes-list-map-keys", ())),
            limits=limits,
            default=default,
        )
    values = schema.get("additionalProperties")
    if kind == "object" and isinstance(values, dict) and not schema.get("properties"):
        return Type(form="map", items=_custom(values), limits=limits, default=default)
    if kind == "object":
        return Type(
            form="object",
            fields={name: _custom(each) for name, each in schema.get("properties", {}).items()},
            required=frozenset(schema.get("required", ())),
            atomic=schema.get("x-kubernetes-map-type") == "atomic",
            open=is_open or values is True,
            limits=limits,
            default=default,
            embedded=bool(schema.get("x-kubernetes-embedded-resource")),
        )
    if kind in GO_NAMES:
        return Type(form=kind, go=GO_NAMES[kind], limits=limits, default=default)
    return Type(form="any", open=True, limits=limits, default=default)


LIMIT_KEYWORDS = frozenset(
    {
        "enum",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minLength",
        "maxLength",
        "pattern",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "nullable",
    }
)
