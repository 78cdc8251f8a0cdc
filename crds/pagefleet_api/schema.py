"""What the resource's types are made of: the base, CEL rules, texts of a form, bounded quantities."""

import re
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    JsonValue,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, core_schema

from pagefleet_api import quantity

SERVER_DEFAULT: dict[str, JsonValue] = {"x-server-default": True}


class Rule(NamedTuple):
    """A CEL rule: the expression that must hold, and the refusal with the way out.

    The API server writes the path of the value before the refusal; one of several fields names them itself.

    expression: CEL that makes the refusal with the value that was given in it; `message` stands where it fails.
    field: of an object, the path inside of it that the refusal is about, which is written then.
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


def told(words: str, *values: str) -> str:
    """CEL of `words` with each {} in them replaced by one of `values`, which are CEL; `words.format` for the parser.

    In one piece, as the API server knows no bound for the text of a number, and so none for what it is put together to.
    """
    return f"{literal(words.replace('{}', '%s'))}.format([{', '.join(values)}])"


def joint(rule: str, words: str, *values: str, field: str, plain: str | None = None) -> Rule:
    """A rule for several fields of an object: `words` have {} where one of `values`, which are CEL, is told.

    plain: the words without any value; by default these are the words with what stands around it.
    """
    return Rule(rule, plain or words.replace(" {}", ""), told(words, *values) if values else None, field)


def text_rule(rule: str, forms: str, refusal: str) -> Rule:
    """A rule for a single text: who gave another one is told it, then `refusal`; `forms` are what it can be."""
    return Rule(rule, forms, f"{quoted('self')} + {literal(f' {refusal}')}")


_TEXT_OF_EITHER = "string(self)"
"""Of an integer or a string; of what is a string anyway it would have no bound for the API server."""


class Model(BaseModel):
    """Base of every type here: camelCase on the wire, frozen, unknown fields ignored."""

    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")


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
        if not self.fits(text):
            raise ValueError(self.says)
        return text

    def fits(self, text: str) -> bool:
        """Whether it has the form."""
        return re.fullmatch(self.pattern, text) is not None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        shape = handler(schema)
        text = "self" if shape.get("type") == "string" else _TEXT_OF_EITHER
        told = f"{literal(f'{self.says}; it is ')} + {quoted(text)}"
        return {**shape, **rules(Rule(f"{text}.matches({literal(self.pattern)})", self.says, told))}


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_as_text)]
"""A quantity kept as its text, with bounds beside it; a bare YAML number is accepted as its text."""


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
        if re.fullmatch(quantity.PATTERN, text):
            number = quantity.parse(text)
            if number < quantity.parse(self.least) or (self.most is not None and number > quantity.parse(self.most)):
                raise ValueError(self.says)
        elif re.fullmatch(quantity.ANY, text):
            raise ValueError(self.says if text.startswith("-") else quantity.FEWER_DIGITS)
        else:
            raise ValueError(self._other)
        return text

    @property
    def _other(self) -> str:
        return f"must be a quantity such as {self.example}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        given = f"quantity({_TEXT_OF_EITHER})"
        forms = (quantity.PATTERN, quantity.ANY)
        readable, any_at_all = (f"{_TEXT_OF_EITHER}.matches({literal(form)})" for form in forms)
        compared = [] if self.least == "0" else [f"{given}.compareTo(quantity('{self.least}')) >= 0"]
        if self.most is not None:
            compared.append(f"{given}.compareTo(quantity('{self.most}')) <= 0")
        outside = f"{readable} || {any_at_all} && {_TEXT_OF_EITHER}.startsWith('-')"
        beyond = f"{any_at_all} ? {literal(quantity.FEWER_DIGITS)} : {literal(self._other)}"
        said = f"({outside} ? {literal(self.says)} : {beyond}) + '; it is ' + {quoted(_TEXT_OF_EITHER)}"
        form = f"{self._other}, {self.says.removeprefix('must be ')}"
        return {**_SHORT, **rules(Rule(" && ".join((readable, *compared)), form, said))}


Quantity = Annotated[Text, Within(least="0", example=quantity.EXAMPLES)]
"""One that is not below 0."""
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
