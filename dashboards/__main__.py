"""`python -m dashboards`: write the generated JSON files anew (`make generate`)."""

from dashboards.files import FILES, FOLDER, text

if __name__ == "__main__":
    for name in FILES:
        (FOLDER / name).write_text(text(name))
