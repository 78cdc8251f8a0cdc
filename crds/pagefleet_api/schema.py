"""What the resource's types are made of: the base, CEL rules, texts of a form, bounded quantities."""

import re
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
    """A CEL rule: the expression that must hold, and the refusal with the way out.

    The API server writes the path of the value before the refusal; one of several fields names them itself.

    expression: CEL that makes the refusal with the value that was given in it; `message` stands where it fails.
    field: of an object, the field that the refusal is about: its path is written then.
    """

    rule: str
    message: str
    expression: str | None = None
    field: str | None = None


def rules(*given: tuple[str, str] | Rule) -> dict[str, Any]:
    """The rules of a schema."""
    return {"x-kubernetes-validations": [_written(Rule(*each)) for each in given]}


def _written(rule: Rule) -> dict[str, str]:
    # for the reason by default, the API server puts the name of the type in the value's place
    words = {"rule": rule.rule, "message": rule.message, "reason": "FieldValueForbidden"}
    if rule.expression is not None:
        words["messageExpression"] = rule.expression
    if rule.field is not None:
        words["fieldPath"] = f".{rule.field}"
    return words


def literal(text: str) -> str:
    """`text` as CEL has it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quoted(value: str) -> str:
    """CEL of a text on one line, as refusals must be, between quotation marks."""
    return rf"""'"' + {value}.replace('\n', '\\n') + '"'"""


def text_rule(rule: str, forms: str, refusal: str) -> Rule:
    """A rule for a single text: who gave another one is told it, then `refusal`; `forms` are what it can be."""
    return Rule(rule, forms, f"{quoted('self')} + {literal(f' {refusal}')}")


@dataclass(frozen=True)
class Ordered:
    """Two numbers of one object of which the first must not be above the second, where both are given."""

    low: str
    high: str

    def refusals(self, low: int | None, high: int | None) -> Iterator[str]:
        """What is wrong with these two numbers."""
        if low is not None and high is not None and low > high:
            yield f"{self.low} {low} must not be above {self.high} {high}; {self._way_out}"

    @property
    def rule(self) -> Rule:
        """The same for the API server, in whose words no number can be: it knows no bound for the text of one."""
        low, high = f"self.{self.low}", f"self.{self.high}"
        says = f"must not be above {self.high}; {self._way_out}"
        return Rule(f"!has({low}) || !has({high}) || {low} <= {high}", says, field=self.low)

    @property
    def _way_out(self) -> str:
        return f"lower {self.low} or raise {self.high}"


_TEXT_OF_EITHER = "string(self)"
"""Of an integer or a string; of what is a string anyway it would have no bound for the API server."""


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
_SHORT = {**_INT_OR_STRING, "maxLength": 32}


@dataclass(frozen=True)
class Shaped:
    """The form of a text, kept by the API server and by the parser; both say `form`, as few can read `pattern`."""

    pattern: str
    form: str
    """What it must be, with an example."""

    @property
    def says(self) -> str:
        """The refusal."""
        return f"must be {self.form}"

    def check(self, text: str) -> str:
        """`text` as it is; ValueError when it has another form."""
        if re.fullmatch(self.pattern, text) is None:
            raise ValueError(self.says)
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        shape = handler(schema)
        text = "self" if shape.get("type") == "string" else _TEXT_OF_EITHER
        told = f"{literal(f'{self.says}; it is ')} + {quoted(text)}"
        return {**shape, **rules(Rule(f"{text}.matches({literal(self.pattern)})", self.says, told))}


_QUANTITY = Shaped(quantity.PATTERN, f"a quantity such as {quantity.EXAMPLES}")


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _is_quantity(text: str) -> str:
    quantity.parse(text)
    return text


Text = Annotated[str, BeforeValidator(_as_text), AfterValidator(_is_quantity)]
Quantity = Annotated[Text, WithJsonSchema(_SHORT), _QUANTITY]
"""A quantity kept as its text; a bare YAML number is accepted as its text."""


@dataclass(frozen=True)
class Within:
    """Bounds of a quantity, kept by the API server and by the parser."""

    least: str
    most: str | None = None
    example: str = "0.5"
    """For who wrote no quantity at all."""

    @property
    def says(self) -> str:
        """The refusal."""
        return f"must be at least {self.least}" + (f" and at most {self.most}" if self.most else "")

    def check(self, text: str) -> str:
        """`text` as it is; ValueError when it is outside."""
        number = quantity.parse(text)
        if number < quantity.parse(self.least) or (self.most is not None and number > quantity.parse(self.most)):
            raise ValueError(self.says)
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        given = f"quantity({_TEXT_OF_EITHER})"
        compared = [f"{given}.compareTo(quantity('{self.least}')) >= 0"]
        if self.most is not None:
            compared.append(f"{given}.compareTo(quantity('{self.most}')) <= 0")
        readable = f"{_TEXT_OF_EITHER}.matches({literal(quantity.PATTERN)})"
        rule = " && ".join((readable, *compared))
        other = literal(f"must be a quantity such as {self.example}")
        number = f"isQuantity({_TEXT_OF_EITHER}) && ({_TEXT_OF_EITHER}.startsWith('-') || {readable})"
        says = f"({number} ? {literal(self.says)} : {other})"
        told = f"{says} + '; it is ' + {quoted(_TEXT_OF_EITHER)}"
        return {**_SHORT, **rules(Rule(rule, self.says, told))}


Seconds = Annotated[int, Field(ge=0, le=86_400)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
"""RFC 1123, without its length: of objects, and before the slash of a qualified name."""
LABEL_VALUE = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
"""Of a label, where it may be empty too, and after the slash of a qualified name.

Source: IsQualifiedName and IsValidLabelValue in k8s.io/apimachinery/pkg/util/validation/validation.go (v0.34)."""
OBJECT_NAME = Shaped(rf"^{SUBDOMAIN}$", "lower-case letters, digits, - and ., with a letter or digit at each end")
NAMESPACE = Shaped(f"^{_LABEL}$", "lower-case letters, digits and -, with a letter or digit at each end")
ObjectName = Annotated[Name, OBJECT_NAME]
"""Of a Secret, ConfigMap or claim, as the API server takes it (RFC 1123 subdomain)."""


class SecretName(Model):
    """A Secret in the service's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")


AUTO = "Auto"
Share = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if isinstance(value, int) else value),
    WithJsonSchema(_SHORT),
    Shaped(
        r"^(Auto|[0-9]{1,4}|([0-9]|[1-9][0-9]|100)%)$", "a number of pods up to 9999, a percentage such as 25%, or Auto"
    ),
]
"""A number of pods, a percentage, or Auto."""
