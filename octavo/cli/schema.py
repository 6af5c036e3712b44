"""`octavo schema`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from octavo.cli.options import AsJson, BadOption, Data, Url, broker_urls
from octavo.cli.output import emit_fields, emit_json, emit_table, say
from octavo.cli.topic import ask

app = typer.Typer(help="Register, list, show and check schemas of messages.", no_args_is_help=True)

Subject = Annotated[str, typer.Argument(metavar="SUBJECT", help="subject or namespace/subject")]
SchemaFile = Annotated[Path, typer.Argument(help="A file with the schema, as JSON.")]


class SchemaType(StrEnum):
    JSON = "json"
    AVRO = "avro"


Kind = Annotated[SchemaType, typer.Option("--type", help="JSON Schema, or Avro.")]


@app.command()
def register(
    subject: Subject,
    file: SchemaFile,
    kind: Kind = SchemaType.JSON,
    compatibility: Annotated[
        str | None,
        typer.Option(
            help="Set the subject's mode: BACKWARD (the default), FORWARD, FULL (…_TRANSITIVE: "
            "with all versions), NONE."
        ),
    ] = None,
    url: Url = None,
    data: Data = None,
) -> None:
    """Register a schema as the next version of a subject, unless it exists already.

    \b
    Example:
      octavo schema register flights flight.schema.json
    """
    urls, text = broker_urls(url, data), _text_of(file)
    if compatibility is not None:
        mode = compatibility.upper()
        ask(urls, lambda client: client.set_schema_compatibility(subject, mode))
    found = ask(urls, lambda client: client.register_schema(subject, text, type=kind.value))
    say(f"{found['subject']} version {found['version']}, id {found['id']}")


@app.command("list")
def list_subjects(
    namespace: Annotated[str, typer.Argument(help="The namespace.")] = "public",
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the subjects of a namespace.

    \b
    Example:
      octavo schema list shop
    """
    found = ask(broker_urls(url, data), lambda client: client.schema_subjects(namespace))
    if as_json:
        emit_json(found)
    else:
        emit_table(["subject"], [[one] for one in found])


@app.command()
def show(
    subject: Subject,
    version: Annotated[
        str | None, typer.Option(help="Only this version: a number, an id, or latest.")
    ] = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Show a subject and its versions; with --version one schema.

    \b
    Example:
      octavo schema show flights
    """
    urls = broker_urls(url, data)
    if version is not None:
        emit_json(ask(urls, lambda client: client.schema(subject, version)))
        return
    found = ask(urls, lambda client: client.schema_subject(subject))
    if as_json:
        emit_json(found)
        return
    emit_fields({"subject": found["subject"], "compatibility": found["compatibility"]})
    rows = [[one["version"], one["type"], one["id"]] for one in found["versions"]]
    emit_table(["version", "type", "id"], rows)


@app.command()
def check(
    subject: Subject,
    file: SchemaFile,
    kind: Kind = SchemaType.JSON,
    url: Url = None,
    data: Data = None,
) -> None:
    """Say whether a schema may be the next version of a subject; exit code 1 if it may not.

    \b
    Example:
      octavo schema check flights flight.schema.json
    """
    text = _text_of(file)
    problems = ask(
        broker_urls(url, data),
        lambda client: client.check_schema(subject, text, type=kind.value),
    )
    for problem in problems:
        say(problem)
    if problems:
        raise typer.Exit(1)
    say("it may")


def _text_of(file: Path) -> str:
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadOption(f"{file}: {error}") from None
