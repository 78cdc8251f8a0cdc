"""`python -m pagefleet_api`: prints the CRD as YAML (`make generate` keeps it in crds/inferenceservices.yaml)."""

import sys

import yaml

from pagefleet_api.crd import custom_resource_definition


def main() -> None:
    """Write the CRD to standard output."""
    sys.stdout.write("# Generated from pagefleet_api by `make generate`; never edited.\n")
    yaml.safe_dump(custom_resource_definition(), sys.stdout, sort_keys=False, width=100, allow_unicode=True)


if __name__ == "__main__":
    main()
