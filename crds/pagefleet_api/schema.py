"""What the resource's types are made of: the base, CEL rules, bounded quantities."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from pagefleet_api import quantity

SERVER_DEFAULT: dict[str, JsonValue] = {"x-server-default": True}


class Rule(NamedTuple):
    """A CEL rule: the expression that must hold, and the refusal, which names the field and the way out.

    expression: CEL that makes the refusal with the value that was given in it; `message` stands where it fails.
    """

    rule: str
    message: str
    expression: str | None = None


def rules(*given: tuple[str, str] | Rule) -> dict[str, Any]:
    """The rules of a schema."""
    return {"x-kubernetes-validations": [_written(Rule(*each)) for each in given]}


def _written(rule: Rule) -> dict[str, str]:
    words = {"rule": rule.rule, "message": rule.message}
    return words if rule.expression is None else {**words, "messageExpression": rule.expression}


class Model(BaseModel):
    """Base of every type here: camelCase on the wire, frozen, unknown fields ignored."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")


class Agreeing(Model):
    """Base of a type whose fields must go together: the first of `_refusals` is why they do not."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for refusal in self._refusals():
            raise ValueError(refusal)
        return self

    def _refusals(self) -> Iterator[str]:
        """What does not go together, in words."""
        raise NotImplementedError


_INT_OR_STRING = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
_QUANTITY_SCHEMA = {**_INT_OR_STRING, "pattern": quantity.PATTERN, "maxLength": 32}


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _is_quantity(text: str) -> str:
    quantity.parse(text)
    return text


Text = Annotated[str, BeforeValidator(_as_text), AfterValidator(_is_quantity)]
Quantity = Annotated[Text, WithJsonSchema(_QUANTITY_SCHEMA)]
"""A quantity kept as its text; a bare YAML number is accepted as its text."""


@dataclass(frozen=True)
class Within:
    """Bounds of a quantity, kept by the API server and by the parser; both name `path`."""

    path: str
    least: str
    most: str | None = None

    @property
    def says(self) -> str:
        """The refusal."""
        return f"{self.path} must be at least {self.least}" + (f" and at most {self.most}" if self.most else "")

    def check(self, text: str) -> str:
        """`text` as it is; ValueError when it is outside."""
        number = quantity.parse(text)
        if number < quantity.parse(self.least) or (self.most is not None and number > quantity.parse(self.most)):
            raise ValueError(self.says)
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        compared = [f"quantity(string(self)).compareTo(quantity('{self.least}')) >= 0"]
        if self.most is not None:
            compared.append(f"quantity(string(self)).compareTo(quantity('{self.most}')) <= 0")
        pattern = quantity.PATTERN.replace("\\", "\\\\")  # in the rule: nobody can read what its own refusal would say
        rule = " && ".join((f"string(self).matches('{pattern}')", *compared))
        told = f"'{self.says}; it is ' + string(self)"
        return {**_INT_OR_STRING, "maxLength": 32, **rules(Rule(rule, self.says, told))}


Seconds = Annotated[int, Field(ge=0, le=86_400)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
"""RFC 1123, without its length: of objects, and before the slash of a qualified name."""
LABEL_VALUE = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
"""Of a label, where it may be empty too, and after the slash of a qualified name.

Source: IsQualifiedName and IsValidLabelValue in k8s.io/apimachinery/pkg/util/validation/validation.go (v0.34)."""
ObjectName = Annotated[Name, Field(pattern=rf"^{SUBDOMAIN}$")]
"""Of a Secret, ConfigMap or claim, as the API server takes it (RFC 1123 subdomain)."""


class SecretName(Model):
    """A Secret in the service's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


AUTO = "Auto"
_SHARE = r"^(Auto|[0-9]{1,4}|([0-9]|[1-9][0-9]|100)%)$"
Share = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int) else value),
    Field(pattern=_SHARE),
    WithJsonSchema({**_INT_OR_STRING, "pattern": _SHARE, "minimum": 0, "maximum": 9999}),
]
"""A number of pods, a percentage, or Auto."""
