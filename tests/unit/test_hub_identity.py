"""Whose a Hub's token is: asked once, used for a while, and never more than the Hub says."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import pwd
import ssl
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from traitlets.config import Config

from genv_jupyter.broker import hub_identity, reserving
from genv_jupyter.broker.hub_identity import Caller, HubAccess, HubIdentities, Told
from genv_jupyter.broker.identity import Access, Identities
from genv_jupyter.broker.known_groups import KnownGroups
from genv_jupyter.errors import Forbidden, Unauthenticated, Unavailable
from genv_jupyter.model import Principal, Request
from genv_jupyter.reserving import NewReservation

WHOLE = frozenset({"access:servers!server=ann/"})
ANN = Told(name="ann", groups=("lab",), scopes=WHOLE)


class Hub:
    """What the broker asks; it counts."""

    def __init__(self, **settings: Any) -> None:
        self.tokens: dict[str, Told] = {"good": ANN}
        self.down = False
        self.asked: list[str] = []
        self.now = 1000.0
        self.wait = asyncio.Event()
        self.wait.set()
        self.access = HubAccess(config=Config(HubAccess={"api_url": "http://hub", **settings}))
        self.users = Identities(Access)
        self.identities = HubIdentities(
            lambda: self.access, self.users, self.answer, lambda: self.now
        )

    async def answer(self, token: str) -> Told | None:
        self.asked.append(token)
        await self.wait.wait()
        if self.down:
            raise OSError("connection refused")
        return self.tokens.get(token)

    async def key(self, token: str) -> str:
        return (await self.identities.identify(token)).principal.key


def told(told: Told, **settings: Any) -> Caller:
    """Return who somebody is here, of whom the Hub tells this."""
    hub = Hub(**settings)
    hub.tokens["good"] = told
    return asyncio.run(hub.identities.identify("good"))


def test_a_token_is_asked_for_once_and_again_when_time_is_up() -> None:
    async def story() -> None:
        hub = Hub(cache_seconds=60)
        for _ in range(20):
            assert await hub.key("good") == "hub:ann"
        assert hub.asked == ["good"]
        assert hub.identities.fresh_for("good") == 60
        hub.now += 59.9
        await hub.key("good")
        assert hub.asked == ["good"]
        hub.now += 0.2
        await hub.key("good")
        assert hub.asked == ["good", "good"]

    asyncio.run(story())


def test_many_at_once_are_one_question() -> None:
    async def story() -> None:
        hub = Hub()
        hub.wait.clear()
        calls = [asyncio.ensure_future(hub.key("good")) for _ in range(50)]
        await asyncio.sleep(0)
        calls[0].cancel()  # one who leaves takes nobody's answer along
        hub.wait.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert found[1:] == ["hub:ann"] * 49
        assert hub.asked == ["good"]

    asyncio.run(story())


def test_a_revoked_token_is_noticed_when_time_is_up() -> None:
    async def story() -> None:
        hub = Hub(cache_seconds=60)
        await hub.key("good")
        del hub.tokens["good"]
        hub.now += 60
        with pytest.raises(Unauthenticated, match="does not know your token"):
            await hub.key("good")
        hub.down = True  # what was revoked is not believed because nobody says so any more
        hub.now += hub_identity.PAUSE
        with pytest.raises(Unavailable):
            await hub.key("good")

    asyncio.run(story())


def test_what_was_refused_is_not_asked_again_at_once() -> None:
    async def story() -> None:
        hub = Hub()
        for _ in range(5):
            with pytest.raises(Unauthenticated):
                await hub.key("bad")
        assert hub.asked == ["bad"]
        hub.tokens["bad"] = ANN
        hub.now += hub_identity.PAUSE
        assert await hub.key("bad") == "hub:ann"

    asyncio.run(story())


@pytest.mark.parametrize("token", [None, "", "x" * 2000])
def test_no_token_is_no_question(token: str | None) -> None:
    async def story() -> None:
        hub = Hub()
        with pytest.raises(Unauthenticated) as refused:
            await hub.identities.identify(token)
        assert refused.value.details == {"challenge": "token"}
        assert hub.asked == []

    asyncio.run(story())


def test_while_the_hub_is_down_known_tokens_go_on_for_a_time_and_no_new_one_comes() -> None:
    async def story() -> None:
        hub = Hub(cache_seconds=60, outage_seconds=600)
        await hub.key("good")
        hub.down = True
        hub.tokens["new"] = ANN
        hub.now += 599
        assert await hub.key("good") == "hub:ann"
        with pytest.raises(Unavailable, match="JupyterHub does not answer"):
            await hub.key("new")
        hub.now += 1
        with pytest.raises(Unavailable):
            await hub.key("good")
        hub.down = False
        hub.now += hub_identity.PAUSE
        assert [await hub.key(it) for it in ("good", "new")] == ["hub:ann"] * 2

    asyncio.run(story())


def test_a_hub_that_is_down_is_left_alone_for_a_moment() -> None:
    async def story() -> None:
        hub = Hub(cache_seconds=0)
        await hub.key("good")
        hub.down = True
        for _ in range(10):
            await hub.key("good")
        assert len(hub.asked) == 2
        hub.now += hub_identity.PAUSE
        await hub.key("good")
        assert len(hub.asked) == 3

    asyncio.run(story())


def test_settings_that_changed_are_asked_by() -> None:
    async def story() -> None:
        hub = Hub()
        assert not (await hub.identities.identify("good")).principal.admin
        hub.access = HubAccess(config=Config(HubAccess={"admin_groups": ["lab"]}))
        hub.identities.forget()
        assert (await hub.identities.identify("good")).principal.admin

    asyncio.run(story())


def test_only_so_many_questions_at_a_time() -> None:
    async def story() -> None:
        hub = Hub()
        hub.wait.clear()
        calls = [asyncio.ensure_future(hub.key(f"random{i}")) for i in range(100)]
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(hub.asked) == hub_identity.AT_ONCE
        hub.wait.set()
        await asyncio.gather(*calls, return_exceptions=True)
        assert len(hub.asked) == 100

    asyncio.run(story())


def test_tokens_are_remembered_by_their_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(hub_identity, "MOST", 3)
        hub = Hub()
        for i in range(10):
            hub.tokens[f"secret{i}"] = ANN
            await hub.key(f"secret{i}")
            with pytest.raises(Unauthenticated):
                await hub.key(f"bad{i}")
        known = hub.identities.__dict__
        assert len(known["_known"]) == 3
        assert len(known["_refused"]) <= 4
        assert "secret" not in repr(known) and "bad" not in repr(known)

    asyncio.run(story())


# -- what a token is good for ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scopes", "changes"),
    [
        (["access:servers!server=ann/"], True),
        (["access:servers!server=ann/second"], True),
        (["access:servers!user=ann"], True),
        (["access:servers"], True),
        (["custom:genv-jupyter:use!user=ann"], True),
        (["custom:genv-jupyter:use"], True),
        ([], False),
        (["read:users:name!user=ann"], False),
        (["access:servers!server=bob/"], False),
        (["access:servers!user=bob"], False),
        (["access:servers!server=ann"], False),
        (["access:servers!server=annabel/"], False),
        (["custom:genv-jupyter:use!user=bob"], False),
        (["custom:genv-jupyter:read"], False),
        (["access:services!service=gpu"], False),
    ],
)
def test_a_token_that_may_enter_the_own_servers_may_change(
    scopes: list[str], changes: bool
) -> None:
    found = told(Told(name="ann", scopes=frozenset(scopes)))
    assert found.changes is changes
    assert not found.principal.admin


@pytest.mark.parametrize(
    ("settings", "scopes", "admin"),
    [
        ({}, WHOLE, False),
        ({"admin_users": ["ann"]}, WHOLE, True),
        ({"admin_groups": ["lab"]}, WHOLE, True),
        ({"admin_users": ["bob"], "admin_groups": ["others"]}, WHOLE, False),
        ({}, {"custom:genv-jupyter:admin"}, True),
        ({}, {"custom:genv-jupyter:admin!user=ann"}, False),
        ({"admin_users": ["ann"]}, {"read:users:name!user=ann"}, False),
        ({"admin_groups": ["lab"]}, set(), False),
        ({}, {"admin:users", "admin:servers"}, False),
    ],
)
def test_who_administers(settings: dict[str, Any], scopes: set[str], admin: bool) -> None:
    found = told(Told(name="ann", groups=("lab",), scopes=frozenset(scopes)), **settings)
    assert found.principal.admin is admin


def test_a_service_is_what_its_scopes_say_and_no_user() -> None:
    with pytest.raises(Forbidden, match="service 'ann'"):
        told(Told(name="ann", kind="service", scopes=frozenset({"access:servers"})))
    for scope, changes in (("read", False), ("admin", True)):
        scopes = frozenset({f"custom:genv-jupyter:{scope}"})
        found = told(
            Told(name="ann", kind="service", scopes=scopes), admin_users=["ann", "service/ann"]
        )
        assert found.principal.key == "hub:service/ann"
        assert (found.changes, found.principal.admin) == (changes, changes)


# -- Unix accounts ---------------------------------------------------------------------------------


def account(name: str, uid: int) -> Callable[[str], pwd.struct_passwd]:
    entry = pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))

    def look(key: str) -> pwd.struct_passwd:
        if key != name:
            raise KeyError(key)
        return entry

    return look


def test_users_of_the_hub_are_no_accounts_unless_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pwd, "getpwnam", account("ann", 4321))
    assert told(ANN).principal.key == "hub:ann"
    found = told(ANN, local_users=True)
    assert found.principal.key == "local:4321"
    assert found.principal.groups == ("lab",)
    assert found.changes


@pytest.mark.parametrize(
    ("name", "uid"), [("root", 0), ("daemon", 1), ("nobody", 65534), ("dyn", 61184)]
)
def test_an_account_of_the_host_itself_is_nobody_s(
    monkeypatch: pytest.MonkeyPatch, name: str, uid: int
) -> None:
    monkeypatch.setattr(pwd, "getpwnam", account(name, uid))
    scopes = frozenset({"access:servers"})
    with pytest.raises(Forbidden, match="no user with an account"):
        told(Told(name=name, scopes=scopes), local_users=True)
    with pytest.raises(Forbidden, match="no user with an account"):
        told(Told(name="stranger", scopes=scopes), local_users=True)


@pytest.mark.parametrize("name", ["Ann", "ann@example.org"])
def test_an_account_of_nearly_that_name_is_somebody_else_s(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As a directory service has it that folds case and domains."""
    look = account("ann", 4321)
    monkeypatch.setattr(pwd, "getpwnam", lambda key: look("ann"))
    assert told(ANN, local_users=True).principal.key == "local:4321"
    with pytest.raises(Forbidden, match="no user with an account"):
        told(Told(name=name, scopes=WHOLE), local_users=True)


@pytest.mark.parametrize("name", ["root", "daemon", "ann"])
def test_reservations_for_users_of_the_hub_go_by_the_same_rule(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(pwd, "getpwnam", account("ann", 4321))
    if name != "ann":
        monkeypatch.setattr(pwd, "getpwnam", account(name, 1))
    config = SimpleNamespace(of=lambda kind: kind(config=Config(HubAccess={"local_users": True})))
    core: Any = SimpleNamespace(kind="host", identities=Identities(Access), config=config)
    new = NewReservation(user=name, realm="hub", groups=(), server="", request=Request(gpus=1))
    administrator = Principal(realm="local", id="0", name="root", admin=True)
    if name == "ann":
        assert reserving.owner_of(core, administrator, new).key == "local:4321"
    else:
        with pytest.raises(Forbidden, match="no user with an account"):
            reserving.owner_of(core, administrator, new)


def test_a_token_for_less_makes_no_administrator_of_an_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pwd, "getpwnam", account("ann", 4321))

    def caller(scopes: frozenset[str]) -> Caller:
        hub = Hub(local_users=True)
        hub.users.access = lambda: Access(config=Config(Access={"admin_users": ["4321"]}))
        hub.tokens["good"] = Told(name="ann", scopes=scopes)
        return asyncio.run(hub.identities.identify("good"))

    assert caller(WHOLE).principal.admin
    assert not caller(frozenset()).principal.admin


def test_groups_of_the_hub_count_for_whoever_owns_something() -> None:
    async def story() -> None:
        hub = Hub()
        assert hub.users.of("hub:ann").groups == ()
        await hub.key("good")
        assert hub.users.of("hub:ann").groups == ("lab",)
        assert hub.users.named("ann").key == "hub:ann"
        assert hub.users.named("hub:ann").key == "hub:ann"

    asyncio.run(story())


def test_groups_of_the_hub_outlive_the_daemon(tmp_path: Path) -> None:
    path = tmp_path / "groups.json"
    first = KnownGroups(path)
    first.put("hub:ann", ("lab",))
    first.put("hub:ann", ("lab", "more"))
    first.put("local:1000", ())
    users = Identities(Access)
    users.told = KnownGroups(path)
    assert users.of("hub:ann").groups == ("lab", "more")
    assert users.named("ann").key == "hub:ann"
    assert [it.name for it in tmp_path.iterdir()] == ["groups.json"]


@pytest.mark.parametrize("text", ["", "{", '{"hub:ann": 1}', "[]"])
def test_groups_that_cannot_be_read_stand_in_nobody_s_way(tmp_path: Path, text: str) -> None:
    path = tmp_path / "groups.json"
    path.write_text(text)
    known = KnownGroups(path)
    assert known.get("hub:ann") is None
    known.put("hub:ann", ("lab",))
    assert KnownGroups(path).get("hub:ann") == ("lab",)


# -- over HTTP -------------------------------------------------------------------------------------


def over_http(
    answer: bytes,
    story: Callable[[HubIdentities], Coroutine[Any, Any, Any]],
    tls: ssl.SSLContext | None = None,
) -> list[str]:
    """Run something with a server in the place of the Hub; return the heads it was asked with."""
    heads: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def whole() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
        port = server.sockets[0].getsockname()[1]
        url = f"http{'' if tls is None else 's'}://127.0.0.1:{port}/hub/api"
        access = HubAccess(config=Config(HubAccess={"api_url": url}))
        try:
            await story(HubIdentities(lambda: access, Identities(Access)))
        finally:
            server.close()

    asyncio.run(whole())
    gc.collect()
    return heads


def test_an_https_hub_is_checked_against_the_file_of_certificates(tmp_path: Path) -> None:
    """With a certificate of its own, as a Hub within a cluster may have."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "hub")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    chain, secret = tmp_path / "hub.crt", tmp_path / "hub.key"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, secret)

    async def story(identities: HubIdentities) -> None:
        with pytest.raises(Unavailable):
            await identities.identify("s3cret")
        identities.access().ca_file = str(chain)
        identities._down = None
        assert (await identities.identify("s3cret")).principal.key == "hub:ann"

    over_http(http_answer("200 OK", '{"name": "ann", "scopes": []}'), story, context)


def http_answer(status: str, body: str = "", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def test_the_hub_is_asked_with_the_caller_s_own_token() -> None:
    async def story(identities: HubIdentities) -> None:
        assert (await identities.identify("s3cret")).principal.key == "hub:ann"

    body = '{"kind": "user", "name": "ann", "groups": ["a"], "scopes": [], "servers": null}'
    [head] = over_http(http_answer("200 OK", body), story)
    assert head.startswith("GET /hub/api/user HTTP/1.1\r\n")
    assert "\r\nauthorization: token s3cret\r\n" in head.lower()


@pytest.mark.parametrize("status", ["401 No", "403 Forbidden"])
def test_a_refusal_of_the_hub_is_ours(status: str) -> None:
    async def story(identities: HubIdentities) -> None:
        with pytest.raises(Unauthenticated):
            await identities.identify("s3cret")

    assert over_http(http_answer(status), story)


@pytest.mark.parametrize(
    "answer",
    [
        http_answer("404 Not Found"),
        http_answer("302 Found", "", "Location: /elsewhere"),
        http_answer("500 Oh"),
        http_answer("429 Slowly"),
        http_answer("200 OK", "<html>"),
        http_answer("200 OK", '{"kind": "user"}'),
        b"",
    ],
    ids=["404", "302", "500", "429", "html", "nobody", "nothing"],
)
def test_what_is_no_answer_of_a_hub_lets_nobody_in(
    answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(identities: HubIdentities) -> None:
        with pytest.raises(Unavailable) as refused:
            await identities.identify("s3cret")
        assert "s3cret" not in str(refused.value.payload())

    with caplog.at_level(logging.DEBUG):
        assert len(over_http(answer, story)) == 1, "the token goes nowhere else"
    assert "JupyterHub does not answer" in caplog.text
    assert "s3cret" not in caplog.text
