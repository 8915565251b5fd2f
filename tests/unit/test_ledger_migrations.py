"""Migrations: they lead to the schema of the code, keep the rows, and fail as a whole."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event

from genv_jupyter.errors import LedgerNewer
from genv_jupyter.ledger import LiveLedger, migrations, schema, sqlite
from genv_jupyter.ledger.rows import EnvironmentRow
from genv_jupyter.ledger.schema import LIVE, RECORDS, Schema

NOBODY = EnvironmentRow.nobody("local:1000")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "gpu" / "ledger.sqlite"


def fill(path: Path) -> None:
    """Make a ledger with one environment."""
    ledger = LiveLedger(path)
    assert ledger.open() == []
    with ledger.transaction() as t:
        t.put_environment(NOBODY)
    ledger.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(":memory:", isolation_level=None)
    )
    event.listen(made, "begin", sqlite._begin)
    yield made
    made.dispose()


def tables(engine_: Engine) -> dict[str, str]:
    with engine_.connect() as connection:
        found = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql NOT NULL")
        return {name: " ".join(sql.split()) for name, sql in found}


@pytest.mark.parametrize("kind", [LIVE, RECORDS], ids=lambda kind: kind.name)
def test_the_migrations_lead_to_the_schema_of_the_code(kind: Schema, engine: Engine) -> None:
    with engine.begin() as connection:
        migrations.upgrade(connection, kind)
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, kind.tables) == []
    migrated = tables(engine)
    with engine.begin() as connection:
        for name in migrated:
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
        sqlite._create(connection, kind)
    # CHECK constraints are not compared by Alembic; the text of the tables has them.
    assert tables(engine) == migrated


@pytest.mark.parametrize("kind", [LIVE, RECORDS], ids=lambda kind: kind.name)
def test_the_revisions_that_the_code_lists_are_the_ones_that_exist(kind: Schema) -> None:
    script = ScriptDirectory.from_config(migrations.config_for(kind))
    found = [revision.revision for revision in script.walk_revisions()]
    assert tuple(reversed(found)) == kind.revisions


NEXT = """
import sqlalchemy as sa
from alembic import op

revision = "live_next"
down_revision = "{head}"


def upgrade():
    op.add_column("servers", sa.Column("colour", sa.Text, server_default="green"))
    {more}
"""


def next_version(path: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> None:
    """Turn the code into its next version, whose schema has one more revision."""
    home = path.parent.parent / "migrations"
    shutil.copytree(migrations.HERE, home)
    (home / "live" / "live_next_colour.py").write_text(NEXT.format(head=LIVE.head, more=more))
    monkeypatch.setattr(migrations, "HERE", home)
    monkeypatch.setattr(schema, "LIVE", LIVE._replace(revisions=(*LIVE.revisions, "live_next")))


def test_an_older_ledger_is_migrated_and_keeps_its_rows(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path)
    next_version(path, monkeypatch)
    ledger = LiveLedger(path)
    assert ledger.open() == []
    assert ledger.load().environments == (NOBODY,)
    with ledger.transaction() as t:
        t.drop_environment(NOBODY.id)
    ledger.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM alembic_version").fetchall() == [("live_next",)]
        assert (
            "colour"
            in connection.execute("SELECT sql FROM sqlite_master WHERE name='servers'").fetchone()[
                0
            ]
        )
    monkeypatch.undo()
    with pytest.raises(LedgerNewer):
        LiveLedger(path).open()


def test_a_migration_that_fails_leaves_the_old_ledger_whole_and_set_aside(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path)
    next_version(path, monkeypatch, more='op.drop_table("no_such_table")')
    ledger = LiveLedger(path)
    (notice,) = ledger.open()
    ledger.close()
    assert "could not be migrated" in notice
    (aside,) = path.parent.glob("*.damaged-*")
    with closing(sqlite3.connect(aside)) as connection:
        assert connection.execute("SELECT * FROM alembic_version").fetchall() == [(LIVE.head,)]
        assert connection.execute("SELECT count(*) FROM environments").fetchone() == (1,)
        assert "colour" not in str(connection.execute("SELECT sql FROM sqlite_master").fetchall())


def test_alembic_is_imported_only_to_migrate_and_sqlalchemy_only_on_use(path: Path) -> None:
    script = f"""
    import sys
    from pathlib import Path
    import genv_jupyter.ledger
    from genv_jupyter.ledger.rows import GrantRow
    assert "sqlalchemy" not in sys.modules
    for _ in range(2):
        ledger = genv_jupyter.ledger.LiveLedger(Path({str(path)!r}))
        ledger.open()
        ledger.close()
    assert "sqlalchemy" in sys.modules
    assert "alembic" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True)
