"""Which models the operator reads itself, and with what of a Secret."""

import json
from typing import Any

import pytest

from pagefleet_api import model_uri
from pagefleet_api.model_source import ModelSource
from pagefleet_operator.models.access import Access, SecretUnusable, asked

LISTED = "https://minio.storage:9000"
ACCESS = Access(frozenset({LISTED}), secrets=True)
AWS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key"}
AZURE = {"AZURE_STORAGE_ACCOUNT_NAME": "acme", "AZURE_STORAGE_ACCOUNT_KEY": "k"}
ACCOUNT = {"type": "service_account", "private_key": "k", "private_key_id": "1", "client_email": "a@b"}


def model(uri: str, secret: bool = False) -> ModelSource:
    return ModelSource.model_validate({"uri": uri, **({"secretRef": {"name": "s"}} if secret else {})})


@pytest.mark.parametrize(
    ("uri", "secret", "words"),
    [
        ("hf://org/name", False, None),
        ("hf://org/name", True, None),
        ("hf://org/name/a.gguf", False, "is read by the pod alone"),
        ("oci://registry/model:1", False, "is read by the pod alone"),
        ("s3://bucket/m", True, None),
        ("gs://bucket/m", True, None),
        ("az://container/m", True, None),
        ("s3://bucket/m", False, "with the keys of model.secretRef alone, and there is none"),
        (f"{LISTED}/m", False, None),
        (f"{LISTED}/m", True, None),
        ("http://minio.storage:9000/m", False, "http://minio.storage:9000 is an address of the user's choice"),
        ("https://kubernetes.default.svc/m", True, "modelOrigins of its chart"),
    ],
)
def test_the_operator_asks_what_no_user_can_choose_and_what_is_listed(
    uri: str, secret: bool, words: str | None
) -> None:
    said = ACCESS.refusal(model(uri, secret))
    assert said is None if words is None else said is not None and words in said


def test_without_a_right_to_secrets_none_is_opened() -> None:
    assert "readModelSecrets" in str(Access().refusal(model("s3://bucket/m", secret=True)))


@pytest.mark.parametrize(
    ("uri", "secret", "given"),
    [
        ("hf://org/name", {"HF_TOKEN": " t\n", "AWS_REGION": "x"}, {"HF_TOKEN": "t"}),
        ("hf://org/name", {"HF_TOKEN": "t", "HF_ENDPOINT": LISTED}, {"HF_TOKEN": "t", "HF_ENDPOINT": LISTED}),
        ("s3://b/m", {**AWS, "AWS_CA_BUNDLE": "/etc/shadow", "PATH": "/x"}, AWS),
        ("s3://b/m", {**AWS, "AWS_ENDPOINT_URL": f"{LISTED}/"}, {**AWS, "AWS_ENDPOINT_URL": f"{LISTED}/"}),
        ("s3://b/m", {"AWS_SKIP_SIGNATURE": "true"}, {"AWS_SKIP_SIGNATURE": "true"}),
        ("az://c/m", {**AZURE, "AZURE_FEDERATED_TOKEN_FILE": "/x"}, AZURE),
        (f"{LISTED}/m", {"HTTP_AUTHORIZATION": "Bearer x", "HF_TOKEN": "y"}, {"HTTP_AUTHORIZATION": "Bearer x"}),
    ],
)
def test_what_opens_the_model_is_taken_and_nothing_else(
    uri: str, secret: dict[str, str], given: dict[str, str]
) -> None:
    assert ACCESS.environment(model_uri.parse(uri), secret) == given


@pytest.mark.parametrize(
    ("uri", "secret", "words"),
    [
        ("hf://org/name", {}, "a Secret with HF_TOKEN is read here alone"),
        ("s3://b/m", {"AWS_ACCESS_KEY_ID": "x"}, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE"),
        ("s3://b/m", {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": " "}, "is read here alone"),
        ("s3://b/m", {"AWS_SKIP_SIGNATURE": "false"}, "AWS_SKIP_SIGNATURE must match true"),
        ("s3://b/m", {**AWS, "AWS_REGION": "evil.com/"}, r"AWS_REGION must match \[a-z0-9-\]"),
        ("s3://b/m", {**AWS, "AWS_ENDPOINT_URL": "http://169.254.169.254"}, "AWS_ENDPOINT_URL is an address"),
        ("s3://b/m", {**AWS, "AWS_ENDPOINT": f"{LISTED}@evil"}, "AWS_ENDPOINT is an address"),
        ("az://c/m", {**AZURE, "AZURE_STORAGE_ACCOUNT_NAME": "a.evil/"}, "AZURE_STORAGE_ACCOUNT_NAME must match"),
        ("az://c/m", {**AZURE, "AZURE_STORAGE_ENDPOINT": "http://api"}, "AZURE_STORAGE_ENDPOINT is an address"),
        ("gs://b/m", {"GOOGLE_SERVICE_ACCOUNT_KEY": "[1]"}, "holds no JSON object"),
        ("gs://b/m", {"GOOGLE_SERVICE_ACCOUNT_KEY": "{"}, "holds no JSON object"),
        ("gs://b/m", {"GOOGLE_SERVICE_ACCOUNT_KEY": '{"gcs_base_url": "http://api"}'}, "gcs_base_url of GOOGLE"),
        ("gs://b/m", {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}", "GOOGLE_BASE_URL": "http://api"}, "GOOGLE_BASE_URL is an"),
    ],
)
def test_a_secret_that_would_lead_elsewhere_or_open_nothing_is_refused_without_its_values(
    uri: str, secret: dict[str, str], words: str
) -> None:
    with pytest.raises(SecretUnusable, match=words) as refused:
        ACCESS.environment(model_uri.parse(uri), secret)
    assert "169.254" not in str(refused.value)


@pytest.mark.parametrize("listed", [{}, {"disable_oauth": True}, {"gcs_base_url": LISTED, "disable_oauth": True}])
def test_of_a_google_account_addresses_and_files_stay_behind(listed: dict[str, Any]) -> None:
    given = {**ACCOUNT, **listed, "token_uri": "http://api", "credential_source": {"file": "/etc/shadow"}}
    found = ACCESS.environment(model_uri.parse("gs://b/m"), {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(given)})
    assert json.loads(found["GOOGLE_SERVICE_ACCOUNT_KEY"]) == {**ACCOUNT, **listed}


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("hf://org/name", "the hub"),
        ("s3://bucket/a/b", "s3://bucket"),
        ("https://A.example:443/x", "https://a.example"),
        ("http://:/x", "its host"),
    ],
)
def test_whoever_is_asked_has_a_name(uri: str, name: str) -> None:
    assert asked(model_uri.parse(uri)) == name
